"""How long each row is in L1 and in its largest coordinate, from its factors where it has some.

A linear map applied once per row has G_i = left_i right_i^T, and both are products:

    |G_i|_1 = |left_i|_1 |right_i|_1,      max |G_i| = max |left_i| max |right_i|.

So a rule that cuts coordinates forms only those rows, of those parameters, that it would cut.
Everything here is in float64: lengths of huge rows must not overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import singledispatch

import torch
from torch import Tensor

from winsor.core.contract import Tree
from winsor.gradients.piece_view import PieceView
from winsor.gradients.pieces import Outer, Piece, Rows

IN_CACHE = 1 << 18
"""Numbers of explicit rows at a time: a megabyte in float32, which stays in a core's cache."""


@torch.no_grad()
def lengths(view: PieceView, order: float) -> dict[str, Tensor]:
    """(n,) lengths of the rows of each parameter; ``order`` is 1 or infinity. Rows that are not
    finite have length 0, as they contribute nothing."""
    view.norms()  # neutralises
    return {name: piece_lengths(piece, order) for name, piece in view.recorded.items()}


@torch.no_grad()
def add_mapped(
    out: Tensor, piece: Piece, index: Tensor, f: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """out += sum over ``index`` of f(rows, their places), a cacheful of rows at a time."""
    chosen = piece.select(index)
    size = max(1, IN_CACHE // max(1, piece.shape.numel()))
    for start in range(0, len(index), size):
        stop = min(len(index), start + size)
        out += f(chosen.rows(start, stop), index[start:stop]).sum(0)


@singledispatch
def piece_lengths(piece: Piece, order: float) -> Tensor:
    """Of one parameter."""
    size = max(1, IN_CACHE // max(1, piece.shape.numel()))
    parts = [
        _of_rows(piece.rows(start, min(piece.n, start + size)), order)
        for start in range(0, piece.n, size)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


@piece_lengths.register
def _(piece: Rows, order: float) -> Tensor:
    return _of_rows(piece.values, order)


@piece_lengths.register
def _(piece: Outer, order: float) -> Tensor:
    return piece_lengths(piece.left, order) * piece_lengths(piece.right, order)


def _of_rows(rows: Tensor, order: float) -> Tensor:
    flat = rows.reshape(len(rows), -1)
    if not flat.shape[1]:
        return torch.zeros(len(rows), dtype=torch.float64)
    if order == math.inf:
        low, high = flat.aminmax(dim=1)
        return torch.maximum(high, -low).double()
    return flat.double().abs_().sum(1)


def scaled_and_cut(weights: Tensor, bound: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Rows times their weights, coordinates cut to [-bound, bound]."""

    def f(rows: Tensor, index: Tensor) -> Tensor:
        w = weights[index].to(rows.dtype).view(-1, *[1] * (rows.dim() - 1))
        return (rows * w).clamp_(-bound, bound)

    return f


@torch.no_grad()
def cut_sum(view: PieceView, weights: Tensor, bound: float) -> Tree:
    """sum_i of w_i g_i with every coordinate cut to [-bound, bound].

    A row whose largest coordinate is within the bound is cut nowhere, so it joins the weighted sum,
    which never forms it. The others are formed, parameter by parameter. ``bound`` must leave room
    for the rounding of float32: rows that join may exceed it by a few units in the last place.
    """
    peaks = {name: weights * length for name, length in lengths(view, math.inf).items()}
    within = {name: peak <= bound for name, peak in peaks.items()}
    zero = torch.zeros_like(weights)
    total = view.weighted_sum({name: torch.where(w, weights, zero) for name, w in within.items()})
    cut = scaled_and_cut(weights, bound)
    for name, inside in within.items():
        index = (~inside).nonzero()[:, 0]
        if len(index):
            add_mapped(total[name], view.recorded[name], index, cut)
    return total
