"""Rows that belong together: visits of a patient, texts of an author, views of an image.

A unit is a stretch of consecutive rows of a physical batch. Its gradient is the sum of theirs, and
that is what a rule bounds. To norms and sums a unit is what a time axis is: more places at which
the same weight was used. So no gradient of a single row is formed that was not formed before.

`ParameterRows.per_unit` says how each kind of piece is told of units; norms and sums both start
from the pieces of units.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from winsor.core.contract import ConfigurationError, Tree
from winsor.gradients.arithmetic import wide
from winsor.gradients.parameter_rows import ParameterRows
from winsor.gradients.plain import PlainView
from winsor.gradients.recorded_view import RecordedView
from winsor.gradients.rows import RowsView
from winsor.gradients.view import View


class Units:
    """``sizes[u]`` consecutive rows are unit u."""

    def __init__(self, sizes: Sequence[int] | Tensor) -> None:
        self.sizes = torch.as_tensor(sizes, dtype=torch.long)
        self.n = len(self.sizes)
        self.offsets = torch.cat([self.sizes.new_zeros(1), self.sizes.cumsum(0)])
        self.rows = int(self.offsets[-1])
        self.owner = torch.repeat_interleave(torch.arange(self.n), self.sizes)
        self.longest = int(self.sizes.max()) if self.n else 0
        self.even = self.n * self.longest == self.rows

    def spread(self, values: Tensor) -> Tensor:
        """Map (units, ...) to (rows, ...): what each row's unit has."""
        return values[self.owner.to(values.device)]

    def summed(self, rows: Tensor) -> Tensor:
        """Map (rows, ...) to (units, ...) by adding up, one row after the other."""
        out = rows.new_zeros((self.n, *rows.shape[1:]))
        return out.index_add_(0, self.owner.to(rows.device), rows)

    def padded(self, rows: Tensor, fill: float = 0) -> Tensor:
        """Map (rows, T, ...) to (units, longest T, ...), with ``fill`` where a unit has
        fewer rows."""
        if not self.even:
            place = torch.arange(self.rows) - self.offsets[self.owner]
            wide = rows.new_full((self.n * self.longest, *rows.shape[1:]), fill)
            wide[(self.owner * self.longest + place).to(rows.device)] = rows
            rows = wide
        return rows.detach().reshape(self.n, self.longest * rows.shape[1], *rows.shape[2:])

    def together(self, single: ParameterRows) -> RowsOfUnits:
        """Return the sums over each unit of what ``single`` knows of rows, formed a few at
        a time."""
        return RowsOfUnits(single, self)

    def select(self, index: Tensor) -> tuple[Units, Tensor]:
        """Return some of the units, and where their rows are."""
        ends = self.offsets.tolist()
        chosen = [torch.arange(ends[u], ends[u + 1]) for u in index.tolist()]
        return Units(self.sizes[index.cpu()]), torch.cat(chosen) if chosen else index


# --------------------------------------------------------------------------------------- rows


class RowsOfUnits(ParameterRows):
    """G_u = the sum over the rows of unit u of what another piece knows."""

    def __init__(self, single: ParameterRows, units: Units) -> None:
        self.single, self.units = single, units
        self.n, self.shape = units.n, single.shape
        self.places = single.places * units.longest

    def rows(self, start: int, stop: int) -> Tensor:
        """Add up the rows of units ``start`` to ``stop``, one after the other."""
        out = torch.zeros(stop - start, self.shape.numel(), dtype=torch.float64)
        ends = self.units.offsets[start : stop + 1].tolist()
        for u, (first, last) in enumerate(pairwise(ends)):
            for row in range(first, last):  # a unit's bits must not depend on other units
                out[u] += self.single.rows(row, row + 1).view(-1)
        return out.view(-1, *self.shape)

    def gross(self, order: float) -> Tensor:
        """Return (n,) sums of the lengths of the unit's rows."""
        return self.units.summed(self.single.gross(order))

    def select(self, index: Tensor) -> RowsOfUnits:
        """Return rows of the units of ``index``."""
        units, rows = self.units.select(index)
        return RowsOfUnits(self.single.select(rows.to(index.device)), units)

    def where(self, kept: Tensor) -> RowsOfUnits:
        """Set rows of units that are not ``kept`` to zero."""
        return RowsOfUnits(self.single.where(self.units.spread(kept)), self.units)

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        """Write sum_u w_u G_u, every row with its unit's weight."""
        self.single.weighted(None if w is None else self.units.spread(w), out)


# --------------------------------------------------------------------------------------- views


def units_view(view: View, units: Units) -> View:
    """Tell ``view`` of units: the loss of a unit is the sum of its rows' losses too."""
    losses = units.summed(view.raw_losses)
    if isinstance(view, RecordedView):
        with torch.no_grad():
            pieces = {name: piece.per_unit(units) for name, piece in view.recorded.items()}
        return view.with_pieces(pieces, losses)
    if isinstance(view, RowsView):
        return RowsView({name: units.summed(wide(r)) for name, r in view.raw.items()}, losses)
    if isinstance(view, PlainView):
        return UnitLossesView(view, units)
    raise ConfigurationError(
        "rules that bound gradients from the forward pass (Value) see rows, not units. Got "
        f"{type(view).__name__} with units instead. Use another rule, such as Flat."
    )


class UnitLossesView(View):
    """Losses and totals."""

    def __init__(self, single: PlainView, units: Units) -> None:
        self._single = single
        self.raw_losses = units.summed(single.losses())

    @property
    def neutralised(self) -> int:
        """Rows (not units) set to zero because they were not finite."""
        return self._single.neutralised

    def total(self) -> Tree:
        """Sum over all rows."""
        return self._single.total()
