"""Noise sources for processes that noise one vector together, or that want no thread.

An element's noise is a function of its place in the vector, so slices that several processes noise
are those of one process, bit by bit, for any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from winsor.core.noise.source import AHEAD, NoiseSource
from winsor.core.noise.source import method as noise_method

__all__ = ["DRAWN_AHEAD", "Pieces", "SlicedNoise", "Source", "noise_method", "without_thread"]

DRAWN_AHEAD = AHEAD
"""Values of the largest vector whose noise is drawn ahead, in the background."""

Pieces = Callable[[str, Sequence[Any]], tuple[int, Iterable[tuple[Any, int]]] | None]
"""(stream, leaves) -> size of the whole vector, and arrays with their first places in it: what this
process noises. None where it noises all of the leaves."""

Source = Callable[[bytes], NoiseSource]
"""Builds the noise source of a run from its key."""


class SlicedNoise(NoiseSource):
    """The noise source of one process among several that release one vector.

    Noise is added to each piece before the next one is asked for, so that a generator may pass on
    what was noised.
    """

    def __init__(self, key: bytes, pieces: Pieces) -> None:
        super().__init__(key)
        self._pieces = pieces
        self._slices = NoiseSource(key, prefetch=False)  # what is drawn ahead begins at place 0

    def add_leaves(
        self,
        entry: int,
        stream: str,
        leaves: Sequence[Any],
        std: float,
        *,
        law: str = "gaussian",
        bits: int | None = None,
    ) -> None:
        """Noise this process's pieces of the leaves, or all of them."""
        found = self._pieces(stream, leaves)
        if found is None:
            super().add_leaves(entry, stream, leaves, std, law=law, bits=bits)
            return
        size, pieces = found
        for piece, first in pieces:
            self._slices.add_slice(entry, stream, [piece], std, first, size, law=law, bits=bits)

    def close(self) -> None:
        """Stop both background threads."""
        super().close()
        self._slices.close()


def without_thread(key: bytes) -> NoiseSource:
    """Return a source of the same noise that draws nothing ahead: for many short runs."""
    return NoiseSource(key, prefetch=False)
