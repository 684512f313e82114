"""All rows of a logical batch at once, for rules whose rows depend on each other.

Losses, norms and sketches are gathered; sums are made by each rank of its own rows and added up.
Every rank then knows the same sums, in the order of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from winsor.core.contract import Tree
from winsor.gradients.view import BaseView, Directions, View
from winsor.training.ranks.ranks import Ranks


class RanksView(BaseView):
    """The `View` of the rows of all ranks. Each of its answers takes part of every rank."""

    def __init__(self, own: View, ranks: Ranks) -> None:
        self._own, self._ranks = own, ranks
        self._sizes = ranks.row_counts(own.size)
        self._first = sum(self._sizes[: ranks.rank])

    @property
    def size(self) -> int:
        return sum(self._sizes)

    @property
    def neutralised(self) -> int:
        return self._own.neutralised  # each rank counts its own

    def losses(self) -> Tensor:
        return self._ranks.all_rows(self._own.losses())

    def norms(self) -> Tensor:
        return self._ranks.all_rows(self._own.norms())

    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        return self._ranks.all_rows(self._own.group_norms(groups))

    def sketch(self, directions: Directions) -> Tensor:
        return self._ranks.all_rows(self._own.sketch(directions))

    def total(self) -> Tree:
        return self._sum(self._own.total())

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        own = (
            self._part(weights)
            if isinstance(weights, Tensor)
            else {name: self._part(w) for name, w in weights.items()}
        )
        return self._sum(self._own.weighted_sum(own, last))

    def map_sum(self, f: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Tree:
        return self._sum(self._own.map_sum(f))

    def _part(self, weights: Tensor) -> Tensor:
        return weights[self._first : self._first + self._own.size]

    def _sum(self, tree: Tree) -> Tree:
        with torch.no_grad():
            summed: Tree = self._ranks.add_up({"sum": tree})["sum"]
        return summed
