"""Norms and sums of recorded rows, in float64 from the factors to the noise (arithmetic R).

What an engine records of row i (rows, or factors left_it and right_it at places t = 1..T) are
floating-point numbers; they *are* the row from here on. Every norm and every sum below reads those
same numbers, widened to float64 before any operation:

    norm     N_i^2 = |G_i|^2 + THETA A_i^2,   A_i = sum_t |left_it| |right_it|
    sum      sum_i w_i G_i, with w_i and w_i left_it in float64, in any order

The products of four widened float32 numbers lie between 2^-596 and 2^512, so nothing overflows or
underflows. Numbers that are float64 already are held between 2^-250 and 2^250: smaller ones read as
0, larger ones as infinite, in norms and sums alike, and a row with an infinite number counts as
zero. The term with A_i, the length that a row has if nothing cancels, holds every rounding error of
a sum over places below 2^10 u N_i; where there is one place it is left out.

Guarantee
---------
With w_i N_i <= C, one row moves the sum by at most C (1 + `slack`), see `winsor.core.arithmetic`.
What is computed of row i is a function of row i: the same bits, whatever other rows there are.

The library made from `_arithmetic.c` widens numbers while it packs them into the cache. Without a
compiler, NumPy does the same operations more slowly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

THETA = 2.0**-20
"""Share of A_i^2 in a squared norm."""

SMALLEST_KEPT, LARGEST_KEPT = 2.0**-250, 2.0**250
"""Magnitudes between which a float64 number is read as it is."""


def wide(x: Tensor) -> Tensor:
    """Return ``x`` as float64 numbers whose products of four neither overflow nor underflow."""
    x = x.detach()
    if x.dtype is not torch.float64:
        return x.double()
    size = x.abs()
    x = torch.where(size < SMALLEST_KEPT, 0.0, x)
    return torch.where(size > LARGEST_KEPT, torch.inf * x, x)


def squares(x: Tensor) -> Tensor:
    """Return (n,) sums of squares of the rows of ``x`` (n, ...)."""
    flat = wide(x).reshape(len(x), x.shape[1:].numel()).cpu().numpy()
    return _like(np.einsum("ij,ij->i", flat, flat), x)


def lengths_of_rows(x: Tensor, order: float) -> Tensor:
    """Return (n,) lengths of the rows of ``x`` (n, ...) in L1, L2 or in the largest coordinate
    (``order`` 1, 2 or infinity)."""
    if order == 2:
        return squares(x).sqrt_()
    sizes = wide(x).reshape(len(x), x.shape[1:].numel()).abs_()
    if order == 1:
        return inner_products(sizes, sizes.new_ones(1, sizes.shape[1]))[:, 0]
    return sizes.amax(1) if sizes.shape[1] else sizes.new_zeros(len(x))


def lengths_of_places(x: Tensor, order: float = 2) -> Tensor:
    """Return (n, T) lengths of the places of ``x`` (n, T, k)."""
    return lengths_of_rows(x.reshape(-1, x.shape[-1]), order).view(x.shape[:-1])


def factor_norms(lefts: Sequence[Tensor], right: Tensor) -> tuple[Tensor, Tensor]:
    """Return (n,) sum_j |sum_t left_jt right_t^T|^2, and (n, j) lengths A_j if nothing cancels.

    ``lefts`` are (n, T, k_j) and ``right`` is (n, T, d). Maps that read one input share its Gram
    matrix. Gram matrices or explicit rows, whichever cost less for these shapes.
    """
    inner, out = wide(right).cpu().numpy(), np.zeros(len(right))
    places, reaches = lengths_of_places(right), []
    with np.errstate(invalid="ignore", over="ignore"):  # a row that is not finite is told by it
        for left in lefts:
            e = wide(left).cpu().numpy()
            for i in range(
                len(e)
            ):  # row by row: bits of a row must not depend on how many there are
                g = np.einsum("tk,td->kd", e[i], inner[i])
                out[i] += np.einsum("kd,kd->", g, g)
            reaches.append((lengths_of_places(left) * places).sum(1))
    return _like(out, right), torch.stack(reaches, 1)


def form_rows(left: Tensor, right: Tensor) -> Tensor:
    """Return (n, k, d) rows sum_t left_it right_it^T of (n, T, k) and (n, T, d)."""
    e, x = wide(left).cpu().numpy(), wide(right).cpu().numpy()
    rows = [np.einsum("tk,td->kd", e[i], x[i]) for i in range(len(e))]
    return _like(np.stack(rows) if rows else np.zeros((0, e.shape[2], x.shape[2])), right)


def sum_of_places(x: Tensor) -> Tensor:
    """Return (n, k) sums over the places of ``x`` (n, T, k)."""
    return form_rows(x.new_ones(1).expand(*x.shape[:2], 1), x)[:, 0]


def weigh_rows(weights: Tensor | None, rows: Tensor, out: Tensor, add: bool = False) -> None:
    """Write sum_i w_i rows_i of ``rows`` (n, ...) into ``out`` (float64), or add it there.

    Without ``weights`` all are 1.
    """
    flat = wide(rows).reshape(len(rows), rows.shape[1:].numel())
    total = flat.sum(0) if weights is None else weights.double() @ flat
    out.view(-1).add_(total) if add else out.view(-1).copy_(total)


def weigh_products(
    weights: Tensor | None, left: Tensor, right: Tensor, out: Tensor, add: bool = False
) -> None:
    """Write sum_i w_i sum_t left_it right_it^T into ``out`` (k, d) in float64, or add it there.

    ``left`` is (n, k) and ``right`` (n, d), or (n, T, k) and (n, T, d).
    """
    e, x = wide(left), wide(right)
    if weights is not None:
        e = e * weights.double().view(-1, *[1] * (e.dim() - 1))
    total = e.reshape(-1, e.shape[-1]).T @ x.reshape(-1, x.shape[-1])
    out.add_(total) if add else out.copy_(total)


def scatter(weights: Tensor | None, right: Tensor, index: Tensor, out: Tensor) -> None:
    """Add w_i right_it (n, T, d) to row index_it (n, T) of ``out`` (float64); negative ones are no
    places."""
    values = wide(right).masked_fill((index < 0).unsqueeze(2), 0.0)
    if weights is not None:
        values = values * weights.double().view(-1, 1, 1)
    out.index_add_(0, index.clamp_min(0).flatten(), values.flatten(0, 1))


def inner_products(rows: Tensor, directions: Tensor) -> Tensor:
    """Return (n, k) inner products of ``rows`` (n, d) with public ``directions`` (k, d)."""
    a, b = wide(rows).cpu().numpy(), wide(directions).cpu().numpy()
    return _like(np.einsum("nd,kd->nk", a, b), rows)


def _like(found: np.ndarray, x: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(found)).to(x.device)
