"""Views for rules that need no norms: losses, totals, and sums with weights known from the losses.

    PlainView    sum_i g_i        plain autograd, nothing recorded
    DirectView   sum_i w_i g_i    recorded; one backward pass of sum_i w_i loss_i, in which each
                                  layer adds up its weight gradient at once, as plain training does

Guarantee
---------
`DirectView`: a sum that is not finite, or suspiciously large, is computed again from recorded
rows, where the rows that are to blame contribute zero. They are told apart row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from winsor.core.contract import ProtocolError, Tree
from winsor.gradients.backward import gradients
from winsor.gradients.tree import Layout
from winsor.gradients.view import Directions, View

SUSPICIOUS = 1e12


class LossesView:
    """What both views share: losses, and the refusal of anything per-sample."""

    def __init__(self, parameters: Mapping[str, Tensor], losses: Tensor) -> None:
        self._parameters = parameters
        self._graph = losses
        self._loss = losses.detach()

    @property
    def size(self) -> int:
        return len(self._loss)

    @property
    def neutralised(self) -> int:
        return self.size - int(self._loss.isfinite().sum())

    def losses(self) -> Tensor:
        return torch.where(self._loss.isfinite(), self._loss, 0.0)

    def norms(self) -> Tensor:
        raise _refusal("norms")

    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        raise _refusal("group_norms")

    def sketch(self, directions: Directions) -> Tensor:
        raise _refusal("sketch")

    def map_sum(self, f: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Tree:
        raise _refusal("map_sum")

    def total(self) -> Tree:
        raise _refusal("total")

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        raise _refusal("weighted_sum")


class PlainView(LossesView):
    """Losses and totals by autograd."""

    def __init__(self, parameters: Mapping[str, Tensor], losses: Tensor, layout: Layout) -> None:
        super().__init__(parameters, losses)
        self._layout = layout

    def total(self) -> Tree:
        parameters = tuple(self._parameters.values())
        found = gradients([self._graph], [torch.ones_like(self._loss)], parameters)
        return self._layout.packed(
            [
                torch.zeros_like(p) if g is None else g
                for g, p in zip(found, parameters, strict=True)
            ]
        )


class DirectView(LossesView):
    """Weighted sums by one backward pass each. ``record`` gives the full view when in doubt."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        losses: Tensor,
        sweep: Callable[[Tensor], Tree],
        record: Callable[[], View],
    ) -> None:
        super().__init__(parameters, losses)
        self._sweep = sweep
        self._record = record
        self._full: View | None = None

    @property
    def neutralised(self) -> int:
        return super().neutralised if self._full is None else self._full.neutralised

    def total(self) -> Tree:
        return self._sweep(torch.ones_like(self._loss))

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        if self._full is not None:
            return self._full.weighted_sum(weights)
        if not isinstance(weights, Tensor):
            distinct = {id(w): w for w in weights.values()}
            sums = {key: self.weighted_sum(w) for key, w in distinct.items()}
            return {name: sums[id(weights[name])][name] for name in self._parameters}
        if self.size == 0 or self._loss.abs().max().item() < SUSPICIOUS:
            tree = self._sweep(weights.to(self._loss.dtype))
            largest = torch.stack([leaf.abs().amax() for leaf in tree.values() if leaf.numel()])
            if largest.max().item() < SUSPICIOUS:
                return tree
        self._full = self._record()
        return self._full.weighted_sum(weights)


def _refusal(method: str) -> ProtocolError:
    return ProtocolError(
        f"view.{method} must be announced before the forward pass. Got a rule whose `needs` do "
        "not list it, so it was not recorded. Add the flag to the rule's `needs`."
    )
