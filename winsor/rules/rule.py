"""What a clipping rule is: how a batch becomes a bounded quantity.

A rule has two halves because a logical batch may arrive in physical fragments:

* `contributions` looks at one fragment and returns sums over its rows; sums add up over fragments;
* `bounded` sees the sums of the whole logical batch and states, with proof, how far one record
  can have moved them.

The mechanism then adds noise, and `after` turns what was released into the gradient and the next
public state. A rule never draws noise and never learns the noise scale before it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol, runtime_checkable

from winsor.contract import Bounded, Released, Sensitivity, Tree
from winsor.grads.view import Need, View

State = dict[str, Any]
"""Public rule state: plain numbers and tensors, safe for `torch.load(weights_only=True)`."""

Sums = dict[str, Any]
"""Named sums over rows: a Tensor or a Tree each. The gradient is always called "grad"."""


@runtime_checkable
class Rule(Protocol):
    """One clipping idea. "grad" is a sum over rows; training divides by the expected size."""

    @property
    def needs(self) -> Need: ...

    @property
    def couples_rows(self) -> bool:
        """True if a row's contribution depends on other rows; then fragments are joined first."""
        ...

    def init(self, parameters: Tree, expected_size: float) -> State: ...
    def contributions(self, view: View, state: State) -> Sums: ...
    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]: ...
    def after(self, released: Released, state: State) -> tuple[Tree, State]: ...


class RowwiseRule(ABC):
    """Base for rules of the form sum_i h(g_i), where h depends on row i and public state only.

    Subclasses give `needs`, `contributions` and `clipped_norm`.
    """

    needs: Need = Need.ROWS
    couples_rows: ClassVar[bool] = False
    proof: str = ""

    def init(self, parameters: Tree, expected_size: float) -> State:
        return {}

    @abstractmethod
    def contributions(self, view: View, state: State) -> Sums:
        """{"grad": sum_i h(g_i)} over the rows of one fragment."""

    @abstractmethod
    def clipped_norm(self, state: State) -> float:
        """The bound on |h(g_i)|."""

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        sensitivity = Sensitivity.per_sample(self.clipped_norm(state), self.proof)
        return {"grad": Bounded(sums["grad"], sensitivity)}

    def after(self, released: Released, state: State) -> tuple[Tree, State]:
        return released.values["grad"], state


class PerSampleRule(RowwiseRule):
    """h(g_i) = w_i g_i. Subclasses give `weights` and `clipped_norm`: see `flat.py` for one."""

    needs: Need = Need.NORMS | Need.WEIGHTED_SUM

    @abstractmethod
    def weights(self, view: View, state: State) -> Any:
        """(n,) weights, detached, each a function of its own row."""

    def contributions(self, view: View, state: State) -> Sums:
        weights = self.weights(view, state)
        # The last thing asked of the view: an engine that can, frees what it recorded on the way.
        last: Any = getattr(view, "final_sum", view.weighted_sum)
        return {"grad": last(weights)}
