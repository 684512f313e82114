"""The plain sum of a few rows of a batch, at the cost of those rows.

A weighted sum with weights 0 and 1 costs as much as the whole batch. Here the recorded pieces of
the chosen rows are taken out first, so that m sums over n/m rows cost about one over n.
"""

from __future__ import annotations

from functools import singledispatch

import torch
from torch import Tensor

from winsor.contract import Tree
from winsor.grads.ghost import PieceView
from winsor.grads.pieces import Factors, Outer, Piece, Rows
from winsor.grads.view import View


@torch.no_grad()
def sum_of(view: View, members: Tensor) -> Tree:
    """sum of g_i over ``members``, without those that are not finite."""
    if isinstance(view, PieceView):
        view.norms()  # rows that are not finite become zeros in what is recorded
        chosen = {name: chosen_of(piece, members) for name, piece in view.recorded.items()}
        pieces = {name: piece for name, piece in chosen.items() if piece is not None}
        if len(pieces) == len(chosen):
            return view.with_pieces(pieces, view.raw_losses[members]).total()
    weights = torch.zeros_like(view.losses())
    weights[members] = 1.0
    return view.weighted_sum(weights)


@singledispatch
def chosen_of(piece: Piece, members: Tensor) -> Piece | None:
    """The piece of some rows, as it is; None where it cannot be divided cheaply."""
    return None


@chosen_of.register
def _(piece: Rows, members: Tensor) -> Rows:
    return Rows(piece.values[members])


@chosen_of.register
def _(piece: Outer, members: Tensor) -> Outer:
    return Outer(Rows(piece.left.values[members]), Rows(piece.right.values[members]))


@chosen_of.register
def _(piece: Factors, members: Tensor) -> Factors:
    return Factors(piece.left[members], piece.right[members])
