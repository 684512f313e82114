"""Per-sample gradients of one parameter in the form that is cheapest to keep.

`ParameterRows` (a piece of what is recorded of a batch) answers questions about the rows G_1..G_n
of one parameter without, where possible, forming them: squared norms, lengths, weighted sums,
sketches, a few explicit rows.

    Rows       G_i itself                                     small parameters
    Factors    G_i = sum_t left_it right_it^T                 linear maps applied at T places
    Sum        G_i = sum of other pieces                      tied weights, repeated calls

`layers/embedding.py` and `layers/convolution.py` add the sparse and the convolutional form.

Ghost norms (Li et al. 2022, "Large language models can be strong DP learners", eq. 4):

    |sum_t l_t r_t^T|^2 = sum_{t,s} (l_t . l_s)(r_t . r_s).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from winsor.gradients.directions import Basis, Kronecker
from winsor.gradients.sums import (
    FLOAT32_SUM_ROWS,
    add_products,
    add_up,
    in_pieces,
    scaled,
    square_rows,
    weigh_rows,
    zero_where_not,
)

if TYPE_CHECKING:
    from winsor.gradients.units import Units

ROWS_AT_ONCE = 1 << 22
"""Floats of explicit rows that are formed at once: 16 MiB in float32."""

NUMBERS_IN_CACHE = 1 << 18
"""Floats of explicit rows at a time for their lengths: a megabyte stays in a core's cache."""

CANCELLATION_LIMIT = 0.05
"""A ghost norm below this part of its diagonal has lost digits to cancellation: form the row."""

NORM_FLOOR = 2.0**-12
"""Lower bound on a squared norm, as a share of the diagonal sum_t |l_t|^2 |r_t|^2. Weighted sums
add up places in float32 with a rounding error relative to that diagonal (1e7 - 1e7 may be 1), so
reporting less would let rounding exceed the clipping bound. With 2^-12 = 64^-2 places are at most
64 times as long as what a rule allows, and rounding is that of 64 rows."""


class ParameterRows(ABC):
    """Rows of one parameter. The default answers all go through explicit rows in bounded chunks."""

    shape: torch.Size
    n: int

    @abstractmethod
    def rows(self, start: int, stop: int) -> Tensor:
        """Form rows ``start`` to ``stop``, (stop - start, *shape)."""

    @abstractmethod
    def select(self, index: Tensor) -> ParameterRows:
        """Return the same piece for some of the rows, as float64."""

    @abstractmethod
    def where(self, kept: Tensor) -> ParameterRows:
        """Set rows that are not ``kept`` to zero."""

    @staticmethod
    def joined(parts: Sequence[ParameterRows]) -> Sequence[ParameterRows]:
        """Join pieces of this kind into fewer with the same sum of rows, where there is a way."""
        return parts

    def cross(self, factors: Factors) -> Tensor | None:
        """Return (n,) inner products with ``factors``, where there is a way without
        explicit rows."""
        return None

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of chunks of rows that may be formed at once."""
        size = max(1, ROWS_AT_ONCE // max(1, self.shape.numel()))
        for start in range(0, self.n, size):
            yield start, min(self.n, start + size)

    def square(self) -> Tensor:
        """Return (n,) squared norms."""
        return torch.cat([square_rows(self.rows(a, b)) for a, b in self.chunks()])

    def length(self, order: float) -> Tensor:
        """Return (n,) lengths in L1 (``order`` 1) or in the largest coordinate (infinity), in
        float64."""
        size = max(1, NUMBERS_IN_CACHE // max(1, self.shape.numel()))
        parts = [
            _length_of_rows(self.rows(start, min(self.n, start + size)), order)
            for start in range(0, self.n, size)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def per_unit(self, units: Units) -> ParameterRows:
        """Return the sums over the rows of each unit."""
        return units.together(self)

    def reach(self) -> Tensor:
        """Return (n,) cheap upper bounds on `square`."""
        return self.square()

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        """Write sum_i w_i G_i into ``out``; without ``w``, sum_i G_i."""
        parts = [weigh_rows(w, self.rows(a, b), a, b) for a, b in self.chunks()]
        out.copy_(add_up(parts).view(out.shape))

    def sketch(self, basis: Basis) -> Tensor:
        """Return (n, k) inner products with the directions of ``basis``."""
        return torch.cat([basis.rows(self.rows(a, b)) for a, b in self.chunks()])


class Rows(ParameterRows):
    """Explicit rows, for parameters where nothing is smaller."""

    __slots__ = ("_square", "n", "shape", "values")

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.n = values.shape[0]
        self.shape = values.shape[1:]
        self._square: Tensor | None = None

    @staticmethod
    def joined(parts: Sequence[ParameterRows]) -> Sequence[ParameterRows]:
        """Add up rows of several calls."""
        return [Rows(add_up([part.rows(0, part.n) for part in parts]))]

    def rows(self, start: int, stop: int) -> Tensor:
        """Form rows ``start`` to ``stop``, (stop - start, *shape)."""
        return self.values[start:stop]

    def select(self, index: Tensor) -> Rows:
        """Return rows of ``index``, as float64."""
        return Rows(self.values[index].double())

    def where(self, kept: Tensor) -> Rows:
        """Set rows that are not ``kept`` to zero."""
        return Rows(zero_where_not(kept, self.values))

    def square(self) -> Tensor:
        """Return (n,) squared norms, computed once."""
        if self._square is None:
            self._square = square_rows(self.values)
        return self._square

    def length(self, order: float) -> Tensor:
        """Return (n,) lengths in L1 or in the largest coordinate."""
        return _length_of_rows(self.values, order)

    def per_unit(self, units: Units) -> Rows:
        """Add up the rows of each unit."""
        return units.added_up(self)

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        """Write sum_i w_i G_i by one product of matrix and vector."""
        flat = self.values if self.values.dim() == 2 else self.values.view(self.n, -1)
        target = out if out.dim() == 1 else out.view(-1)
        if w is None:
            torch.sum(flat, 0, out=target)
        elif self.n <= FLOAT32_SUM_ROWS:
            torch.mv(flat.T, w, out=target)
        else:
            pairs = zip(flat.split(FLOAT32_SUM_ROWS), w.split(FLOAT32_SUM_ROWS), strict=True)
            target.copy_(in_pieces(rows.T @ weights for rows, weights in pairs))

    def sketch(self, basis: Basis) -> Tensor:
        """Return (n, k) inner products with the directions of ``basis``."""
        return basis.rows(self.values)


class Outer(ParameterRows):
    """G_i = left_i right_i^T: a linear map applied once per row."""

    __slots__ = ("left", "n", "right", "shape")

    def __init__(self, left: Rows, right: Rows) -> None:
        self.left = left  # (n, out); as rows, because a bias has these very rows
        self.right = right  # (n, in)
        self.n = left.n
        self.shape = left.shape + right.shape

    def rows(self, start: int, stop: int) -> Tensor:
        """Form rows ``start`` to ``stop`` as outer products."""
        left, right = self.left.values[start:stop], self.right.values[start:stop]
        return left.unsqueeze(2) * right.unsqueeze(1)

    def select(self, index: Tensor) -> Outer:
        """Return factors of the rows of ``index``, as float64."""
        return Outer(self.left.select(index), self.right.select(index))

    def where(self, kept: Tensor) -> Outer:
        """Set rows that are not ``kept`` to zero in both factors."""
        return Outer(self.left.where(kept), self.right.where(kept))

    def square(self) -> Tensor:
        """Return (n,) |left_i|^2 |right_i|^2."""
        return self.left.square() * self.right.square()

    def length(self, order: float) -> Tensor:
        # |l r^T|_1 = |l|_1 |r|_1, and max |l r^T| = max |l| max |r|: no row is formed.
        """Return (n,) products of the lengths of both factors."""
        return self.left.length(order) * self.right.length(order)

    def per_unit(self, units: Units) -> ParameterRows:
        """Return the sums over the rows of each unit."""
        return self.factors().per_unit(units)

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        """Write sum_i w_i G_i by one matrix product."""
        left, right = self.left.values, self.right.values
        if self.shape[0] <= self.shape[1]:
            left = scaled(left, w)
        else:
            right = scaled(right, w)
        add_products(left, right, out)

    def sketch(self, basis: Basis) -> Tensor:
        """Return (n, k) inner products, from the factors where ``basis`` has some."""
        if isinstance(basis, Kronecker):
            factors = self.factors()
            return basis.factors(factors.left, factors.right)
        return super().sketch(basis)

    def factors(self) -> Factors:
        """Return the same rows as `Factors` with one place."""
        return Factors(self.left.values.unsqueeze(1), self.right.values.unsqueeze(1))


class Factors(ParameterRows):
    """G_i = sum_t left_it right_it^T: a linear map applied at T places of each row."""

    __slots__ = ("left", "n", "right", "shape")

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left = left  # (n, T, out)
        self.right = right  # (n, T, in)
        self.n = len(left)
        self.shape = torch.Size((left.shape[2], right.shape[2]))

    @staticmethod
    def joined(parts: Sequence[ParameterRows]) -> Sequence[ParameterRows]:
        """Put the places of several calls side by side."""
        if len(parts) == 1:
            return parts
        factors = [part for part in parts if isinstance(part, Factors)]
        left = torch.cat([part.left for part in factors], dim=1)
        return [Factors(left, torch.cat([part.right for part in factors], dim=1))]

    def rows(self, start: int, stop: int) -> Tensor:
        """Form rows ``start`` to ``stop`` by one batched product."""
        return torch.bmm(self.left[start:stop].mT, self.right[start:stop])

    def select(self, index: Tensor) -> Factors:
        """Return factors of the rows of ``index``, as float64."""
        return Factors(self.left[index].double(), self.right[index].double())

    def where(self, kept: Tensor) -> Factors:
        """Set rows that are not ``kept`` to zero in both factors."""
        return Factors(zero_where_not(kept, self.left), zero_where_not(kept, self.right))

    def per_unit(self, units: Units) -> Factors:
        """Return the sums over the rows of each unit."""
        return Factors(units.padded(self.left), units.padded(self.right))

    def square(self) -> Tensor:
        """Return (n,) squared norms, by the ghost formula where that costs less than rows."""
        if self.is_ghostly():
            return careful(self, *self.ghost())
        square = super().square()
        return (
            square
            if self.left.shape[1] < 2
            else torch.maximum(square, NORM_FLOOR * self.diagonal())
        )

    def diagonal(self) -> Tensor:
        """Return (n,) sum_t |left_it|^2 |right_it|^2."""
        left, right = (torch.linalg.vector_norm(x, dim=2) for x in (self.left, self.right))
        return (left * right).square_().sum(1)

    def is_ghostly(self) -> bool:
        """Tell whether Gram matrices cost less than rows."""
        places, (out, inner) = self.left.shape[1], self.shape
        return places * (out + inner) < out * inner

    def ghost(self) -> tuple[Tensor, Tensor]:
        """Return squared norms by the ghost formula, and the sum of their diagonal terms."""
        return ghost([self.left], self.right)

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        """Write sum_i w_i G_i by one matrix product over rows and places."""
        left, right = self.left, self.right
        if self.shape[0] <= self.shape[1]:
            left = scaled(left, w)
        else:
            right = scaled(right, w)
        add_products(left.flatten(0, 1), right.flatten(0, 1), out)

    def sketch(self, basis: Basis) -> Tensor:
        """Return (n, k) inner products, from the factors where ``basis`` has some."""
        if isinstance(basis, Kronecker):
            return basis.factors(self.left, self.right)
        return super().sketch(basis)


def ghost(lefts: Sequence[Tensor], right: Tensor) -> tuple[Tensor, Tensor]:
    """Return sum_j |sum_t l_jt r_t^T|^2 of each row, and the diagonal terms of that sum.

    Maps that read the same input (query, key and value) share its Gram matrix. Gram matrices are
    symmetric: strips from the diagonal on are all that is computed.
    """
    first, *rest = lefts
    n, places = first.shape[:2]
    step = -(-places // 4) if places >= 64 else max(1, places)
    square = diagonal = first.new_zeros(n)
    for t in range(0, places, step):
        strip = torch.bmm(first[:, t : t + step], first[:, t:].mT)
        for left in rest:
            strip.baddbmm_(left[:, t : t + step], left[:, t:].mT)
        strip *= torch.bmm(right[:, t : t + step], right[:, t:].mT)
        width = strip.shape[1]
        square = square + strip.sum((1, 2)) * 2 - strip[:, :, :width].sum((1, 2))
        diagonal = diagonal + strip.diagonal(dim1=1, dim2=2).sum(1)
    return square, diagonal


def careful(piece: ParameterRows, square: Tensor, diagonal: Tensor) -> Tensor:
    """Correct ghost norms: rows that cancelled are computed from their explicit gradient.

    A norm that reads too small would let a row pass the bound; rounding must not do that. Nor must
    the rounding of a sum over places that cancel: see `NORM_FLOOR`.
    """
    doubtful = (square < CANCELLATION_LIMIT * diagonal).nonzero()[:, 0]
    if len(doubtful):
        square = square.clone()
        exact = ParameterRows.square(piece.select(doubtful)).to(square.dtype)
        square[doubtful] = torch.maximum(exact, NORM_FLOOR * diagonal[doubtful])
    return square


class Sum(ParameterRows):
    """One parameter, several kinds of calls: tied weights."""

    def __init__(self, parts: Sequence[ParameterRows]) -> None:
        self.parts = parts
        self.n, self.shape = parts[0].n, parts[0].shape

    def rows(self, start: int, stop: int) -> Tensor:
        """Add up rows ``start`` to ``stop`` of all parts."""
        return add_up([part.rows(start, stop) for part in self.parts])

    def select(self, index: Tensor) -> Sum:
        """Return the parts' rows of ``index``, as float64."""
        return Sum([part.select(index) for part in self.parts])

    def where(self, kept: Tensor) -> Sum:
        """Set rows that are not ``kept`` to zero in all parts."""
        return Sum([part.where(kept) for part in self.parts])

    def per_unit(self, units: Units) -> Sum:
        """Tell the parts of units."""
        return Sum([part.per_unit(units) for part in self.parts])

    def square(self) -> Tensor:
        """Return |A|^2 + |B|^2 + 2 <A, B>, where A knows its inner product with factors."""
        if len(self.parts) == 2 and isinstance(factors := self.parts[1], Factors):
            first = self.parts[0]
            cross = first.cross(factors)
            if cross is not None:
                square, diagonal = factors.ghost()
                own = first.square()
                return careful(self, square + own + 2 * cross, diagonal + own)
        apart = add_up([part.square() for part in self.parts])  # which are added up one by one
        return torch.maximum(super().square(), NORM_FLOOR * apart)

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        """Write the sum of the parts' weighted sums."""
        first, *rest = self.parts
        first.weighted(w, out)
        for part in rest:
            more = torch.empty_like(out)
            part.weighted(w, more)
            out += more

    def sketch(self, basis: Basis) -> Tensor:
        """Add up the parts' inner products."""
        return add_up([part.sketch(basis) for part in self.parts])


def _length_of_rows(rows: Tensor, order: float) -> Tensor:
    flat = rows.reshape(len(rows), -1)
    if not flat.shape[1]:
        return torch.zeros(len(rows), dtype=torch.float64)
    if order == math.inf:
        low, high = flat.aminmax(dim=1)
        return torch.maximum(high, -low).double()
    return flat.double().abs_().sum(1)


def merged(parts: Sequence[ParameterRows]) -> ParameterRows:
    """Merge everything that one parameter received in one backward pass."""
    if len(parts) == 1:
        return parts[0]
    kinds: dict[type[ParameterRows], list[ParameterRows]] = {}
    for part in parts:
        plain = part.factors() if isinstance(part, Outer) else part
        kinds.setdefault(type(plain), []).append(plain)
    joined = [part for kind, same in kinds.items() for part in kind.joined(same)]
    joined.sort(key=lambda part: isinstance(part, Factors))  # factors last
    return joined[0] if len(joined) == 1 else Sum(joined)
