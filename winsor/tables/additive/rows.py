"""What a fit asks of private rows: sums over them, and nothing else.

`fitting.py` is written against `Rows`. `Table` holds them all; `winsor.tables.partitions.additive`
adds up what the tables of partitions say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from winsor.tables.additive import pairs
from winsor.tables.additive.descent import cut_rows
from winsor.tables.additive.knot_counts import hat_sums
from winsor.tables.additive.losses import Loss
from winsor.tables.additive.terms import Design
from winsor.tables.linear.residual_cut import counts_in_cells
from winsor.tables.ranges.distribution import Distribution
from winsor.tables.ranges.zoom import counts_between

Array = NDArray[np.float64]
LossOf = Callable[[Array, list[Distribution]], Loss]
"""The loss of rows with these values, given the released distributions of the values."""


class Rows(Protocol):
    """Sums over all rows. After `begin`, residuals are those of the loss."""

    @property
    def n(self) -> int: ...

    def begin(self, loss_of: LossOf, found: list[Distribution]) -> Loss: ...

    def counted(self, edges: Sequence[Array], width: int) -> Array: ...

    def hats(self, knots: Sequence[Array], width: int) -> Array: ...

    def gradient(self, design: Design, parameters: Array, clip: float) -> Array: ...

    def residual_counts(self, design: Design, parameters: Array) -> Array: ...

    def pair_sums(
        self, design: Design, parameters: Array, looked_at: Sequence[pairs.Pair], clip: float
    ) -> Array: ...

    def residual_sum(self, design: Design, parameters: Array, cut: float) -> Array: ...


class Table:
    """Rows in one place: features, and the values that the loss is of, such as a target."""

    def __init__(self, features: Array, values: Array) -> None:
        self.features, self.values = features, values
        self.n = len(features)
        self._design: Design | None = None

    def begin(self, loss_of: LossOf, found: list[Distribution]) -> Loss:
        self.loss = loss_of(self.values, found)
        return self.loss

    def counted(self, edges: Sequence[Array], width: int) -> Array:
        """Cells of the features, and of as many values as there are edges for."""
        table = np.c_[self.features, self.values][:, : len(edges)]
        return counts_between(table, edges, width)

    def hats(self, knots: Sequence[Array], width: int) -> Array:
        return hat_sums(self.features, knots, width)

    def gradient(self, design: Design, parameters: Array, clip: float) -> Array:
        """sum_i phi_i r_i', residuals cut to length ``clip``."""
        cut = cut_rows(self._residuals(design, parameters), clip)
        return np.ascontiguousarray(self._across @ cut)

    def residual_counts(self, design: Design, parameters: Array) -> Array:
        return counts_in_cells(self._residuals(design, parameters)[:, 0])

    def pair_sums(
        self, design: Design, parameters: Array, looked_at: Sequence[pairs.Pair], clip: float
    ) -> Array:
        cut = cut_rows(self._residuals(design, parameters), clip)
        return pairs.pair_sums(self.features, design, looked_at, cut)

    def residual_sum(self, design: Design, parameters: Array, cut: float) -> Array:
        """(1,) sum of residuals, cut."""
        residuals = cut_rows(self._residuals(design, parameters), cut)
        return np.sum(residuals, keepdims=True).ravel()

    def _residuals(self, design: Design, parameters: Array) -> Array:
        if design is not self._design:  # a descent asks for the same one at every step
            self._design, self._rows = design, design.rows(self.features)
            self._across = self._rows.T.tocsr()
        return self.loss.residual(self._rows @ parameters)
