"""Sums over groups of a batch's rows: their norms without forming them, or the sums themselves.

A group of rows is to ghost norms what a time axis is (`units.py`): the recorded pieces of the rows
are put side by side, group by group, and the norm of each group's sum follows from Gram matrices.
Where a piece cannot be taken apart the sums are formed one by one. A weighted sum with weights 0
and 1 costs as much as the whole batch, so the chosen rows are taken out first where that is cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

import torch
from torch import Tensor

from winsor.core.contract import Tree
from winsor.gradients.parameter_rows import Factors, Outer, ParameterRows, Rows
from winsor.gradients.recorded_view import RecordedView
from winsor.gradients.units import Units
from winsor.gradients.view import View


@torch.no_grad()
def norms_of_sums(view: View, groups: Sequence[Tensor]) -> Tensor | None:
    """Return (groups,) norms of the sums over each group's finite rows.

    None where they must be formed to be known: pieces that cannot be taken apart, or a sum beyond
    the largest float.
    """
    if not isinstance(view, RecordedView) or not groups:
        return None
    view.norms()  # rows that are not finite become zeros in what is recorded
    order, units = torch.cat(list(groups)), Units([len(group) for group in groups])
    chosen = {name: chosen_of(piece, order) for name, piece in view.recorded.items()}
    pieces = {name: piece.per_unit(units) for name, piece in chosen.items() if piece is not None}
    if len(pieces) < len(chosen):
        return None
    together = view.with_pieces(pieces, units.summed(view.losses()[order]))
    return None if together.neutralised else together.norms()


@torch.no_grad()
def sum_of(view: View, members: Tensor) -> Tree:
    """Add up g_i over ``members``, without those that are not finite."""
    if isinstance(view, RecordedView):
        view.norms()  # rows that are not finite become zeros in what is recorded
        chosen = {name: chosen_of(piece, members) for name, piece in view.recorded.items()}
        pieces = {name: piece for name, piece in chosen.items() if piece is not None}
        if len(pieces) == len(chosen):
            return view.with_pieces(pieces, view.raw_losses[members]).total()
    weights = torch.zeros_like(view.losses())
    weights[members] = 1.0
    return view.weighted_sum(weights)


@singledispatch
def chosen_of(piece: ParameterRows, members: Tensor) -> ParameterRows | None:
    """Return the piece of some rows, as it is; None where it cannot be divided cheaply."""
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
