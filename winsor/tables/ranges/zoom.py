"""The distribution of every column, by a few joint histograms that zoom in on where the rows are.

    round 1   cells of a public grid (signed, in equal ratios; or of the bounds that were given)
    round 2.. cells of equal mass by what the round before released, and quarters of those cells
    each      counts of all columns in one vector, plus N(0, s^2)

A row stands in one cell per column, so k columns move the vector by sqrt(k) however many cells
there are. Cells that noise alone could have filled count as empty, or a phantom at 1e12 would
stretch every range; in the tails that winsorises. Three rounds of 32 cells tell the year 1990 from
2000 and a claim of 10 from one of 10 million, in any unit, without a look at the data.

Guarantee
---------
Given the edges, which are public or come from released counts, a record adds 1 to one cell of each
column: sensitivity sqrt(k) when it joins or leaves, sqrt(2k) when it changes all its cells. Columns
that an earlier round recognised as indicators count as zeros, whatever rows hold, and do not move.
Every round is one Gaussian release; all are paid for before the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import whole
from winsor.core.contract import ConfigurationError, Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment
from winsor.tables.ranges.distribution import ALONE, Distribution
from winsor.tables.ranges.grid import indicator, signed_log_grid, with_narrow_cells

Array = NDArray[np.float64]
Counted = Callable[[Sequence[Array], int], Array]

PROOF = "histograms of k columns: a record adds 1 to one cell of each (sqrt(k) in L2)"


@dataclass(frozen=True)
class Zoom:
    """A plan for ``columns`` columns: ``rounds`` joint histograms of ``cells`` cells each."""

    columns: int
    cells: int = 32
    rounds: int = 3
    indicators: bool = False
    """Whether columns of zeros and ones are recognised, in the first round."""

    def __post_init__(self) -> None:
        whole("columns", self.columns)
        whole("cells", self.cells, 2)
        whole("rounds", self.rounds)

    @property
    def sensitivity(self) -> Sensitivity:
        """How far a row moves the counts of a round."""
        return _sensitivity(self.columns)

    def payment(self, n: int, scale: float = 1.0) -> Payment:
        """Return the line of a plan, with ``scale`` times the noise multiplier that is looked
        for."""
        return Payment(FullBatch(n), self.sensitivity, self.rounds, scale)

    def release(
        self,
        table: Array,
        door: PrepaidDoor,
        mechanism: Gaussian,
        start: Sequence[Array | None] | None = None,
        n: int | None = None,
    ) -> list[Distribution]:
        """Release one distribution per column of ``table`` (n, k).

        ``start`` gives public edges to begin with, column by column; None is the signed grid. ``n``
        is the public number of rows, where a plan has stated it.
        """
        if table.ndim != 2 or table.shape[1] != self.columns:
            raise ConfigurationError(
                f"the table must have {self.columns} columns. Got shape {table.shape} instead."
            )

        def counted(edges: Sequence[Array], width: int) -> Array:
            return counts_between(table, edges, width)

        n = len(table) if n is None else n
        return self.release_counts(counted, n, door, mechanism, start)

    def release_counts(
        self,
        counted: Counted,
        n: int,
        door: PrepaidDoor,
        mechanism: Gaussian,
        start: Sequence[Array | None] | None = None,
    ) -> list[Distribution]:
        """Release where rows are out of reach: ``counted(edges, width)`` says how many of the ``n``
        stand in each cell, as `counts_between` does."""
        public = [None] * self.columns if start is None else list(start)
        edges = [signed_log_grid() if each is None else np.asarray(each) for each in public]
        if self.indicators:
            edges = [with_narrow_cells(each) for each in edges]
        found: list[Distribution] = []
        looked = np.ones(self.columns, dtype=bool)
        for number in range(self.rounds):  # the number of releases never depends on their values
            width = max(map(len, edges)) + 1
            counts = self._shown(counted(edges, width), looked)
            moved = _sensitivity(max(int(looked.sum()), 1))
            receipt = door.pay(mechanism, FullBatch(n), moved, 1, counts.shape)
            counts = receipt.release(counts)
            for column in np.flatnonzero(looked):
                own, row = edges[column], counts[column, : len(edges[column]) + 1]
                each = self._read(own, row, receipt.std, n, first=number == 0)
                found[column : column + 1] = [each]
                looked[column] = not each.indicator
            # Cells so many that each, if rows are where they seem, stands out of the noise.
            resolved = int(min(self.cells, max(2.0, n / (2 * ALONE * receipt.std))))
            edges = [each.finer(resolved) for each in found]
        return found

    def _shown(self, counts: Array, looked: NDArray[np.bool_]) -> Array:
        """Columns that are recognised take no part: zeros, whatever their rows are."""
        return np.where(looked[:, None], counts, 0.0)

    def _read(self, edges: Array, counts: Array, std: float, n: int, first: bool) -> Distribution:
        known = indicator(edges, counts, std, n) if first and self.indicators else None
        return known or Distribution.of(edges, counts, std, n, finer=not first)


def _sensitivity(columns: int) -> Sensitivity:
    return Sensitivity(math.sqrt(columns), math.sqrt(2 * columns), PROOF)


def counts_between(table: Array, edges: Sequence[Array], width: int) -> Array:
    """Count the rows below, between and above the edges of each column."""
    counts = np.zeros((len(edges), width))
    for number, own in enumerate(edges):
        places = np.searchsorted(own, table[:, number], side="right")
        counts[number] = np.bincount(places, minlength=width)
    return counts
