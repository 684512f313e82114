"""Rows whose gradients are the same at every point: the linear losses of paper 2's lower bound.

Every step of a descent on l(w, z) = -<w, z> asks for the sum of the same clipped rows, whatever w
is. Here such a sum is computed once per group of rows and remembered, so that twenty steps cost one
pass over the data; only the noise of a step is new. Methods of `winsor.tables.linear` take it for a
`Design`, and release what they would have released (up to the order of a sum).

The mean of the rows is moved along one coordinate without a copy (`moved`): 80,000 rows of 1,000
numbers are 640 MB, and there are five sizes of the mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from winsor.tables.design import Design, DesignRows

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


class FixedRows(DesignRows):
    """Some rows, whose scores nobody needs and whose sum is remembered."""

    __slots__ = ("_picked", "_residual", "_total")

    def __init__(self, x: Array, picked: Indices | None) -> None:
        super().__init__(x, False, 1.0)
        self._picked = picked
        self._residual: Array | None = None
        self._total: Array | None = None

    def scores(self, theta: Array) -> Array:
        """Zeros: the loss is linear, so that no residual depends on them."""
        return np.zeros(len(self.x) if self._picked is None else len(self._picked))

    def pull(self, residual: Array) -> Array:
        """sum_i r_i x_i, computed anew only for other residuals."""
        if self._total is None or not np.array_equal(residual, self._residual):
            rows = self.x if self._picked is None else self.x.take(self._picked, axis=0)
            self._residual, self._total = residual.copy(), residual @ rows
        return self._total.copy()


class FixedDesign(Design):
    """All rows, and the groups of them that were asked for before."""

    def __init__(self, x: Array, norms: Array) -> None:
        self.x, self.intercept, self.unit = x, False, 1.0
        self.n, self.d = x.shape
        self.size = self.d
        self.norms = norms
        self._whole = FixedRows(x, None)
        self._groups: dict[int, tuple[Indices, FixedRows]] = {}

    def rows(self, indices: Indices) -> DesignRows:
        """By the identity of ``indices``, which is kept, so that no other array can have it."""
        if id(indices) not in self._groups:
            self._groups[id(indices)] = indices, FixedRows(self.x, indices)
        return self._groups[id(indices)][1]

    def chunks(self, numbers: int = 0) -> Iterator[tuple[slice, DesignRows]]:
        """One piece: a sum that is kept need not fit into a cache."""
        yield slice(0, self.n), self._whole


@contextmanager
def moved(rows: Array, squares: Array, shift: float) -> Iterator[Array]:
    """The row norms while the first coordinate of every row is larger by ``shift``.

    ``squares`` are |row|^2 before; afterwards the rows are what they were, bit for bit.
    """
    first = rows[:, 0].copy()
    rows[:, 0] += shift
    try:
        yield np.sqrt(np.maximum(squares - first**2 + rows[:, 0] ** 2, 0.0))
    finally:
        rows[:, 0] = first
