"""Several fragments as one view, for rules that must see all rows of a logical batch at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from winsor.core.contract import Tree
from winsor.gradients.view import Directions, View


class JoinedView:
    """The concatenation of fragments. Holds what each fragment holds, so memory adds up."""

    def __init__(self, views: Sequence[View]) -> None:
        self._views = list(views)
        self._sizes = [view.size for view in self._views]

    @property
    def size(self) -> int:
        return sum(self._sizes)

    @property
    def neutralised(self) -> int:
        return sum(view.neutralised for view in self._views)

    def losses(self) -> Tensor:
        return torch.cat([view.losses() for view in self._views])

    def norms(self) -> Tensor:
        return torch.cat([view.norms() for view in self._views])

    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        return torch.cat([view.group_norms(groups) for view in self._views])

    def sketch(self, directions: Directions) -> Tensor:
        return torch.cat([view.sketch(directions) for view in self._views])

    def total(self) -> Tree:
        return _sum([view.total() for view in self._views])

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        if isinstance(weights, Tensor):
            pieces = weights.split(self._sizes)
            return _sum([v.weighted_sum(w) for v, w in zip(self._views, pieces, strict=True)])
        split = {name: w.split(self._sizes) for name, w in weights.items()}
        return _sum(
            [
                view.weighted_sum({name: pieces[i] for name, pieces in split.items()})
                for i, view in enumerate(self._views)
            ]
        )

    def map_sum(self, f: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Tree:
        return _sum([view.map_sum(f) for view in self._views])


def _sum(trees: Sequence[Tree]) -> Tree:
    first, *rest = trees
    for tree in rest:
        torch._foreach_add_([first[name] for name in tree], list(tree.values()))
    return first
