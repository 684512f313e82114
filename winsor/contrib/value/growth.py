"""Growth conditions that a rule may clip by, and the proofs that make them fit to certify.

    |grad f_i(w)|^2 <= beta_1 (f_i(w) - f_lb) + beta_2        (Fang et al. 2023, Definition 3.1)

Algorithm 3 takes (beta_1, beta_2, f_lb) on trust. A declared pair is a statement about every record
that could ever be in the data, and if one record breaks it, that record is not bounded. So `Value`
takes a `Growth` that proves its bound:

* one of ours (`wgc.NetworkGrowth`): the constants follow from the layers and the input of the row;
* a declared pair with a proof, ``WeakGrowth(beta_1, beta_2, proof=LayerBounds())``. A `GrowthProof`
  returns, row by row, a number that the squared gradient provably does not exceed; the row is
  scaled by the larger of that and the declared bound. While the declaration is true and the proof
  no looser, that is Algorithm 3 with f_i; a record that breaks the declaration is still bounded.

A pair without a proof is refused; `winsor_papers.value` runs it as published, on public data.

A proof of one's own is a subclass of `GrowthProof` with one method. `worst_ratio` looks for a
counterexample to any growth condition with exact gradients; the test battery runs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from winsor.contrib.value.bounds.network import FORMS
from winsor.contrib.value.bounds.spectral import OperatorNorms
from winsor.contrib.value.engine import ForwardEngine
from winsor.contrib.value.view import ForwardView
from winsor.core.checks import choice
from winsor.gradients import trainable_parameters
from winsor.gradients.loop import LoopEngine
from winsor.gradients.view import View


class GrowthProof(ABC):
    """Why no row's gradient is longer than stated. One `squares` is one proof."""

    statement: str
    """The argument in a sentence: it becomes part of the rule's stated sensitivity."""

    @abstractmethod
    def squares(self, view: ForwardView, norms: OperatorNorms) -> Tensor:
        """Return (n,) numbers >= |grad f_i|^2, functions of row i and the released weights only."""


@dataclass(frozen=True)
class LayerBounds(GrowthProof):
    """The bounds by layers that `Value` uses without a growth condition, by the same names.

    "outputs" is exact for perceptrons: a true declaration is then never overruled.
    """

    form: str = "outputs"

    def __post_init__(self) -> None:
        choice("form", self.form, sorted(FORMS))

    @property
    def statement(self) -> str:  # type: ignore[override]
        """The argument, with the name of the form."""
        return f'each row is held to the larger of its growth bound and its bound by "{self.form}"'

    def squares(self, view: ForwardView, norms: OperatorNorms) -> Tensor:
        """Return (n,) squared bounds by the form."""
        return FORMS[self.form](view, norms)


class Growth(ABC):
    """A growth condition that bounds every row's gradient, with proof."""

    @property
    @abstractmethod
    def statement(self) -> str:
        """Why it bounds; raises `ConfigurationError` if nothing shows that it does."""

    @abstractmethod
    def squares(self, view: ForwardView, norms: OperatorNorms, lower: float) -> Tensor:
        """Return (n,) proven bounds on |grad f_i|^2, from a pass with losses above ``lower``."""

    def bounds_of_rows(self, view: View, lower: float) -> Tensor:
        """Return (n,) bounds on |grad f_i| where rows come with norms instead of a graph."""
        return view.norms()


def worst_ratio(
    growth: Growth,
    model: nn.Module,
    losses_of: Callable[[nn.Module], Tensor],
    lower: float = 0.0,
) -> float:
    """Return the largest |grad f_i| over its growth bound: above 1 refutes the condition.

    By one exact gradient per row, so for tests and public data: the result is not released.

    >>> import torch
    >>> from winsor.models.networks import mlp
    >>> from winsor.contrib.value.wgc import NetworkGrowth
    >>> x, y = torch.randn(5, 3), torch.arange(5) % 2
    >>> losses = lambda net: torch.nn.functional.cross_entropy(net(x), y, reduction="none")
    >>> worst_ratio(NetworkGrowth(), mlp([3, 2], bias=False), losses) <= 1
    True
    """
    parameters = trainable_parameters(model)
    engine = ForwardEngine(model, parameters, keeps_graph=True)
    engine.attach()
    engine.recording(True)
    losses = losses_of(model)
    squares = growth.squares(engine.view(losses), OperatorNorms({}), lower).double()
    engine.detach()
    exact = LoopEngine(model, parameters).view(losses).norms().double()
    return float((exact / squares.sqrt()).nan_to_num(0.0).max())
