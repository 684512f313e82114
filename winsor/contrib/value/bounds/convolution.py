"""Convolutions in one, two or three dimensions, with groups, as W applied to the patches U of h.

back.  See `spectral.convolution_norm`.
own.   dW = e U^T, so |dW|_F <= |e|_F |U|_F, where |U|_F^2 counts every entry of h once per window
       over it; with groups, the largest group. db = sum_p e_p: a^2 = max |U|_F^2 + P [bias].
given. Where rows are kept, their norms; where maps are small and channels many, the norms again, as
       ghost norms (`grads/layers/patch_grams.py`): they cost less than the bound and lose nothing.
       Elsewhere split patches and gradient into their means over
       the P positions and the rest, U = Uc + u 1^T and e = ec + m 1^T. The cross terms vanish:
       dW = ec Uc^T + P m u^T, hence

           |dW|_F <= S(ec) |Uc|_F + P |m| |u|,      db = P m exactly.

       S(ec) comes from a small Gram matrix over channels. Natural images and ReLU activations have
       large means, and a GroupNorm above makes m small, so this is far tighter than |e|_F |U|_F.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from winsor.contrib.value.bounds.kind import (
    SLACK,
    TINY,
    Kind,
    RowBlocks,
    check_first_dimension,
    refuse,
    summed,
)
from winsor.contrib.value.bounds.spectral import top_eigenvalue, trace
from winsor.contrib.value.bounds.windows import cover, geometry, sums_by_offset
from winsor.gradients.graph import Step
from winsor.gradients.layers.convolution import ConvolutionPiece, costs_of_convolution
from winsor.gradients.row_memory import MAC
from winsor.gradients.weight_gradients import KeptConvolution, KeptRows

_IN_CACHE = 1 << 20
"""Bytes of inputs and output-gradients that are looked at together."""


def _check(step: Step, rows: RowBlocks) -> None:
    check_first_dimension(step, rows)
    if step.saved("transposed"):
        refuse(step, "is a transposed convolution")


def _back(step: Step, position: int, rows: RowBlocks) -> float:
    weight = step.weights.get(1)
    return rows.norms.convolution(
        weight.name if weight else None,
        step.saved("weight"),
        tuple(step.saved("stride")),
        tuple(step.saved("dilation")),
        int(step.saved("groups")),
        tuple(step.shape[2:]),
    )


def _by_group(x: Tensor, groups: int) -> Tensor:
    """(rows, C, *grid) -> (rows, groups, C/groups, entries)."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, -1)


def _energy(step: Step, h: Tensor) -> Tensor:
    """(rows, groups) |U|_F^2, up to a share `_drift` of it."""
    counts = cover(geometry(tuple(h.shape[2:]), step), h.dtype).to(h.device)
    by_channel = h.square().reshape(-1, len(counts)) @ counts
    return by_channel.view(h.shape[0], int(step.saved("groups")), -1).sum(2)


def _drift(*lengths: int) -> float:
    """Share by which plain float32 sums of ``lengths`` terms, and differences of their squares,
    can be off: twice the number of terms times half an ulp."""
    return SLACK + 1.2e-7 * max(lengths)


def _patch_sums(step: Step, h: Tensor) -> Tensor:
    """(rows, groups, C/groups * offsets) sums of the patches over all positions: P u."""
    sums = sums_by_offset(h, geometry(tuple(h.shape[2:]), step))
    return sums.reshape(h.shape[0], int(step.saved("groups")), -1)


def _own(step: Step, rows: RowBlocks) -> Tensor | float:
    bias = float(math.prod(step.shape[2:]) * rows.blocks(step)) if 2 in step.weights else 0.0
    if 1 not in step.weights:
        return bias
    h = step.saved("input")
    energy = _energy(step, h) * (1 + _drift(h[0, 0].numel()))
    return energy.view(rows.n, -1, energy.shape[1]).sum(1).amax(1) + bias


def _given(step: Step, piece: KeptConvolution | KeptRows, rows: RowBlocks) -> Tensor:
    if isinstance(piece, KeptRows):
        return rows.of_rows(piece)
    total = _exactly(step, piece) if _ghosts_are_cheap(piece) else _bounded(step, piece)
    if rows.blocks(step) == 1:
        return total
    return total.sqrt().view(rows.n, -1).sum(1).square()  # blocks add up: triangle inequality


def _ghosts_are_cheap(piece: KeptConvolution) -> bool:
    """Return whether norms from Gram matrices cost no more than the weight gradient itself."""
    e, h = piece.e, piece.input
    if h is None or piece.weight is None or not h.dtype == e.dtype == torch.float32:
        return False  # of half precision, Gram matrices would be rounded too much
    costs = costs_of_convolution(h, e, piece.weight.tensor.shape, piece.geometry)
    contraction = MAC * e[0, 0].numel() * piece.weight.tensor.numel()
    return costs["ghost"] <= 2 * contraction


def _exactly(step: Step, piece: KeptConvolution) -> Tensor:
    """(blocks,) squared norms, held above what cancelling places leave (`pieces.NORM_FLOOR`)."""
    e, h, weight = piece.e, piece.input, piece.weight
    assert h is not None and weight is not None
    ghost = ConvolutionPiece(h, e, weight.tensor.shape, piece.geometry, ghost=True)
    total = ghost.square()
    if 2 in step.weights:
        by_channel = e.flatten(2)
        sums, energy = by_channel.sum(2), by_channel.square().sum((1, 2))
        total = total + summed(sums.square().sum(1), energy, by_channel.shape[2])
    return total


def _bounded(step: Step, piece: KeptConvolution) -> Tensor:
    """(blocks,) squared bounds, a cacheful at a time."""
    e, h = piece.e, piece.input
    size = max(1, _IN_CACHE * len(e) // (e.nbytes + (0 if h is None else h.nbytes)))
    found = [_given_of(step, e[i : i + size], h, i) for i in range(0, len(e), size)]
    return found[0] if len(found) == 1 else torch.cat(found)


def _given_of(step: Step, e: Tensor, whole: Tensor | None, start: int) -> Tensor:
    """The bounds of some rows, few enough for what is read twice to be still at hand."""
    grouped = _by_group(e, int(step.saved("groups")))  # (rows, groups, K/groups, P)
    sums = grouped.sum(3)
    if whole is not None:
        total, of_sums = _weight_given(step, grouped, sums, whole[start : start + len(e)])
    else:
        energy = grouped.square().sum((2, 3))
        total, of_sums = 0 * energy, _of_sums(sums, energy, grouped.shape[3])
    if 2 in step.weights:
        total = total + of_sums
    return total.sum(1)


def _of_sums(sums: Tensor, energy: Tensor, positions: int) -> Tensor:
    """(rows, groups) bounds on |P m|^2, the squared gradient of the bias."""
    return summed(sums.square().sum(2), energy, positions)


def _weight_given(step: Step, grouped: Tensor, sums: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, groups) bounds on |dW|_F^2, and on |P m|^2."""
    positions = grouped.shape[3]
    energy = _energy(step, h)
    mean_part = _patch_sums(step, h).square().sum(2) / positions
    rest = (energy - mean_part).clamp_min(0.0) + _drift(h[0, 0].numel()) * energy
    spread, size = _spread(grouped.flatten(0, 1), sums.flatten(0, 1))
    of_sums = _of_sums(sums, size.view_as(rest), positions)
    means = ((of_sums / positions + TINY) * (mean_part + TINY)).sqrt()
    root = ((spread.view_as(rest) + TINY) * (rest + TINY)).sqrt() + means
    return root.square(), of_sums


def _spread(e: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, K, P), (rows, K) -> (rows,) upper bounds on S(ec)^2, and |e|_F^2.

    The Gram matrix of ec comes from that of e over the shorter side: e e^T - P m m^T, or e^T e
    with the means of its rows and columns taken out.
    """
    _, channels, positions = e.shape
    if positions < channels:
        gram = e.mT @ e
        means = gram.mean(1, keepdim=True)
        centred = gram - means - means.mT + means.mean(2, keepdim=True)
    else:
        gram = e @ e.mT
        centred = gram - (sums / positions)[:, :, None] * sums[:, None, :]
    energy = trace(gram)
    return top_eigenvalue(centred, energy) + _drift(channels, positions) * energy, energy


KINDS = (
    Kind(
        ("ConvolutionBackward0",),
        _back,
        _check,
        _own,
        _given,
        weights=frozenset({1, 2}),
        local=False,
    ),
)
