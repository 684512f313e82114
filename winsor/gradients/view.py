"""The View: private per-sample information of one physical batch.

An engine turns the one forward and backward that the user's losses bring into a view. Rules read
views; they never see rows, models or autograd. Everything a view returns is private.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from winsor.core.contract import ProtocolError, Tree


class Need(enum.Flag):
    """What a rule will ask of the view. Known before the forward pass, so engines can skip work."""

    LOSSES = enum.auto()
    NORMS = enum.auto()
    GROUP_NORMS = enum.auto()
    SKETCH = enum.auto()
    MEAN = enum.auto()
    WEIGHTED_SUM = enum.auto()
    ROWS = enum.auto()
    FORWARD = enum.auto()  # the recorded graph, to bound norms before weight gradients exist
    NORMS_WILL_DO = enum.auto()  # with FORWARD: norms serve as well, where they cost less


@dataclass(frozen=True)
class Directions:
    """k public directions in parameter space, defined by a seed, never stored as a d x k matrix.

    Each parameter gets Kronecker-structured unit directions drawn from ``sampler`` (see
    `winsor/gradients/directions.py`); engines contract them with activations and output-gradients.
    """

    k: int
    seed: int
    distribution: str = "gaussian"
    theta: float = 0.5


class View:
    """Per-sample gradients of one physical batch, lazily.

    Rows whose loss or gradient is not finite are neutralised: norm 0, weight irrelevant, sketch 0,
    contribution 0, and counted in ``neutralised``. That is a function of the row alone, so it
    keeps every per-sample bound.

    This base class answers from the losses alone and refuses any other question. Subclasses set
    ``raw_losses`` and override the questions that they can answer.
    """

    raw_losses: Tensor
    """(n,) detached losses as they came, finite or not."""

    places: int = 1
    """Largest number of places at which one row uses the same weight: a shape, hence public."""

    @property
    def size(self) -> int:
        """Number of rows really present. Private: never divide by it."""
        return self.raw_losses.shape[0]

    @property
    def neutralised(self) -> int:
        """Rows set to zero because they were not finite. Private, for debugging only."""
        return self.size - int(self.raw_losses.isfinite().sum())

    def losses(self) -> Tensor:
        """Return (n,) detached per-row losses; a non-finite loss reads as 0."""
        return torch.where(self.raw_losses.isfinite(), self.raw_losses, 0.0)

    def norms(self) -> Tensor:
        """Return (n,) L2 norms of the per-sample gradients over all parameters."""
        self._refuse("norms")

    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        """Return (n, len(groups)) norms over groups of parameter names."""
        self._refuse("group_norms")

    def sketch(self, directions: Directions) -> Tensor:
        """Return (n, k) inner products of each per-sample gradient with k public directions."""
        self._refuse("sketch")

    def total(self) -> Tree:
        """Return sum_i g_i, as the weighted sum with weights 1."""
        return self.weighted_sum(torch.ones_like(self.losses()))

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        """Return sum_i w_i g_i. ``weights`` is (n,), or one (n,) per parameter name.

        ``last`` says that nothing more will be asked: an engine that can, frees what it recorded
        while the sum comes into being.
        """
        self._refuse("weighted_sum")

    def map_sum(self, f: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Tree:
        """Return sum_i f(g)_i, with rows materialised in bounded chunks.

        ``f`` maps {name: (m, *shape)} to the same shapes, row by row.
        """
        self._refuse("map_sum")

    def select(self, index: Tensor) -> View:
        """Return the view of the rows of ``index`` alone."""
        self._refuse("select")

    def _refuse(self, question: str) -> NoReturn:
        raise ProtocolError(
            f"view.{question} must be announced before the forward pass. Got a rule whose `needs` "
            "do not list it, so it was not recorded. Add the flag to the rule's `needs`."
        )


class JoinedView(View):
    """The rows of several physical batches, for rules that must see a logical batch at once.

    It holds what each of its views holds, so memory adds up.
    """

    def __init__(self, views: Sequence[View]) -> None:
        self._views = list(views)
        self._sizes = [view.size for view in self._views]

    @property
    def size(self) -> int:
        """Rows of all views."""
        return sum(self._sizes)

    @property
    def neutralised(self) -> int:
        """Neutralised rows of all views."""
        return sum(view.neutralised for view in self._views)

    def losses(self) -> Tensor:
        """Return losses of all views, in their order."""
        return torch.cat([view.losses() for view in self._views])

    def norms(self) -> Tensor:
        """Return norms of all views, in their order."""
        return torch.cat([view.norms() for view in self._views])

    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        """Return norms over groups of parameters, in the order of the views."""
        return torch.cat([view.group_norms(groups) for view in self._views])

    def sketch(self, directions: Directions) -> Tensor:
        """Return inner products of all views, in their order."""
        return torch.cat([view.sketch(directions) for view in self._views])

    def total(self) -> Tree:
        """Sum over the rows of all views."""
        return _sum([view.total() for view in self._views])

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        """Return the weighted sum over all views; weights are split in their order."""
        if isinstance(weights, Tensor):
            parts: Sequence[Tensor | dict[str, Tensor]] = weights.split(self._sizes)
        else:
            split = {name: w.split(self._sizes) for name, w in weights.items()}
            parts = [{n: w[i] for n, w in split.items()} for i in range(len(self._views))]
        return _sum([v.weighted_sum(w) for v, w in zip(self._views, parts, strict=True)])

    def map_sum(self, f: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Tree:
        """Sum of mapped rows over all views."""
        return _sum([view.map_sum(f) for view in self._views])


def _sum(trees: Sequence[Tree]) -> Tree:
    first, *rest = trees
    for tree in rest:
        torch._foreach_add_([first[name] for name in tree], list(tree.values()))
    return first


class Engine(Protocol):
    """Attaches to a model and turns its losses into views."""

    name: str

    def attach(self) -> None:
        """Install hooks. Idempotent."""
        ...

    def detach(self) -> None:
        """Remove every trace from the model."""
        ...

    def recording(self, on: bool) -> None:
        """Record per-sample information in the next forward passes, or stop doing so."""
        ...

    def view(self, losses: Tensor) -> View:
        """Run the backward pass of `losses` and return the view of this physical batch."""
        ...

    def explain(self) -> str:
        """Say what was decided for each layer, and why."""
        ...


def zeros_like_parameters(parameters: Mapping[str, Tensor]) -> Tree:
    """Return a tree of zeros with the shapes of ``parameters``."""
    return {name: torch.zeros_like(p) for name, p in parameters.items()}
