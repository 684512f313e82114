"""Private rows as methods see them: in one table or in partitions, as sums over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from winsor.tables.ranges.zoom import counts_between

Array = NDArray[np.float64]


class Rows(Protocol):
    """Rows of which a method asks bounded sums. `winsor.tables.partitions.Passes` is one more."""

    @property
    def n(self) -> int:
        """The number of rows, which is public."""

    @property
    def columns(self) -> int:
        """The number of columns."""

    @property
    def digest(self) -> Any:
        """What a key from a seed belongs to: other rows, other noise."""

    def sum(self, bounded: Callable[[Array], Array]) -> Array:
        """Return the sum of ``bounded(rows)`` over all rows. It must survive pickling."""

    def counted(self, edges: Sequence[Array], width: int) -> Array:
        """Count rows below, between and above the ``edges`` of each column."""


@dataclass(frozen=True)
class TableRows:
    """`Rows` of a table in memory."""

    table: Array

    @property
    def n(self) -> int:
        """The number of rows."""
        return len(self.table)

    @property
    def columns(self) -> int:
        """The number of columns."""
        return int(self.table.shape[1])

    @property
    def digest(self) -> Array:
        """The table itself."""
        return self.table

    def sum(self, bounded: Callable[[Array], Array]) -> Array:
        """Return ``bounded`` of the table."""
        return bounded(self.table)

    def counted(self, edges: Sequence[Array], width: int) -> Array:
        """Count rows below, between and above the ``edges`` of each column."""
        return counts_between(self.table, edges, width)
