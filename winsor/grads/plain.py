"""The view for rules that need no per-sample gradient: plain backward passes, nothing recorded.

    total          sum_i g_i          one backward pass
    weighted_sum   sum_i w_i g_i      one backward pass of sum_i w_i loss_i

Guarantee
---------
A weighted sum that is not finite, or suspiciously large, is computed again without the rows that
are to blame, found one by one; a row whose loss is not finite never takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from winsor.contract import ProtocolError, Tree
from winsor.grads.view import Directions

SUSPICIOUS = 1e12


class PlainView:
    """Losses, totals and weighted sums by autograd. Anything per-sample is refused."""

    def __init__(self, parameters: Mapping[str, Tensor], losses: Tensor) -> None:
        self._parameters = parameters
        self._graph = losses
        self._loss = losses.detach()
        self._kept: Tensor | None = None

    @property
    def size(self) -> int:
        return len(self._loss)

    @property
    def neutralised(self) -> int:
        finite = self._loss.isfinite() if self._kept is None else self._kept
        return self.size - int(finite.sum())

    def losses(self) -> Tensor:
        return torch.where(self._loss.isfinite(), self._loss, 0.0)

    def total(self) -> Tree:
        return self._backward(torch.ones_like(self._loss))

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor]) -> Tree:
        if isinstance(weights, Tensor):
            return self._weighted(weights)
        out: Tree = {}
        for name in self._parameters:
            out[name] = self._weighted(weights[name])[name]
        return out

    def _weighted(self, weights: Tensor) -> Tree:
        w = weights.to(self._loss.dtype)
        if self.size == 0:
            return self._backward(w)
        if self._kept is None and self._loss.abs().max().item() < SUSPICIOUS:
            tree = self._backward(w)
            largest = torch.stack([leaf.abs().amax() for leaf in tree.values() if leaf.numel()])
            if largest.max().item() < SUSPICIOUS:
                return tree
        kept = self._find_kept()
        # Rows to drop must not enter the backward pass at all: 0 * inf is NaN.
        total = {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        for i in kept.nonzero()[:, 0].tolist():
            for name, g in self._backward(w[i], self._graph[i]).items():
                total[name] += g
        return total

    def _find_kept(self) -> Tensor:
        if self._kept is None:
            self._kept = self._loss.isfinite()
            for i in self._kept.nonzero()[:, 0].tolist():
                row = self._backward(self._loss.new_ones(()), self._graph[i])
                square = sum(float(g.double().square().sum()) for g in row.values())
                largest = torch.finfo(next(iter(row.values())).dtype).max
                self._kept[i] = square**0.5 <= largest
        return self._kept

    def _backward(self, seed: Tensor, losses: Tensor | None = None) -> Tree:
        losses = self._graph if losses is None else losses
        leaves = list(self._parameters.values())
        found = torch.autograd.grad(
            losses, leaves, seed, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return dict(zip(self._parameters, found, strict=True))

    def norms(self) -> Tensor:
        raise self._refusal("norms")

    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        raise self._refusal("group_norms")

    def sketch(self, directions: Directions) -> Tensor:
        raise self._refusal("sketch")

    def map_sum(self, f: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Tree:
        raise self._refusal("map_sum")

    def _refusal(self, method: str) -> ProtocolError:
        return ProtocolError(
            f"view.{method} must be announced before the forward pass. Got a rule whose `needs` "
            "do not list it, so nothing was recorded. Add the flag to the rule's `needs`."
        )
