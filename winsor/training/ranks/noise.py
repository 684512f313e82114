"""Noise of large models: each rank draws a slice of the one draw, and all have it all.

An element's noise is a function of its place, so the slices of the ranks are those of one process,
bit by bit, for any number of ranks. Small sums are noised whole on every rank: their noise is drawn
ahead, in the background, for less than it would cost to send it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from winsor.core.noise.source import AHEAD, NoiseSource
from winsor.gradients.buffers import as_tensor
from winsor.training.ranks.ranks import Ranks

SLICED_FROM = AHEAD
"""Sums of more values than can be drawn ahead are noised in slices."""


class SharedNoise(NoiseSource):
    """The `NoiseSource` of one rank among several that add the same noise to the same sums."""

    def __init__(self, key: bytes, ranks: Ranks) -> None:
        super().__init__(key)
        self._ranks = ranks
        self._slices = NoiseSource(key, prefetch=False)  # what is drawn ahead begins at place 0

    def add_leaves(
        self,
        entry: int,
        stream: str,
        leaves: Sequence[Tensor],
        std: float,
        *,
        law: str = "gaussian",
        bits: int | None = None,
    ) -> None:
        leaves = [as_tensor(leaf) for leaf in leaves]  # correlated noise covers NumPy arrays
        size = sum(leaf.numel() for leaf in leaves)
        if size <= SLICED_FROM:
            super().add_leaves(entry, stream, leaves, std, law=law, bits=bits)
            return
        first = 0
        for leaf in leaves:
            flat = leaf.detach().reshape(-1)  # a copy, where the leaf is not in one piece
            own = self._ranks.slice_of(flat.numel())
            part, place = flat[own], first + own.start
            self._slices.add_slice(entry, stream, [part], std, place, size, law=law, bits=bits)
            self._ranks.gather_slices(flat)
            if flat.data_ptr() != leaf.data_ptr():
                leaf.detach().copy_(flat.view_as(leaf))
            first += leaf.numel()

    def close(self) -> None:
        super().close()
        self._slices.close()
