"""The view of a batch of a small model that consists of linear maps: see `linear_plan.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from winsor.core.contract import Tree
from winsor.gradients.layers.linear import LinearLayer
from winsor.gradients.outer_maps import OuterMap, arithmetic
from winsor.gradients.piece_view import PieceView
from winsor.gradients.pieces import Outer, Piece, Rows
from winsor.gradients.tree import Layout


class LinearView(PieceView):
    """Norms and one sum for all parameters without pieces; these are made for whoever asks."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        maps: Mapping[LinearLayer, OuterMap],
        losses: Tensor,
        layout: Layout,
    ) -> None:
        super().__init__(parameters, {}, losses, layout)
        self._maps = maps  # empty as soon as there are pieces, or nothing is left

    @property
    def _pieces(self) -> dict[str, Piece]:
        if self._maps:
            self._recorded = dict(self._made())
            self._maps = {}
        return super()._pieces

    def _made(self) -> Iterator[tuple[str, Piece]]:
        for layer, (e, x, _) in self._maps.items():
            left = Rows(e)
            if x is not None and layer.weight is not None:
                yield layer.weight, Outer(left, Rows(x.detach()))
            if layer.bias is not None:
                yield layer.bias, left

    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        if self._maps and self._pieces:  # their squares are float32: rows near its limits again
            self._checked = False
        return super().group_norms(groups)

    def _check(self) -> None:
        if self._checked:
            return
        norms = torch.empty(self._n)
        if self._maps and arithmetic().norms(self._maps.values(), self.raw_losses, norms):
            self._checked, self._norms = True, norms
        else:  # there are pieces already, or a row is to be set to zero
            super()._check()

    def _sum(self, same: Tensor | None, by_name: Mapping[str, Tensor], last: bool) -> Tree:
        if same is None or not self._maps:
            return super()._sum(same, by_name, last)
        tree, n = self._layout.empty(), self._n
        weights = same if same.is_contiguous() else same.contiguous()
        sums = [
            (torch.empty(e.shape[1], n), None if layer.bias is None else tree[layer.bias])
            for layer, (e, _, _) in self._maps.items()
        ]
        arithmetic().scale(self._maps.values(), weights, sums)
        for (layer, (_, x, _)), (scaled, _) in zip(self._maps.items(), sums, strict=True):
            if x is not None and layer.weight is not None:
                torch.mm(scaled, x, out=tree[layer.weight])
        self._spent = last
        if last:
            self._maps = {}
        return tree
