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

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from winsor.core.contract import Tree
from winsor.gradients.autograd import gradients
from winsor.gradients.buffers import Layout
from winsor.gradients.view import View

SUSPICIOUS = 1e12


class LossesView(View):
    """What both views share: the losses with their graph."""

    def __init__(self, parameters: Mapping[str, Tensor], losses: Tensor) -> None:
        self._parameters = parameters
        self._graph = losses
        self.raw_losses = losses.detach()

    def total(self) -> Tree:
        """Refuse: subclasses know how to add up gradients."""
        self._refuse("total")


class PlainView(LossesView):
    """Losses and totals by autograd."""

    def __init__(self, parameters: Mapping[str, Tensor], losses: Tensor, layout: Layout) -> None:
        super().__init__(parameters, losses)
        self._layout = layout

    def total(self) -> Tree:
        """Return sum_i g_i by one plain backward pass."""
        parameters = tuple(self._parameters.values())
        found = gradients([self._graph], [torch.ones_like(self.raw_losses)], parameters)
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
        """Rows set to zero; only losses are looked at until a sum is suspicious."""
        return super().neutralised if self._full is None else self._full.neutralised

    def total(self) -> Tree:
        """Return sum_i g_i by one backward pass."""
        return self._sweep(torch.ones_like(self.raw_losses))

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        """Return sum_i w_i g_i by one backward pass, repeated row by row if it is suspicious."""
        if self._full is not None:
            return self._full.weighted_sum(weights)
        if not isinstance(weights, Tensor):
            distinct = {id(w): w for w in weights.values()}
            sums = {key: self.weighted_sum(w) for key, w in distinct.items()}
            return {name: sums[id(weights[name])][name] for name in self._parameters}
        if self.size == 0 or self.raw_losses.abs().max().item() < SUSPICIOUS:
            tree = self._sweep(weights.to(self.raw_losses.dtype))
            largest = torch.stack([leaf.abs().amax() for leaf in tree.values() if leaf.numel()])
            if largest.max().item() < SUSPICIOUS:
                return tree
        self._full = self._record()
        return self._full.weighted_sum(weights)
