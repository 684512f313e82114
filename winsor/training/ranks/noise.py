"""Noise of large models: each rank draws a slice of the one draw, and all have it all.

Small sums are noised whole on every rank: their noise is drawn ahead, in the background, for less
than it would cost to send it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from winsor.core.noise.slices import DRAWN_AHEAD, SlicedNoise
from winsor.gradients.buffers import as_tensor
from winsor.training.ranks.ranks import Ranks

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
