"""Convolutions in one, two or three dimensions, with groups, as W applied to the patches U of h.

back.  See `spectral.convolution_norm`.
own.   dW = e U^T, so |dW|_F <= |e|_F |U|_F, where |U|_F^2 counts every entry of h once per window
       over it; with groups, the largest group. db = sum_p e_p: a^2 = max |U|_F^2 + P [bias].
given. Where rows are kept, their norms; where maps are small and channels many, the norms again,
       from patches (`arithmetic.factor_norms`): they cost less than the bound and lose nothing.
       Elsewhere split patches and gradient into their means over
       the P positions and the rest, U = Uc + u 1^T and e = ec + m 1^T. The cross terms vanish:
       dW = ec Uc^T + P m u^T, hence

           |dW|_F <= S(ec) |Uc|_F + P |m| |u|,      db = P m exactly.

       S(ec) comes from a small Gram matrix over channels. Both parts vanish where places cancel, so
       THETA |e|_F^2 |U|_F^2 is added, at least THETA times the squared length without
       cancellation. Natural images and ReLU activations have
       large means, and a GroupNorm above makes m small, so this is far tighter than |e|_F |U|_F.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from winsor.contrib.value.bounds.kind import (
    Kind,
    RowBlocks,
    check_first_dimension,
    refuse,
    summed,
)
from winsor.contrib.value.bounds.spectral import OUTWARDS, top_eigenvalue
from winsor.contrib.value.bounds.windows import cover, geometry, sums_by_offset
from winsor.gradients.arithmetic import THETA, wide
from winsor.gradients.graph import Step
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
    """(rows, groups) |U|_F^2, of float64 ``h``."""
    counts = cover(geometry(tuple(h.shape[2:]), step), h.dtype).to(h.device)
    by_channel = (h.square().reshape(-1, len(counts)) * counts).sum(1)
    return by_channel.view(h.shape[0], int(step.saved("groups")), -1).sum(2)


def _drift(*lengths: int) -> float:
    """Share by which float64 sums of ``lengths`` terms, and differences of their squares, can be
    off: eight times the number of terms times half an ulp."""
    return 2.0**-50 * max(lengths)


def _patch_sums(step: Step, h: Tensor) -> Tensor:
    """(rows, groups, C/groups * offsets) sums of the patches over all positions: P u."""
    sums = sums_by_offset(h, geometry(tuple(h.shape[2:]), step))
    return sums.reshape(h.shape[0], int(step.saved("groups")), -1)


def _own(step: Step, rows: RowBlocks) -> Tensor | float:
    bias = float(math.prod(step.shape[2:]) * rows.blocks(step)) if 2 in step.weights else 0.0
    if 1 not in step.weights:
        return bias
    energy = _energy(step, wide(step.saved("input")))
    return energy.view(rows.n, -1, energy.shape[1]).sum(1).amax(1) * OUTWARDS + bias


def _given(step: Step, piece: KeptConvolution | KeptRows, rows: RowBlocks) -> Tensor:
    if isinstance(piece, KeptRows):
        return rows.of_rows(piece)
    total = _exactly(step, piece) if _grams_are_cheap(piece) else _bounded(step, piece)
    if rows.blocks(step) == 1:
        return total
    return total.sqrt().view(rows.n, -1).sum(1).square()  # blocks add up: triangle inequality


def _grams_are_cheap(piece: KeptConvolution) -> bool:
    """Return whether norms from Gram matrices cost no more than the weight gradient itself."""
    if piece.weight is None:
        return False
    outputs, numbers = len(piece.weight.tensor), piece.weight.tensor[0].numel()
    return piece.e[0, 0].numel() * (outputs + numbers) <= outputs * numbers


def _exactly(step: Step, piece: KeptConvolution) -> Tensor:
    """(blocks,) squared norms, with the term for cancelling places."""
    total = piece.piece(piece.e.new_ones(len(piece.e), dtype=torch.bool)).square()
    if 2 in step.weights:
        e = wide(piece.e).flatten(2)
        total += summed(e.sum(2).square().sum(1), e.square().sum((1, 2)), e.shape[2])
    return total


def _bounded(step: Step, piece: KeptConvolution) -> Tensor:
    """(blocks,) squared bounds, a cacheful at a time."""
    e, h = piece.e, piece.input
    size = max(1, _IN_CACHE * len(e) // (e.nbytes + (0 if h is None else h.nbytes)))
    found = [_given_of(step, e[i : i + size], h, i) for i in range(0, len(e), size)]
    return found[0] if len(found) == 1 else torch.cat(found)


def _given_of(step: Step, e: Tensor, whole: Tensor | None, start: int) -> Tensor:
    """The bounds of some rows, few enough for what is read twice to be still at hand."""
    grouped = _by_group(wide(e), int(step.saved("groups")))  # (rows, groups, K/groups, P)
    sums, energy = grouped.sum(3), grouped.square().sum((2, 3))
    of_sums = summed(sums.square().sum(2), energy, grouped.shape[3])
    total = torch.zeros_like(energy)
    if whole is not None:
        h = wide(whole[start : start + len(e)])
        total = _weight_given(step, grouped, sums, energy, of_sums, h)
    if 2 in step.weights:
        total = total + of_sums
    return total.sum(1)


def _weight_given(
    step: Step, grouped: Tensor, sums: Tensor, energy: Tensor, of_sums: Tensor, h: Tensor
) -> Tensor:
    """(rows, groups) bounds on |dW|_F^2, from |e|_F^2 and |P m|^2."""
    of_patches = _energy(step, h)
    mean_part = _patch_sums(step, h).square().sum(2) / grouped.shape[3]
    drift = _drift(h[0, 0].numel()) * of_patches
    rest = (of_patches - mean_part).clamp_min(0.0) + drift
    spread = _spread(grouped.flatten(0, 1), sums.flatten(0, 1), energy.flatten()).view_as(rest)
    means = (of_sums / grouped.shape[3]).sqrt() * (mean_part + drift).sqrt()
    root = spread.sqrt() * rest.sqrt() + means
    return root.square() + THETA * energy * of_patches


def _spread(e: Tensor, sums: Tensor, energy: Tensor) -> Tensor:
    """(rows, K, P), (rows, K), |e|_F^2 -> (rows,) upper bounds on S(ec)^2.

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
    return top_eigenvalue(centred, energy) + _drift(channels, positions) * energy


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
