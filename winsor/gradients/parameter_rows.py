"""Per-sample gradients of one parameter in the form that is cheapest to keep.

`ParameterRows` (a piece of what is recorded of a batch) answers questions about the rows G_1..G_n
of one parameter without, where possible, forming them: squared norms, lengths, weighted sums,
sketches, a few explicit rows.

    Rows       G_i itself                                     small parameters
    Factors    G_i = sum_t left_it right_it^T                 linear maps applied at T places
    Sum        G_i = sum of other pieces                      tied weights, repeated calls

`layers/embedding.py` and `layers/convolution.py` add the sparse and the convolutional form.

The numbers that a piece holds are the row. Norms and sums both start from them, in the float64 of
`arithmetic.py`: a norm never describes other numbers than those that are added up.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from winsor.gradients import arithmetic
from winsor.gradients.arithmetic import THETA, wide
from winsor.gradients.directions import Basis, Kronecker

if TYPE_CHECKING:
    from winsor.gradients.units import Units

NUMBERS_AT_ONCE = 1 << 18
"""Numbers of explicit rows that are formed at once: two megabytes stay in a core's cache."""


def chunks_of(n: int, size: int) -> list[tuple[int, int]]:
    """Return (start, stop) of chunks of n rows, of which one takes ``size`` numbers."""
    count = max(1, NUMBERS_AT_ONCE // max(1, size))
    return [(start, min(n, start + count)) for start in range(0, n, count)]


class ParameterRows(ABC):
    """Rows of one parameter. The default answers all go through explicit rows in bounded chunks."""

    shape: torch.Size
    n: int
    places: int = 1
    """Terms of the sum that a row is."""

    @abstractmethod
    def rows(self, start: int, stop: int) -> Tensor:
        """Form rows ``start`` to ``stop``, (stop - start, *shape), in float64."""

    @abstractmethod
    def gross(self, order: float) -> Tensor:
        """Return (n,) lengths that the rows have if nothing in their sums cancels, in L1, L2 or in
        the largest coordinate (``order`` 1, 2 or infinity)."""

    @abstractmethod
    def select(self, index: Tensor) -> ParameterRows:
        """Return the same piece for some of the rows."""

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

    def chunks(self) -> list[tuple[int, int]]:
        """Return (start, stop) of chunks of rows that may be formed at once."""
        return chunks_of(self.n, self.shape.numel())

    def net_square(self) -> Tensor:
        """Return (n,) sums of squares of the rows."""
        found = [arithmetic.squares(self.rows(a, b)) for a, b in self.chunks()]
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)

    def square(self) -> Tensor:
        """Return (n,) squared norms, with the term that covers what cancels."""
        return self.net_square().add_(self.gross(2).square_(), alpha=THETA)

    def length(self, order: float) -> Tensor:
        """Return (n,) lengths in L1 (``order`` 1) or in the largest coordinate (infinity), with the
        term that covers what cancels."""
        found = [arithmetic.lengths_of_rows(self.rows(a, b), order) for a, b in self.chunks()]
        net = torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)
        return torch.hypot(net, math.sqrt(THETA) * self.gross(order))

    def per_unit(self, units: Units) -> ParameterRows:
        """Return the sums over the rows of each unit."""
        return units.together(self)

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        """Write sum_i w_i G_i into ``out``, in float64; without ``w``, sum_i G_i."""

        def add(a: int, b: int, into: Tensor) -> None:
            arithmetic.weigh_rows(None if w is None else w[a:b], self.rows(a, b), into, add=True)

        arithmetic.add_up_chunks(self.chunks(), add, out)

    def sketch(self, basis: Basis) -> Tensor:
        """Return (n, k) inner products with the directions of ``basis``."""
        return torch.cat([basis.rows(self.rows(a, b)) for a, b in self.chunks()])


class Rows(ParameterRows):
    """Explicit rows, for parameters where nothing is smaller. Nothing is left to cancel in them."""

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
        """Return rows ``start`` to ``stop``, (stop - start, *shape), in float64."""
        return wide(self.values[start:stop])

    def gross(self, order: float) -> Tensor:
        """Return (n,) lengths of the rows."""
        return self.square().sqrt() if order == 2 else self.length(order)

    def select(self, index: Tensor) -> Rows:
        """Return rows of ``index``."""
        return Rows(self.values[index])

    def where(self, kept: Tensor) -> Rows:
        """Set rows that are not ``kept`` to zero."""
        return Rows(zero_where_not(kept, self.values))

    def square(self) -> Tensor:
        """Return (n,) squared norms, computed once."""
        if self._square is None:
            self._square = arithmetic.squares(self.values)
        return self._square

    net_square = square

    def length(self, order: float) -> Tensor:
        """Return (n,) lengths in L1 or in the largest coordinate."""
        return arithmetic.lengths_of_rows(self.values, order)

    def per_unit(self, units: Units) -> ParameterRows:
        """Return the sums over the rows of each unit."""
        return Rows(units.summed(wide(self.values)))

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        """Write sum_i w_i G_i by one product of matrix and vector."""
        arithmetic.weigh_rows(w, self.values, out)


class Outer(ParameterRows):
    """G_i = left_i right_i^T: a linear map applied once per row. Nothing in it can cancel."""

    __slots__ = ("left", "n", "right", "shape")

    def __init__(self, left: Rows, right: Rows) -> None:
        self.left = left  # (n, out); as rows, because a bias has these very rows
        self.right = right  # (n, in)
        self.n = left.n
        self.shape = left.shape + right.shape

    def rows(self, start: int, stop: int) -> Tensor:
        """Form rows ``start`` to ``stop`` as outer products."""
        return self.left.rows(start, stop).unsqueeze(2) * self.right.rows(start, stop).unsqueeze(1)

    def gross(self, order: float) -> Tensor:
        """Return (n,) lengths of the rows."""
        return self.left.gross(order) * self.right.gross(order)

    def select(self, index: Tensor) -> Outer:
        """Return factors of the rows of ``index``."""
        return Outer(self.left.select(index), self.right.select(index))

    def where(self, kept: Tensor) -> Outer:
        """Set rows that are not ``kept`` to zero in both factors."""
        return Outer(self.left.where(kept), self.right.where(kept))

    def square(self) -> Tensor:
        """Return (n,) |left_i|^2 |right_i|^2."""
        return self.left.square() * self.right.square()

    net_square = square

    def length(self, order: float) -> Tensor:
        """Return (n,) products of the lengths of both factors."""
        # |l r^T|_1 = |l|_1 |r|_1, and max |l r^T| = max |l| max |r|: no row is formed.
        return self.left.length(order) * self.right.length(order)

    def per_unit(self, units: Units) -> ParameterRows:
        """Return the sums over the rows of each unit."""
        return self.factors().per_unit(units)

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        """Write sum_i w_i G_i by one matrix product."""
        arithmetic.weigh_products(w, self.left.values, self.right.values, out)

    def sketch(self, basis: Basis) -> Tensor:
        """Return (n, k) inner products, from the factors where ``basis`` has some."""
        return self.factors().sketch(basis)

    def factors(self) -> Factors:
        """Return the same rows as `Factors` with one place."""
        return Factors(self.left.values.unsqueeze(1), self.right.values.unsqueeze(1))


class Factors(ParameterRows):
    """G_i = sum_t left_it right_it^T: a linear map applied at T places of each row."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left = left  # (n, T, out)
        self.right = right  # (n, T, in)
        self.n, self.places = left.shape[:2]
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
        """Form rows ``start`` to ``stop``."""
        return arithmetic.form_rows(self.left[start:stop], self.right[start:stop])

    def gross(self, order: float) -> Tensor:
        """Return (n,) sums over places of the product of both lengths."""
        left, right = (arithmetic.lengths_of_places(x, order) for x in (self.left, self.right))
        return arithmetic.sum_of_places((left * right).unsqueeze(2))[:, 0]

    def select(self, index: Tensor) -> Factors:
        """Return factors of the rows of ``index``."""
        return Factors(self.left[index], self.right[index])

    def where(self, kept: Tensor) -> Factors:
        """Set rows that are not ``kept`` to zero in both factors."""
        return Factors(zero_where_not(kept, self.left), zero_where_not(kept, self.right))

    def per_unit(self, units: Units) -> Factors:
        """Return the sums over the rows of each unit."""
        return Factors(units.padded(self.left), units.padded(self.right))

    def net_square(self) -> Tensor:
        """Return (n,) sums of squares of the rows, by Gram matrices where these cost less."""
        return arithmetic.factor_norms([self.left], self.right)[0]

    def square(self) -> Tensor:
        """Return (n,) squared norms, with the term that covers what cancels."""
        return square_of_factors([self.left], self.right)

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        """Write sum_i w_i G_i by one matrix product over rows and places."""
        arithmetic.weigh_products(w, self.left, self.right, out)

    def sketch(self, basis: Basis) -> Tensor:
        """Return (n, k) inner products, from the factors where ``basis`` has some."""
        if isinstance(basis, Kronecker):
            return basis.factors(self.left, self.right)
        return super().sketch(basis)


def square_of_factors(lefts: Sequence[Tensor], right: Tensor) -> Tensor:
    """Return (n,) squared norms of several `Factors` with one right side, taken together."""
    square, gross = arithmetic.factor_norms(lefts, right)
    if right.shape[1] < 2:  # one place: nothing cancels
        return square
    return square.add_(gross.square_().sum(1), alpha=THETA)


class Sum(ParameterRows):
    """One parameter, several kinds of calls: tied weights."""

    def __init__(self, parts: Sequence[ParameterRows]) -> None:
        self.parts = parts
        self.n, self.shape = parts[0].n, parts[0].shape
        self.places = sum(part.places for part in parts)

    def rows(self, start: int, stop: int) -> Tensor:
        """Add up rows ``start`` to ``stop`` of all parts."""
        return add_up([part.rows(start, stop) for part in self.parts])

    def gross(self, order: float) -> Tensor:
        """Return (n,) sums of the parts' lengths."""
        return add_up([part.gross(order) for part in self.parts])

    def select(self, index: Tensor) -> Sum:
        """Return the parts' rows of ``index``."""
        return Sum([part.select(index) for part in self.parts])

    def where(self, kept: Tensor) -> Sum:
        """Set rows that are not ``kept`` to zero in all parts."""
        return Sum([part.where(kept) for part in self.parts])

    def per_unit(self, units: Units) -> Sum:
        """Tell the parts of units."""
        return Sum([part.per_unit(units) for part in self.parts])

    def net_square(self) -> Tensor:
        """Return |A|^2 + |B|^2 + 2 <A, B>, where A knows its inner product with factors."""
        if len(self.parts) == 2 and isinstance(factors := self.parts[1], Factors):
            cross = self.parts[0].cross(factors)
            if cross is not None:
                apart = self.parts[0].net_square() + factors.net_square()
                return (apart + 2 * cross).clamp_min_(0.0)  # what cancels may leave less than zero
        return super().net_square()

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


def zero_where_not(kept: Tensor, x: Tensor) -> Tensor:
    """Replace rows that are not ``kept`` by zeros, whatever they hold."""
    return torch.where(kept.view(-1, *[1] * (x.dim() - 1)), x, 0.0)


def add_up(tensors: Sequence[Tensor]) -> Tensor:
    """Add tensors in their order."""
    first, *rest = tensors
    for tensor in rest:
        first = first + tensor
    return first


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
