"""Rows that belong together: visits of a patient, texts of an author, views of an image.

A unit is a stretch of consecutive rows of a physical batch. Its gradient is the sum of theirs, and
that is what a rule bounds. To norms and sums a unit is what a time axis is: more places at which
the same weight was used. So no gradient of a single row is formed that was not formed before.

`ParameterRows.per_unit` says how each kind of piece is told of units.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from winsor.core.contract import ConfigurationError, Tree
from winsor.gradients.parameter_rows import (
    CANCELLATION_LIMIT,
    NORM_FLOOR,
    ROWS_AT_ONCE,
    Outer,
    ParameterRows,
    Rows,
    careful,
)
from winsor.gradients.plain import LossesView
from winsor.gradients.recorded_view import RecordedView
from winsor.gradients.rows import RowsView
from winsor.gradients.view import View

FEW_ROWS = 32
"""Rows of a unit up to which the Gram matrices of all layers are added up whole."""


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
        """Map (rows, ...) to (units, ...) by adding up."""
        if self.even:
            return self.folded(rows).sum(1)
        out = rows.new_zeros((self.n, *rows.shape[1:]))
        return out.index_add_(0, self.owner.to(rows.device), rows)

    def folded(self, rows: Tensor) -> Tensor:
        """Map (rows, ...) to (units, longest, ...), where all units are equally long."""
        return rows.view(self.n, self.longest, *rows.shape[1:])

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

    def added_up(self, single: Rows) -> SummedRows:
        """Return the sums over each unit of explicit rows."""
        return SummedRows(single, self)

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

    def rows(self, start: int, stop: int) -> Tensor:
        """Add up the rows of units ``start`` to ``stop``, a chunk of rows at a time."""
        first, last = int(self.units.offsets[start]), int(self.units.offsets[stop])
        size = max(1, ROWS_AT_ONCE // max(1, self.shape.numel()))
        out: Tensor | None = None
        for a in range(first, max(last, first + 1), size):
            rows = self.single.rows(a, min(last, a + size))
            if out is None:
                out = rows.new_zeros((stop - start, *self.shape))
            owner = self.units.owner[a : a + len(rows)] - start
            out.index_add_(0, owner.to(rows.device), rows)
        assert out is not None
        return out

    def select(self, index: Tensor) -> RowsOfUnits:
        """Return rows of the units of ``index``, as float64."""
        units, rows = self.units.select(index)
        return RowsOfUnits(self.single.select(rows.to(index.device)), units)

    def where(self, kept: Tensor) -> RowsOfUnits:
        """Set rows of units that are not ``kept`` to zero."""
        return RowsOfUnits(self.single.where(self.units.spread(kept)), self.units)

    def square(self) -> Tensor:
        """Return (n,) squared norms, not below `NORM_FLOOR` of the squares of the unit's rows."""
        square = super().square()
        doubtful = (square < NORM_FLOOR * self.units.summed(self.single.reach())).nonzero()[:, 0]
        if len(doubtful):
            some = self.select(doubtful)
            apart = some.units.summed(some.single.square()).to(square.dtype)
            square[doubtful] = torch.maximum(square[doubtful], NORM_FLOOR * apart)
        return square

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        """Write sum_u w_u G_u, every row with its unit's weight."""
        self.single.weighted(None if w is None else self.units.spread(w), out)


class SummedRows(Rows):
    """The rows of each unit added up. Sums over units are taken row by row all the same, hence
    norms that do not hide how long the rows were (`NORM_FLOOR`)."""

    __slots__ = ("_apart",)

    def __init__(self, single: Rows, units: Units) -> None:
        super().__init__(units.summed(single.values))
        self._apart = units.summed(single.square())

    def square(self) -> Tensor:
        """Return (n,) squared norms, not below `NORM_FLOOR` of the squares of the unit's rows."""
        return torch.maximum(super().square(), NORM_FLOOR * self._apart)


# --------------------------------------------------------------------------------------- views


def units_view(view: View, units: Units) -> View:
    """Tell ``view`` of units: the loss of a unit is the sum of its rows' losses too."""
    if isinstance(view, RecordedView):
        return RecordedUnitsView(view, units)
    if isinstance(view, RowsView):
        rows = {name: units.summed(values) for name, values in view.raw.items()}
        return RowsView(rows, units.summed(view.raw_losses))
    if isinstance(view, LossesView):
        return UnitLossesView(view, units)
    raise ConfigurationError(
        "rules that bound gradients from the forward pass (Value) see rows, not units. Got "
        f"{type(view).__name__} with units instead. Use another rule, such as Flat."
    )


class RecordedUnitsView(RecordedView):
    """Norms of whole units; sums by the pieces of their rows, each with its unit's weight."""

    def __init__(self, rows: RecordedView, units: Units) -> None:
        super().__init__(rows._parameters, {}, units.summed(rows.raw_losses), rows._layout)
        self._rows, self._units = rows, units
        self._joined = False

    @property
    def _pieces(self) -> dict[str, ParameterRows]:
        if not self._joined:
            self._joined = True
            with torch.no_grad():
                rows = self._rows.recorded.items()
                self._recorded = {name: piece.per_unit(self._units) for name, piece in rows}
        return super()._pieces

    def _total_square(self) -> Tensor | None:
        found = few_places(self._rows.recorded.values(), self._units)
        if found is None:
            return super()._total_square()
        square, diagonal = found
        if torch.sub(square, diagonal, alpha=CANCELLATION_LIMIT).min().item() > 0:
            return square
        return careful(_AllParameters(list(self._pieces.values())), square, diagonal)

    def _sum(self, same: Tensor | None, by_name: Mapping[str, Tensor], last: bool) -> Tree:
        if self._kept is not None:  # the pieces of the units know what is left of them
            return super()._sum(same, by_name, last)
        spread = self._units.spread
        self._spent = last
        if same is not None:
            return self._rows._sum(spread(same), {}, last)
        return self._rows._sum(None, {name: spread(w) for name, w in by_name.items()}, last)


class _AllParameters(ParameterRows):
    """Everything that is known of a unit, for norms over all parameters."""

    def __init__(self, parts: Sequence[ParameterRows]) -> None:
        self.parts, self.n = parts, parts[0].n
        self.shape = torch.Size((sum(part.shape.numel() for part in parts),))

    def rows(self, start: int, stop: int) -> Tensor:
        return torch.cat([part.rows(start, stop).flatten(1) for part in self.parts], dim=1)

    def select(self, index: Tensor) -> _AllParameters:
        return _AllParameters([part.select(index) for part in self.parts])

    def where(self, kept: Tensor) -> _AllParameters:
        return _AllParameters([part.where(kept) for part in self.parts])


def few_places(pieces: Collection[ParameterRows], units: Units) -> tuple[Tensor, Tensor] | None:
    """Compute squared norms of units over linear maps and their biases, and the diagonal of that
    sum:

        sum over layers of <E E^T, X X^T + 1>,

    Gram matrices of a unit's rows, which are small and alike for all layers, and so are added up
    before anything is summed. None where other pieces, or more rows than pay, are among them.
    Errors are a few units in the last place of the diagonal, whichever layer they come from, so
    one look at the sum tells whether a unit cancelled.
    """
    places = units.longest
    if not units.even or places > FEW_ROWS:
        return None
    outers = [piece for piece in pieces if isinstance(piece, Outer)]
    biases = {id(piece) for piece in pieces if isinstance(piece, Rows)}
    shared = {id(outer.left) for outer in outers}
    if len(outers) + len(biases) < len(pieces) or not biases <= shared or not outers:
        return None
    total: Tensor | None = None
    for outer in outers:
        if places * sum(outer.shape) >= outer.shape.numel():
            return None  # rows are smaller
        left, right = units.folded(outer.left.values), units.folded(outer.right.values)
        gram, inner = torch.bmm(left, left.mT), torch.bmm(right, right.mT)
        if id(outer.left) in biases:
            inner += 1
        total = gram.mul_(inner) if total is None else total.addcmul_(gram, inner)
    assert total is not None
    flat = total.view(units.n, places * places)
    return flat.sum(1), flat[:, :: places + 1].sum(1)


class UnitLossesView(View):
    """Losses, totals, and sums with weights known from the losses."""

    def __init__(self, single: LossesView, units: Units) -> None:
        self._single, self._units = single, units
        self.raw_losses = units.summed(single.losses())

    @property
    def neutralised(self) -> int:
        """Rows (not units) set to zero because they were not finite."""
        return self._single.neutralised

    def total(self) -> Tree:
        """Sum over all rows."""
        return self._single.total()

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        """Return sum_u w_u g_u, every row with its unit's weight."""
        spread = self._units.spread
        if isinstance(weights, Tensor):
            return self._single.weighted_sum(spread(weights), last)
        return self._single.weighted_sum({name: spread(w) for name, w in weights.items()}, last)
