"""Rows that belong together: visits of a patient, texts of an author, views of an image.

A unit is a stretch of consecutive rows of a physical batch. Its gradient is the sum of theirs, and
that is what a rule bounds. To norms and sums a unit is what a time axis is: more places at which
the same weight was used. So no gradient of a single row is formed that was not formed before.

    Rows       added up
    Factors    the places of all rows of the unit, in a row
    Indexed    likewise
    Together   any other piece, through the explicit rows of a few units at a time
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import singledispatch

import torch
from torch import Tensor

from winsor.contract import ConfigurationError, Tree
from winsor.grads.ghost import PieceView
from winsor.grads.layers.bag import Bag
from winsor.grads.layers.embedding import Indexed
from winsor.grads.pieces import CHUNK, Factors, Outer, Piece, Rows, Sum
from winsor.grads.plain import LossesView
from winsor.grads.rows import RowsView
from winsor.grads.view import Directions, View


class Units:
    """``sizes[u]`` consecutive rows are unit u."""

    def __init__(self, sizes: Sequence[int] | Tensor) -> None:
        self.sizes = torch.as_tensor(sizes, dtype=torch.long)
        self.n = len(self.sizes)
        self.offsets = torch.cat([self.sizes.new_zeros(1), self.sizes.cumsum(0)])
        self.rows = int(self.offsets[-1])
        self.owner = torch.repeat_interleave(torch.arange(self.n), self.sizes)
        self.longest = int(self.sizes.max()) if self.n else 0
        self._even = self.n * self.longest == self.rows

    def spread(self, values: Tensor) -> Tensor:
        """(units, ...) -> (rows, ...): what each row's unit has."""
        return values[self.owner.to(values.device)]

    def summed(self, rows: Tensor) -> Tensor:
        """(rows, ...) -> (units, ...)."""
        if self._even:
            return rows.unflatten(0, (self.n, self.longest)).sum(1)
        out = rows.new_zeros((self.n, *rows.shape[1:]))
        return out.index_add_(0, self.owner.to(rows.device), rows)

    def padded(self, rows: Tensor, fill: float = 0) -> Tensor:
        """(rows, T, ...) -> (units, longest T, ...), with ``fill`` where a unit has fewer rows."""
        if not self._even:
            place = torch.arange(self.rows) - self.offsets[self.owner]
            wide = rows.new_full((self.n * self.longest, *rows.shape[1:]), fill)
            wide[(self.owner * self.longest + place).to(rows.device)] = rows
            rows = wide
        return rows.detach().reshape(self.n, self.longest * rows.shape[1], *rows.shape[2:])

    def select(self, index: Tensor) -> tuple[Units, Tensor]:
        """Some of the units, and where their rows are."""
        ends = self.offsets.tolist()
        chosen = [torch.arange(ends[u], ends[u + 1]) for u in index.tolist()]
        return Units(self.sizes[index.cpu()]), torch.cat(chosen) if chosen else index


# -------------------------------------------------------------------------------------- pieces


class Together(Piece):
    """G_u = the sum over the rows of unit u of what another piece knows."""

    def __init__(self, single: Piece, units: Units) -> None:
        self.single, self.units = single, units
        self.n, self.shape = units.n, single.shape

    def rows(self, start: int, stop: int) -> Tensor:
        first, last = int(self.units.offsets[start]), int(self.units.offsets[stop])
        size = max(1, CHUNK // max(1, self.shape.numel()))
        out: Tensor | None = None
        for a in range(first, max(last, first + 1), size):
            rows = self.single.rows(a, min(last, a + size))
            if out is None:
                out = rows.new_zeros((stop - start, *self.shape))
            owner = self.units.owner[a : a + len(rows)] - start
            out.index_add_(0, owner.to(rows.device), rows)
        assert out is not None
        return out

    def select(self, index: Tensor) -> Together:
        units, rows = self.units.select(index)
        return Together(self.single.select(rows.to(index.device)), units)

    def where(self, kept: Tensor) -> Together:
        return Together(self.single.where(self.units.spread(kept)), self.units)

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        self.single.weighted(None if w is None else self.units.spread(w), out)


@singledispatch
def per_unit(piece: Piece, units: Units) -> Piece:
    """The piece of whole units that ``piece`` knows row by row."""
    return Together(piece, units)


@per_unit.register
def _(piece: Rows, units: Units) -> Piece:
    return Rows(units.summed(piece.values))


@per_unit.register
def _(piece: Factors, units: Units) -> Piece:
    return Factors(units.padded(piece.left), units.padded(piece.right))


@per_unit.register
def _(piece: Outer, units: Units) -> Piece:
    return per_unit(piece.factors(), units)


@per_unit.register
def _(piece: Indexed, units: Units) -> Piece:
    index = units.padded(piece.index, -1)
    return Indexed(index, units.padded(piece.right), piece.shape[0])


@per_unit.register
def _(piece: Bag, units: Units) -> Piece:
    return per_unit(piece.indexed(), units)


@per_unit.register
def _(piece: Sum, units: Units) -> Piece:
    return Sum([per_unit(part, units) for part in piece.parts])


# --------------------------------------------------------------------------------------- views


@torch.no_grad()
def units_view(view: View, units: Units) -> View:
    """What ``view`` knows of rows, told of units: the loss of a unit is the sum of theirs too."""
    if isinstance(view, PieceView):
        return view.with_pieces(
            {name: per_unit(piece, units) for name, piece in view.recorded.items()},
            units.summed(view.raw_losses),
        )
    if isinstance(view, RowsView):
        rows = {name: units.summed(values) for name, values in view.raw.items()}
        return RowsView(rows, units.summed(view.raw_losses))
    if isinstance(view, LossesView):
        return UnitLossesView(view, units)
    raise ConfigurationError(
        "rules that bound gradients from the forward pass (Value) see rows, not units. Got "
        f"{type(view).__name__} with units instead. Use another rule, such as Flat."
    )


class UnitLossesView:
    """Losses, totals, and sums with weights known from the losses."""

    def __init__(self, single: LossesView, units: Units) -> None:
        self._single, self._units = single, units

    @property
    def size(self) -> int:
        return self._units.n

    @property
    def neutralised(self) -> int:
        return self._single.neutralised

    def losses(self) -> Tensor:
        return self._units.summed(self._single.losses())

    def norms(self) -> Tensor:
        return self._single.norms()  # which says why not; and so below

    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        return self._single.group_norms(groups)

    def sketch(self, directions: Directions) -> Tensor:
        return self._single.sketch(directions)

    def map_sum(self, f: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Tree:
        return self._single.map_sum(f)

    def total(self) -> Tree:
        return self._single.total()

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        spread = self._units.spread
        by_row = (
            spread(weights)
            if isinstance(weights, Tensor)
            else {name: spread(w) for name, w in weights.items()}
        )
        return self._single.weighted_sum(by_row, last)
