"""Any metric for each of a public list of groups, for the price of one.

A row is in one group and adds to that group's block only, so the bound is that of one block. Where
a metric divides by the number of rows, the number in the group is private: it is counted, at half
the metric's own weight, in the same release.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from winsor.metrics.metric import Array, Columns, Metric, Size, cells_of

_COUNT = 0.5


class ByGroup(Metric):
    """``metric`` on the rows of each group; reads as a dict from group to estimate.

    Rows of groups that are not on the public list contribute nothing.
    """

    asks_for_size = False

    def __init__(self, metric: Metric, groups: Sequence[Any]) -> None:
        self.metric = metric
        self.groups = list(groups)
        self._count = _COUNT * metric.bound if metric.asks_for_size else 0.0

    @property
    def width(self) -> int:
        """Length of the sum."""
        return len(self.groups) * self._block

    @property
    def _block(self) -> int:
        return self.metric.width + (1 if self._count else 0)

    @property
    def bound(self) -> float:
        """Largest norm of a row's contribution: that of one block."""
        return math.hypot(self.metric.bound, self._count)

    @property
    def replace(self) -> float:
        """Within a group the counts cancel; across groups both blocks change."""
        return max(self.metric.replace, math.sqrt(2) * self.bound)

    @property
    def proof(self) -> str:
        """Why `bound` holds."""
        return f"a row is in one group's block; there, {self.metric.proof}"

    def total(self, columns: Columns) -> Array:
        """Return the sums of all groups, one after the other."""
        cells = cells_of(columns.need("groups"), self.groups)
        blocks = []
        for index in range(len(self.groups)):
            members = cells == index
            count = [self._count * np.count_nonzero(members)] if self._count else []
            blocks.append(np.append(self.metric.total(columns.where(members)), count))
        return np.concatenate(blocks)

    def read(self, total: Array, std: float, size: Size, level: float) -> dict[Any, Any]:
        """Read the block of each group."""
        found = {}
        for group, block in zip(self.groups, total.reshape(-1, self._block), strict=True):
            sums, inside = block, size
            if self._count:
                sums = block[:-1]
                inside = Size(float(block[-1]) / self._count, std / self._count)
            found[group] = self.metric.read(sums, std, inside, level)
        return found
