"""Sums over rows and places in float32, cut into pieces where rounding would add up."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

FLOAT32_SUM_TERMS = 1 << 8
"""Longest sum of squares that is left to float32: whatever the order of summation, its root is off
by at most 8e-6 of itself. Up to `FLOAT32_LANE_TERMS` terms, torch adds neighbours in eight lanes,
each an eighth as long (4e-6). More are cut into even parts of that length, or else torch.sum adds
up to `FLOAT32_CASCADE_TERMS` in a cascade of short sums, which is as exact; beyond, parts are added
up in float64."""

FLOAT32_LANE_TERMS = 1 << 10
FLOAT32_CASCADE_TERMS = 1 << 16

FLOAT32_SUM_ROWS = 1 << 14
"""Rows whose weighted sum is left to float32; more are added up in float64, in pieces."""


def square_rows(rows: Tensor) -> Tensor:
    """Return squared norms (n,) of ``rows`` (n, *shape), off by at most 8e-6 of their root."""
    flat = rows
    if rows.dim() != 2:
        flat = rows.flatten(1) if rows.dim() > 2 else rows.unsqueeze(1)
    length = flat.shape[1]
    if length <= FLOAT32_SUM_TERMS or (length <= FLOAT32_LANE_TERMS and flat.stride(1) == 1):
        return torch.linalg.vector_norm(flat, dim=1).square_()
    parts = _even_parts(length) if flat.is_contiguous() else 0
    if parts:
        lanes = flat.view(len(flat), parts, length // parts)
        return torch.linalg.vector_norm(lanes, dim=2).square_().sum(1)
    if length <= FLOAT32_CASCADE_TERMS:
        return flat.square().sum(1)
    pieces = [part.square().sum(1).double() for part in flat.split(FLOAT32_CASCADE_TERMS, dim=1)]
    return torch.stack(pieces).sum(0).to(flat.dtype)


@functools.cache
def _even_parts(length: int) -> int:
    """Return the smallest number of even parts of at most `FLOAT32_LANE_TERMS` terms, for one pass
    over rows; 0 if there is no sensible one."""
    fewest = -(-length // FLOAT32_LANE_TERMS)
    counts = range(fewest, min(8 * fewest, FLOAT32_CASCADE_TERMS) + 1)
    return next((count for count in counts if length % count == 0), 0)


def weigh_rows(w: Tensor | None, rows: Tensor, start: int, stop: int) -> Tensor:
    """Return the weighted sum of ``rows``, which are rows ``start`` to ``stop`` of those that ``w``
    weighs."""
    flat = rows.reshape(stop - start, -1)
    return flat.sum(0) if w is None else w[start:stop] @ flat


def scaled(x: Tensor, w: Tensor | None) -> Tensor:
    """Return row i of ``x`` times w_i."""
    return x if w is None else x * w.view(-1, *[1] * (x.dim() - 1))


def add_products(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Write sum_i left_i right_i^T into ``out``."""
    if len(left) <= FLOAT32_SUM_ROWS:
        torch.mm(left.T, right, out=out)
        return
    pairs = zip(left.split(FLOAT32_SUM_ROWS), right.split(FLOAT32_SUM_ROWS), strict=True)
    out.copy_(in_pieces(a.T @ b for a, b in pairs))


def in_pieces(parts: Iterable[Tensor]) -> Tensor:
    """Add up a long sum from its pieces, in float64."""
    total: Tensor | None = None
    for part in parts:
        total = part.double() if total is None else total.add_(part)
    assert total is not None
    return total


def zero_where_not(kept: Tensor, x: Tensor) -> Tensor:
    """Replace rows that are not ``kept`` by zeros, whatever they hold."""
    return torch.where(kept.view(-1, *[1] * (x.dim() - 1)), x, 0.0)


def add_up(tensors: Sequence[Tensor]) -> Tensor:
    """Add tensors in their order."""
    first, *rest = tensors
    for tensor in rest:
        first = first + tensor
    return first


def exact_or_zero(weights: Tensor) -> Tensor:
    """Set to zero, in place, weights below the normal range of their type: they have lost digits,
    and may have been rounded up by more than rules make room for. Such a row, some 1e38 times as
    long as its bound, counts nothing."""
    return F.threshold(weights, torch.finfo(weights.dtype).tiny, 0.0, inplace=True)
