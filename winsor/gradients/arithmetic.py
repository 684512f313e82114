"""Norms and sums of recorded rows, in float64 from the factors to the noise (arithmetic R).

What an engine records of row i (rows, or factors left_it and right_it at places t = 1..T) are
floating-point numbers; they *are* the row from here on. Every norm and every sum below reads those
same numbers, widened to float64 before any operation:

    norm     N_i^2 = |G_i|^2 + THETA A_i^2,   A_i = sum_t |left_it| |right_it|
    sum      sum_i w_i G_i, with w_i and w_i left_it in float64, in any order

The products of four widened float32 numbers lie between 2^-596 and 2^512, so nothing overflows or
underflows. Numbers that are float64 already are held between 2^-250 and 2^250: smaller ones read as
0, larger ones as infinite, in norms and sums alike, and a row with an infinite number counts as
zero. In explicit rows, which may be products of two such numbers, 2^-500 is the smallest. The term
with A_i, the length that a row has if nothing cancels, holds every rounding error of a sum over
places below 2^10 u N_i; where there is one place it is left out.

Guarantee
---------
With w_i N_i <= C, one row moves the sum by at most C (1 + `slack`), see `winsor.core.arithmetic`.
What is computed of row i is a function of row i: the same bits, whatever other rows there are.

The library made from `_arithmetic.c` widens numbers while it packs them into the cache. Without a
compiler, and on other devices, NumPy and torch do the same more slowly. Threads share out the
numbers of a result, never the terms of a sum: digits do not depend on how many there are.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from winsor.core import compiled
from winsor.core.arithmetic.slack import BLOCK, BLOCKS

THETA = 2.0**-20
"""Share of A_i^2 in a squared norm."""

SMALLEST_KEPT, LARGEST_KEPT = 2.0**-250, 2.0**250
"""Magnitudes between which a float64 number of a factor is read as it is."""

SMALLEST_OF_ROWS = 2.0**-500
"""The same of an explicit row: it may be a product of two that are kept."""

SOURCE = Path(__file__).with_name("_arithmetic.c")
WORTH_A_THREAD = 2_000_000
"""Multiply-adds below which one thread is quickest."""

quiet = np.errstate(invalid="ignore", over="ignore")  # a row that is not finite is told by its norm


class OuterMap(NamedTuple):
    """One linear map applied once per row: contiguous float32 on the processor. ``x`` is None if
    only a bias is trained; then ``has_bias`` is 1."""

    e: Tensor
    """(n, outputs)"""
    x: Tensor | None
    """(n, inputs)"""
    has_bias: int


Sums = Sequence[tuple[Tensor | None, Tensor | None]]
"""For each map: where the sums for its weight (outputs, inputs) and its bias (outputs) go."""


def wide(x: Tensor, least: float = SMALLEST_KEPT) -> Tensor:
    """Return ``x`` as float64 numbers whose products of four neither overflow nor underflow; those
    of two, where ``least`` is `SMALLEST_OF_ROWS`."""
    x = x.detach()
    if x.dtype is not torch.float64:
        return x.double()
    size = x.abs()
    x = torch.where(size < least, 0.0, x)
    return torch.where(size > LARGEST_KEPT, torch.inf * x, x)


def squares(x: Tensor) -> Tensor:
    """Return (n,) sums of squares of the rows of ``x`` (n, ...)."""
    return _for(x).squares(x)


def lengths_of_rows(x: Tensor, order: float) -> Tensor:
    """Return (n,) lengths of the rows of ``x`` (n, ...) in L1, L2 or in the largest coordinate
    (``order`` 1, 2 or infinity)."""
    if order == 2:
        return _for(x).squares(x, True)
    sizes = wide(_flat(x), SMALLEST_OF_ROWS).abs_()
    if order == 1:
        return inner_products(sizes, sizes.new_ones(1, sizes.shape[1]))[:, 0]
    return sizes.amax(1) if sizes.shape[1] else sizes.new_zeros(len(x))


def lengths_of_places(x: Tensor, order: float = 2) -> Tensor:
    """Return (n, T) lengths of the places of ``x`` (n, T, k)."""
    places = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return lengths_of_rows(places, order).view(x.shape[:-1])


def factor_norms(lefts: Sequence[Tensor], right: Tensor) -> tuple[Tensor, Tensor]:
    """Return (n,) sum_j |sum_t left_jt right_t^T|^2, and (n, j) lengths A_j if nothing cancels.

    ``lefts`` are (n, T, k_j) and ``right`` is (n, T, d). Maps that read one input share its Gram
    matrix. Gram matrices or explicit rows, whichever cost less for these shapes.
    """
    return _for(right, *lefts).factor_norms(lefts, right)


def form_rows(left: Tensor, right: Tensor) -> Tensor:
    """Return (n, k, d) rows sum_t left_it right_it^T of (n, T, k) and (n, T, d)."""
    return _for(left, right).form_rows(left, right)


def sum_of_places(x: Tensor) -> Tensor:
    """Return (n, k) sums over the places of ``x`` (n, T, k)."""
    return form_rows(x.new_ones(1).expand(*x.shape[:2], 1), x)[:, 0]


def weigh_rows(weights: Tensor | None, rows: Tensor, out: Tensor, add: bool = False) -> None:
    """Write sum_i w_i rows_i of ``rows`` (n, ...) into ``out`` (float64), or add it there.

    Without ``weights`` all are 1.
    """
    _for(rows, out).weigh_rows(weights, rows, out, add)


def weigh_products(
    weights: Tensor | None, left: Tensor, right: Tensor, out: Tensor, add: bool = False
) -> None:
    """Write sum_i w_i sum_t left_it right_it^T into ``out`` (k, d) in float64, or add it there.

    ``left`` is (n, k) and ``right`` (n, d), or (n, T, k) and (n, T, d).
    """
    _for(left, right, out).weigh_products(weights, left, right, out, add)


def add_up_chunks(
    chunks: Sequence[tuple[int, int]], add: Callable[[int, int, Tensor], None], out: Tensor
) -> None:
    """Write into ``out`` what ``add(start, stop, into)`` adds up over all ``chunks`` of rows.

    At most `BLOCK` chunks are added one after the other, and so are at most `BLOCKS` such sums.
    """
    out.zero_()
    if len(chunks) <= BLOCK:
        for start, stop in chunks:
            add(start, stop, out)
        return
    size = BLOCK if len(chunks) <= BLOCK * BLOCKS else BLOCK * BLOCKS
    some = torch.empty_like(out)
    for i in range(0, len(chunks), size):
        add_up_chunks(chunks[i : i + size], add, some)
        out += some


def scatter(weights: Tensor | None, right: Tensor, index: Tensor, out: Tensor) -> None:
    """Add w_i right_it (n, T, d) to row index_it (n, T) of ``out`` (float64); negative ones are no
    places."""
    _for(right, index, out).scatter(weights, right, index, out)


def inner_products(rows: Tensor, directions: Tensor) -> Tensor:
    """Return (n, k) inner products of ``rows`` (n, d) with public ``directions`` (k, d)."""
    return _for(rows, directions).inner_products(rows, directions)


class _Plain:
    """The same in NumPy and torch, one row after the other: a row's digits are its own."""

    @quiet
    def squares(self, x: Tensor, root: bool = False) -> Tensor:
        found = _row_squares(wide(_flat(x), SMALLEST_OF_ROWS).cpu().numpy())
        return _like(np.sqrt(found) if root else found, x)

    @quiet
    def factor_norms(self, lefts: Sequence[Tensor], right: Tensor) -> tuple[Tensor, Tensor]:
        total, reaches = np.zeros(len(right)), np.zeros((len(right), len(lefts)))
        for j, left in enumerate(lefts):
            total += _row_squares(self.form_rows(left, right).cpu().numpy())
            for i in range(len(left)):
                e, x = (np.sqrt(_row_squares(wide(t[i]).cpu().numpy())) for t in (left, right))
                reaches[i, j] = (e * x).sum()
        return _like(total, right), _like(reaches, right)

    @quiet
    def form_rows(self, left: Tensor, right: Tensor) -> Tensor:
        e, x = wide(left).cpu().numpy(), wide(right).cpu().numpy()
        out = np.zeros((len(e), e.shape[2], x.shape[2]))
        for i in range(len(e)):
            out[i] = np.einsum("tk,td->kd", e[i], x[i])
        return _like(out, right)

    def weigh_rows(self, weights: Tensor | None, rows: Tensor, out: Tensor, add: bool) -> None:
        ones = torch.ones(len(rows), 1, device=rows.device)
        self._multiply(
            weights, ones.double(), wide(_flat(rows), SMALLEST_OF_ROWS), out.view(1, -1), add
        )

    def weigh_products(
        self, weights: Tensor | None, left: Tensor, right: Tensor, out: Tensor, add: bool
    ) -> None:
        self._multiply(weights, wide(left), wide(right), out, add)

    def _multiply(
        self, weights: Tensor | None, e: Tensor, x: Tensor, out: Tensor, add: bool
    ) -> None:
        if weights is not None:
            e = e * weights.double().view(-1, *[1] * (e.dim() - 1))
        out = out if add else out.zero_()
        pairs = zip(*(t.flatten(0, -2).split(BLOCK * BLOCKS) for t in (e, x)), strict=True)
        for series in pairs:
            blocks = zip(*(t.split(BLOCK) for t in series), strict=True)
            out += sum((a.T @ b for a, b in blocks), start=torch.zeros_like(out))

    def scatter(self, weights: Tensor | None, right: Tensor, index: Tensor, out: Tensor) -> None:
        values = wide(right, SMALLEST_OF_ROWS)
        if weights is not None:
            values = values * weights.double().view(-1, 1, 1)
        to, values = index.flatten(), values.flatten(0, 1)
        to, values = to[to >= 0], values[to >= 0]
        for _ in range(math.ceil(math.log(index.numel() + 1, BLOCK))):
            order = to.argsort(stable=True)  # as often in blocks as there may be places
            to, values = to[order], values[order]
            since = torch.arange(len(to), device=to.device)
            block = (since - torch.searchsorted(to, to)) // BLOCK
            pairs, group = torch.stack([to, block], 1).unique(dim=0, return_inverse=True)
            values = values.new_zeros(len(pairs), values.shape[1]).index_add_(0, group, values)
            to = pairs[:, 0]
        out.index_add_(0, to, values)

    @quiet
    def inner_products(self, rows: Tensor, directions: Tensor) -> Tensor:
        a, b = (wide(x, SMALLEST_OF_ROWS).cpu().numpy() for x in (rows, directions))
        found = np.zeros((len(a), len(b)))
        for i in range(len(a)):
            found[i] = np.einsum("d,kd->k", a[i], b)
        return _like(found, rows)

    def norms_of_maps(self, maps: Collection[OuterMap], losses: Tensor) -> tuple[Tensor, bool]:
        """Return (n,) norms over all ``maps``, and whether these and the ``losses`` are finite."""
        total = torch.zeros(len(losses), dtype=torch.float64)
        for e, x, has_bias in maps:
            inner = 0.0 if x is None else self.squares(x)
            total = total + self.squares(e) * (inner + float(has_bias))
        return total.sqrt_(), bool(total.isfinite().all() and losses.isfinite().all())

    def sums_of_maps(self, maps: Collection[OuterMap], weights: Tensor, sums: Sums) -> None:
        """Write sum_i w_i e_i x_i^T and sum_i w_i e_i of every map into its leaves (float64)."""
        for (e, x, _), (weight, bias) in zip(maps, sums, strict=True):
            if weight is not None and x is not None:
                self.weigh_products(weights, e, x, weight, False)
            if bias is not None:
                self.weigh_rows(weights, e, bias, False)


Side = tuple[int, int, int]
"""Address of a side of a product, or 0 for ones; how far its next row is, and its next place."""


class _Compiled:
    """Calls into the library, of contiguous tensors on the processor."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self.use(4 if os.environ.get("WINSOR_LANES") == "4" else 8)

    def use(self, lanes: int) -> int:
        """Use vectors of at most ``lanes`` doubles, 8 or 4; return how long they are."""
        n, flag, p = ctypes.c_int64, ctypes.c_int, ctypes.c_void_p
        library, side = ctypes.CDLL(self._path), (p, n, n)
        quick = ctypes.PyDLL(self._path)  # calls too short to hand the interpreter over
        lanes = min(lanes, library.winsor_lanes())

        def found(library: ctypes.CDLL, **signatures: Any) -> Any:
            named = {f"{name}_{lanes}": each for name, each in signatures.items()}
            return compiled.functions(library, **named)

        self._squares, self._product, self._form, self._factor, self._scatter = found(
            library,
            squares=(None, p, n, n, flag, flag, p),
            product=(None, *side, *side, flag, n, n, n, p, n, p, n, flag),
            form=(None, p, p, flag, n, n, n, n, p),
            factor_norms=(None, p, n, p, flag, n, n, n, p, p),
            scatter=(n, p, flag, p, p, n, n, n, n, p, p),
        )
        self._norms, self._sums = found(quick, norms=(flag, p, n, n, p, p), sums=(None, p, n, n, p))
        return lanes

    def squares(self, x: Tensor, root: bool = False) -> Tensor:
        (x,), is_wide = _numbers(_flat(x))
        (n, size), out = x.shape, torch.empty(len(x), dtype=torch.float64)
        start, width, to = x.data_ptr(), size * x.element_size(), out.data_ptr()

        def part(i: int, stop: int) -> None:
            self._squares(start + i * width, stop - i, size, 2 * is_wide, root, to + 8 * i)

        _share(n, n * size, part)
        return out

    def factor_norms(self, lefts: Sequence[Tensor], right: Tensor) -> tuple[Tensor, Tensor]:
        (right, *lefts), is_wide = _numbers(right, *lefts)
        (n, places, d), count, width = right.shape, len(lefts), right.element_size()
        _fit(*((left.shape[:2], right.shape[:2]) for left in lefts))
        out = [torch.empty(s, dtype=torch.float64) for s in ((n,), (n, count))]
        sizes = [left.shape[2] for left in lefts]

        def part(i: int, stop: int) -> None:
            numbers: list[int] = []
            for e, k in zip(lefts, sizes, strict=True):
                numbers += (e.data_ptr() + i * places * k * width, k)
            at = right.data_ptr() + i * places * d * width
            to = out[0].data_ptr() + 8 * i, out[1].data_ptr() + 8 * i * count
            table = _table(2 * count)(*numbers)
            self._factor(table, count, at, is_wide, stop - i, places, d, *to)

        _share(n, n * places * min(places * (sum(sizes) + d), sum(sizes) * d), part)
        return out[0], out[1]

    def form_rows(self, left: Tensor, right: Tensor) -> Tensor:
        (e, x), is_wide = _numbers(left, right)
        n, places, k, d = *e.shape, x.shape[2]
        _fit((e.shape[:2], x.shape[:2]))
        out, width = torch.empty(n, k, d, dtype=torch.float64), places * e.element_size()

        def part(i: int, stop: int) -> None:
            at = e.data_ptr() + i * k * width, x.data_ptr() + i * d * width
            self._form(*at, is_wide, stop - i, places, k, d, out.data_ptr() + 8 * i * k * d)

        _share(n, n * places * k * d, part)
        return out

    def weigh_rows(self, weights: Tensor | None, rows: Tensor, out: Tensor, add: bool) -> None:
        (x,), is_wide = _numbers(_flat(rows))
        n, size = x.shape
        sides = (0, 0, 0), (x.data_ptr(), 1, size)
        self._multiply(*sides, (1, size, n), 2 * is_wide, weights, 1, out, add)

    def weigh_products(
        self, weights: Tensor | None, left: Tensor, right: Tensor, out: Tensor, add: bool
    ) -> None:
        (e, x), is_wide = _numbers(left, right)
        places, k, d = (e.shape[1] if e.dim() == 3 else 1), e.shape[-1], x.shape[-1]
        _fit((e.shape[:-1], x.shape[:-1]), (out.shape, (k, d)))
        sides = (e.data_ptr(), 1, k), (x.data_ptr(), 1, d)
        self._multiply(*sides, (k, d, len(e) * places), is_wide, weights, places, out, add)

    def inner_products(self, rows: Tensor, directions: Tensor) -> Tensor:
        (a, b), is_wide = _numbers(rows, directions)
        (n, d), out = a.shape, torch.empty(len(a), len(b), dtype=torch.float64)
        _fit((d, b.shape[1]))
        sides = (a.data_ptr(), d, 1), (b.data_ptr(), d, 1)
        self._multiply(*sides, (n, len(b), d), 2 * is_wide, None, 1, out, False)
        return out

    def _multiply(
        self, a: Side, b: Side, sizes: tuple[int, int, int], is_wide: int,
        weights: Tensor | None, places: int, out: Tensor, add: bool,
    ) -> None:  # fmt: skip
        (m, n, depth), width = sizes, 8 if is_wide else 4
        into, weights = out.to(torch.float64).contiguous(), _weights(weights)
        to, w = into.data_ptr(), 0 if weights is None else weights.data_ptr()
        _fit((out.numel(), m * n), (depth, depth if weights is None else len(weights) * places))

        def part(i: int, stop: int) -> None:
            if n > m:
                right, shape, at = (b[0] + i * b[1] * width, *b[1:]), (m, stop - i), to + 8 * i
                self._product(*a, *right, is_wide, *shape, depth, w, places, at, n, add)
            else:
                left, shape = (a[0] + i * a[1] * width, *a[1:]), (stop - i, n)
                at = to + 8 * i * n
                self._product(*left, *b, is_wide, *shape, depth, w, places, at, n, add)

        _share(max(m, n), m * n * depth, part)
        if into is not out:
            out.copy_(into)

    def scatter(self, weights: Tensor | None, right: Tensor, index: Tensor, out: Tensor) -> None:
        (x,), is_wide = _numbers(right)
        into, weights = out.to(torch.float64).contiguous(), _weights(weights)
        _fit((index.shape, x.shape[:2]), (out.shape[1], x.shape[2]))
        _fit((len(x), len(x) if weights is None else len(weights)))
        index = index.long().flatten().contiguous()
        order, w = index.argsort(stable=True), 0 if weights is None else weights.data_ptr()
        sizes = len(index), max(1, x.shape[1]), x.shape[2], len(out)
        at = x.data_ptr(), 2 * is_wide, index.data_ptr(), order.data_ptr()
        if self._scatter(*at, *sizes, w, into.data_ptr()):
            raise IndexError(
                f"Indices must be below {len(out)}. Check the inputs of the embedding."
            )
        if into is not out:
            out.copy_(into)

    def norms_of_maps(self, maps: Collection[OuterMap], losses: Tensor) -> tuple[Tensor, bool]:
        norms, none = torch.empty(len(losses), dtype=torch.float64), [(None, None)] * len(maps)
        fine = self._norms(
            _records(maps, none), len(maps), len(losses), losses.data_ptr(), norms.data_ptr()
        )
        return norms, bool(fine)

    def sums_of_maps(self, maps: Collection[OuterMap], weights: Tensor, sums: Sums) -> None:
        w = weights.to(torch.float64).contiguous()
        self._sums(_records(maps, sums), len(maps), len(w), w.data_ptr())


def _records(maps: Collection[OuterMap], sums: Sums) -> ctypes.Array[ctypes.c_int64]:
    """Return a table of maps as `_arithmetic.c` reads it: seven fields of eight bytes each."""
    numbers: list[int] = []
    for (e, x, has_bias), (weight, bias) in zip(maps, sums, strict=True):
        at, inputs = (0, 0) if x is None else (x.data_ptr(), x.shape[1])
        to = 0 if weight is None else weight.data_ptr(), 0 if bias is None else bias.data_ptr()
        numbers += (e.data_ptr(), at, e.shape[1], inputs, has_bias, *to)
    return _table(len(numbers))(*numbers)


@functools.cache
def library() -> _Compiled | None:
    """Load the library; None where there is none that agrees with NumPy."""
    return compiled.load(SOURCE, _Compiled, agrees)


PLAIN = _Plain()


def _for(*tensors: Tensor) -> _Compiled | _Plain:
    found = library()
    return PLAIN if found is None or not all(x.is_cpu for x in tensors) else found


def agrees(found: Any) -> bool:
    """Tell whether it finds what NumPy finds, on rows of all magnitudes, each by itself."""
    generator = torch.Generator().manual_seed(0)
    sizes = [0.0, 1e-45, 1e-39, 1e-20, 1.0, 1e19, 1e38, math.nan, math.inf]
    for dtype, places, k, d in CASES:
        more = [1e-300, 1e-76, 1e75, 1e300] if dtype is torch.float64 else []
        scale = torch.tensor([*sizes[:-2], *more, *sizes[-2:]], dtype=dtype).view(-1, 1, 1)
        e, x = (torch.randn(len(scale), places, s, generator=generator).to(dtype) for s in (k, d))
        for one, other in ((e * scale, x), (e, x * scale), (e * scale, x * scale)):
            for rows in (len(scale), len(scale) - 2):  # the last two are not finite
                given = one[:rows], other[:rows], torch.rand(rows, generator=generator).double()
                mine, alone = _answers(found, *given), _answers(found, *(t[-1:] for t in given))
                theirs, most = _answers(PLAIN, *given), _answers(PLAIN, *(t.abs() for t in given))
                ends = (
                    torch.equal(a[-1:].nan_to_num(), b.nan_to_num())
                    for a, b in zip(mine[:5], alone[:5], strict=True)
                )
                if rows == len(scale) - 2 and not all(ends):
                    return False
                if not all(map(_close, mine, theirs, most)):
                    return False
    return True


CASES = (torch.float32, 1, 3, 45), (torch.float64, 3, 18, 5), (torch.float32, 20, 3, 4)
"""Number type, places and sizes of the factors on which a library is tried."""


def _answers(way: Any, e: Tensor, x: Tensor, weights: Tensor) -> list[Tensor]:
    """Return what is computed row by row, then sums over rows."""
    (_, places, k), d = e.shape, x.shape[2]
    rows = [way.squares(x), *way.factor_norms([e, e[:, :, 1:]], x), way.form_rows(e, x)]
    rows.append(way.inner_products(x[:, 0], torch.arange(2.0 * d).view(2, d).to(x)))
    index = torch.arange(places).remainder(3).sub(1).expand(len(e), places)
    row, product, scattered = (torch.zeros(s, dtype=torch.float64) for s in (d, (k, d), (2, d)))
    way.weigh_rows(weights, x[:, 0], row, False)
    way.weigh_products(weights, e, x, product, False)
    way.scatter(weights, x, index, scattered)
    few = [t[:, 0].float().contiguous() for t in (e, x)]
    maps, bias = (
        [OuterMap(few[0], few[1], 1), OuterMap(few[0], None, 1)],
        torch.zeros(k, dtype=torch.float64),
    )
    norms, fine = way.norms_of_maps(maps, few[0][:, 0])
    leaf = torch.zeros(k, d, dtype=torch.float64)
    way.sums_of_maps(maps, weights, [(leaf, None), (None, bias)])
    return [*rows, row, product, scattered, norms, torch.tensor([float(fine)]), leaf, bias]


def _close(mine: Tensor, theirs: Tensor, most: Tensor) -> bool:
    """Tell whether they agree but for rounding: 1e-13 of what there is if nothing cancels."""
    near = (mine - theirs).abs() <= 1e-13 * most
    told = theirs.isfinite().logical_not_()
    return bool(torch.where(told, mine.isfinite().logical_not_(), near).all())


def _numbers(*tensors: Tensor) -> tuple[list[Tensor], int]:
    """Return them contiguous and of one type, and whether that is float64. What the library is told
    is 0 for float32, 1 for float64 in factors and 2 for float64 in rows."""
    types = [x.dtype for x in tensors]
    dtype = torch.float64 if torch.float64 in types else torch.float32
    found = [
        x if x.dtype is dtype and x.is_contiguous() else x.detach().to(dtype).contiguous()
        for x in tensors
    ]
    return found, int(dtype is torch.float64)


def _fit(*pairs: tuple[Any, Any]) -> None:
    for one, other in pairs:
        if one != other:
            raise ValueError(f"shapes must fit together. Got {one} and {other} instead.")


def _weights(weights: Tensor | None) -> Tensor | None:
    return None if weights is None else weights.detach().to("cpu", torch.float64).contiguous()


def _flat(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.reshape(len(x), math.prod(x.shape[1:]))


@functools.cache
def _table(count: int) -> type[ctypes.Array[ctypes.c_int64]]:
    return ctypes.c_int64 * count


def _share(count: int, work: int, part: Callable[[int, int], None]) -> None:
    """Do ``part(start, stop)`` of ``count`` results by as many threads as are worth it."""
    pieces = min(torch.get_num_threads(), work // WORTH_A_THREAD, count)
    if pieces <= 1:
        return part(0, count)
    ends = [count * i // pieces for i in range(pieces + 1)]
    others = [threading.Thread(target=part, args=ends[i : i + 2]) for i in range(1, pieces)]
    for other in others:
        other.start()
    part(0, ends[1])
    for other in others:
        other.join()


def _row_squares(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.square(x).reshape(len(x), math.prod(x.shape[1:])).sum(1)
    return found


def _like(found: np.ndarray, x: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(found)).to(x.device)
