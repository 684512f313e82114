"""Several passes over the same partitions: one count of rows, one key, one total at a time.

A method that looks twice (ranges first, sums inside them later) is calibrated for n rows, so every
pass must find as many. The first one also takes a digest of the rows, which a key from a seed
belongs to: with other rows the noise is another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.core.contract import ProtocolError
from winsor.tables.partitions.source import Partitions
from winsor.tables.ranges.zoom import counts_between

Array = NDArray[np.float64]

_WORDS = 4
_BITS = 16  # sums of so many bits of 2^37 rows are exact in float64


class Passes:
    """The rows of ``partitions`` as often as a method needs them."""

    def __init__(self, partitions: Partitions) -> None:
        self.partitions = partitions
        self.columns = partitions.columns
        self.n, self.digest = partitions.sum(row_digest)

    def sum(self, bounded: Callable[[Array], Array]) -> Array:
        """The sum of ``bounded(rows)``, over as many rows as the first pass has seen."""
        n, total = self.partitions.sum(bounded)
        if n != self.n:
            raise ProtocolError(
                f"partitions must hold the same rows in every pass. Got {n} rows after {self.n}. "
                "Write the table down before, or load it from something that does not change."
            )
        return total

    def counted(self, edges: Sequence[Array], width: int) -> Array:
        """How many rows stand between the edges of each column, for `Zoom.release_counts`."""
        return self.sum(CellCounts(tuple(edges), width))


@dataclass(frozen=True)
class CellCounts:
    """(columns, width) counts of some rows."""

    edges: tuple[Array, ...]
    width: int

    def __call__(self, rows: Array) -> Array:
        return counts_between(rows, self.edges, self.width)


def row_digest(rows: Array) -> Array:
    """Sums of hashes of rows: the same wherever the cuts between partitions are."""
    bits = np.ascontiguousarray(rows, dtype=np.float64).view(np.uint64)
    mixed = np.zeros(len(bits), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in range(bits.shape[1]):  # in turn, so that swapped columns are other rows
            mixed = (mixed ^ bits[:, column]) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(32)
    lowest = np.uint64((1 << _BITS) - 1)
    words = [(mixed >> np.uint64(_BITS * word)) & lowest for word in range(_WORDS)]
    return np.array([word.sum(dtype=np.uint64) for word in words], dtype=np.float64)
