"""What several ranks share: the view of all rows of a logical batch, and the noise of large models.

Rules whose rows depend on each other see all rows at once: losses, norms and sketches are gathered;
sums are made by each rank of its own rows and added up. Every rank then knows the same sums, in the
order of one process.

Of large models each rank draws a slice of the one draw of noise. An element's noise is a function
of its place, so the slices of the ranks are those of one process, bit by bit, for any number of
ranks. Small sums are noised whole on every rank: their noise is drawn ahead, in the background, for
less than it would cost to send it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from winsor.core.contract import Tree
from winsor.core.noise.slices import DRAWN_AHEAD, SlicedNoise
from winsor.gradients.buffers import as_tensor
from winsor.gradients.view import Directions, View
from winsor.training.ranks.ranks import Ranks


class RanksView(View):
    """The `View` of the rows of all ranks. Each of its answers takes part of every rank."""

    def __init__(self, own: View, ranks: Ranks) -> None:
        self._own, self._ranks = own, ranks
        self._sizes = ranks.row_counts(own.size)
        self._first = sum(self._sizes[: ranks.rank])

    @property
    def size(self) -> int:
        """Rows of all ranks."""
        return sum(self._sizes)

    @property
    def neutralised(self) -> int:
        """Neutralised rows of this rank."""
        return self._own.neutralised  # each rank counts its own

    def losses(self) -> Tensor:
        """Return losses of all ranks, in their order."""
        return self._ranks.all_rows(self._own.losses())

    def norms(self) -> Tensor:
        """Return norms of all ranks, in their order."""
        return self._ranks.all_rows(self._own.norms())

    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        """Return norms over groups of parameters, of all ranks."""
        return self._ranks.all_rows(self._own.group_norms(groups))

    def sketch(self, directions: Directions) -> Tensor:
        """Return inner products of all ranks, in their order."""
        return self._ranks.all_rows(self._own.sketch(directions))

    def total(self) -> Tree:
        """Sum over the rows of all ranks."""
        return self._sum(self._own.total())

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        """Return the weighted sum over all ranks; each weighs its own rows."""
        own = (
            self._part(weights)
            if isinstance(weights, Tensor)
            else {name: self._part(w) for name, w in weights.items()}
        )
        return self._sum(self._own.weighted_sum(own, last))

    def map_sum(self, f: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Tree:
        """Sum of mapped rows over all ranks."""
        return self._sum(self._own.map_sum(f))

    def _part(self, weights: Tensor) -> Tensor:
        return weights[self._first : self._first + self._own.size]

    def _sum(self, tree: Tree) -> Tree:
        with torch.no_grad():
            summed: Tree = self._ranks.add_up({"sum": tree})["sum"]
        return summed


SLICED_FROM = DRAWN_AHEAD
"""Sums of more values than can be drawn ahead are noised in slices."""


def shared_noise(key: bytes, ranks: Ranks) -> SlicedNoise:
    """Return the noise source of one rank among several that add the same noise to equal sums."""
    return SlicedNoise(key, functools.partial(_pieces, ranks))


def _pieces(
    ranks: Ranks, stream: str, leaves: Sequence[Any]
) -> tuple[int, Iterator[tuple[Tensor, int]]] | None:
    leaves = [as_tensor(leaf) for leaf in leaves]  # correlated noise covers NumPy arrays
    size = sum(leaf.numel() for leaf in leaves)
    return None if size <= SLICED_FROM else (size, _slices(ranks, leaves))


def _slices(ranks: Ranks, leaves: Sequence[Tensor]) -> Iterator[tuple[Tensor, int]]:
    """Yield this rank's slice of each leaf; once it is noised, gather those of the others."""
    first = 0
    for leaf in leaves:
        flat = leaf.detach().reshape(-1)  # a copy, where the leaf is not in one piece
        own = ranks.slice_of(flat.numel())
        yield flat[own], first + own.start
        ranks.gather_slices(flat)
        if flat.data_ptr() != leaf.data_ptr():
            leaf.detach().copy_(flat.view_as(leaf))
        first += leaf.numel()
