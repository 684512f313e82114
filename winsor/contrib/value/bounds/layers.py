"""Linear layers and normalisations.

Linear layers, y = h W^T + b, at P positions per row.

back.  e -> e W has norm S(W), the spectral norm.
own.   dW = e^T h, so |dW|_F <= |e|_F |h|_F;  db = sum_p e_p, so |db|^2 <= P |e|^2. Together
       a^2 = |h|_F^2 + P [bias].
given. P = 1: |dW|_F^2 = |e|^2 |h|^2 exactly. P > 1: |dW|_F <= S(e) |h|_F, and db exactly. Places
       that cancel are covered: S(e) |h|_F >= |e|_F |h|_F / sqrt(P), and |e|_F |h|_F is at least
       the length without cancellation. db has a term for them.

GroupNorm and LayerNorm: y = gamma xhat + beta, xhat = (x - mean) / s, within each row.

back.  d xhat / d x = (I - 1 1^T/N - xhat xhat^T/N) / s per group of N entries. xhat is orthogonal
       to 1 and |xhat|^2 <= N (eps > 0 only shrinks it), so the bracket is a contraction:
       b = max over groups of max |gamma| / s.
own.   dgamma_c = sum_p e_cp xhat_cp and dbeta_c = sum_p e_cp over the P positions of channel c,
       so |dgamma_c|^2 + |dbeta_c|^2 <= |e_c|^2 (|xhat_c|^2 + P). GroupNorm: the channels of a
       group share |xhat|^2 <= N = P C/G, hence a^2 = P (C/G + 1) without looking at the data.
       LayerNorm: a^2 = max_c sum_p (xhat_cp^2 + 1).
given. dgamma and dbeta themselves, they are as small as a bias: the very numbers that are summed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from winsor.contrib.value.bounds.kind import (
    Kind,
    RowBlocks,
    check_first_dimension,
    refuse,
    summed,
)
from winsor.contrib.value.bounds.spectral import largest_squared
from winsor.gradients.arithmetic import wide
from winsor.gradients.graph import Step
from winsor.gradients.weight_gradients import KeptLinear, KeptRows

_INPUT = {"AddmmBackward0": "mat1", "MmBackward0": "self"}
_WEIGHT = {"AddmmBackward0": 2, "MmBackward0": 1}


def _back(step: Step, position: int, rows: RowBlocks) -> float:
    weight = step.weights.get(_WEIGHT[step.op])
    matrix = step.saved("mat2") if weight is None else weight.tensor
    return rows.norms.matrix(weight.name if weight else None, matrix)


def _has_bias(step: Step) -> bool:
    return step.op == "AddmmBackward0" and 0 in step.weights


def _weight_own(step: Step, rows: RowBlocks) -> Tensor | None:
    """|h|_F^2, if the weight is trained."""
    if _WEIGHT[step.op] not in step.weights:
        return None
    return rows.squares(step.saved(_INPUT[step.op]))


def _own(step: Step, rows: RowBlocks) -> Tensor | float:
    bias = float(rows.blocks(step)) if _has_bias(step) else 0.0
    weight = _weight_own(step, rows)
    return bias if weight is None else weight + bias


def _given(step: Step, piece: KeptLinear, rows: RowBlocks) -> Tensor:
    e, positions = piece.e, rows.blocks(step)
    own, energy = _weight_own(step, rows), rows.squares(e)
    if positions == 1:
        return energy * (float(_has_bias(step)) + (0.0 if own is None else own))
    per_row = wide(e).view(rows.n, positions, -1)
    total = torch.zeros_like(energy) if own is None else largest_squared(per_row) * own
    if not _has_bias(step):
        return total
    return total + summed(rows.squares(per_row.sum(1)), energy, positions)


def _check(step: Step, rows: RowBlocks) -> None:
    check_first_dimension(step, rows)
    if step.op == "AddmmBackward0" and (step.saved("alpha") != 1 or step.saved("beta") != 1):
        refuse(step, "scales its product")


def _back_group(step: Step, position: int, rows: RowBlocks) -> Tensor:
    rstd, gamma = step.saved("result2"), step.saved("weight")  # (rows, groups), (channels,)
    scale = rstd if gamma is None else rstd * gamma.abs().view(rstd.shape[1], -1).amax(1)
    return rows.largest(scale)


def _own_group(step: Step, rows: RowBlocks) -> float:
    positions = int(step.saved("HxW")) * rows.blocks(step)
    # With several blocks a channel's entries add up over them, and so do both parts of a^2.
    per_group = int(step.saved("C")) // int(step.saved("group"))
    return float(positions * (1 in step.weights) * per_group + positions * (2 in step.weights))


def _back_layer(step: Step, position: int, rows: RowBlocks) -> Tensor:
    gamma = step.saved("weight")
    largest = rows.largest(step.saved("result2"))
    return largest if gamma is None else largest * gamma.abs().amax()


def _normalised(step: Step, rows: RowBlocks) -> Tensor:
    """(n, positions, features) xhat."""
    x, mean, rstd = (wide(step.saved(name)) for name in ("input", "result1", "result2"))
    return ((x - mean) * rstd).reshape(rows.n, -1, _features(step))


def _features(step: Step) -> int:
    size = 1
    for length in step.saved("normalized_shape"):
        size *= int(length)
    return size


def _own_layer(step: Step, rows: RowBlocks) -> Tensor:
    xhat = _normalised(step, rows)
    scale = xhat.square().sum(1).amax(1) if 1 in step.weights else 0.0 * xhat[:, 0, 0]
    return scale + xhat.shape[1] * (2 in step.weights)


def _given_norm(step: Step, piece: KeptRows, rows: RowBlocks) -> Tensor:
    return rows.of_rows(piece)


def _check_layer(step: Step, rows: RowBlocks) -> None:
    check_first_dimension(step, rows)
    if len(step.saved("normalized_shape")) >= len(step.shape):
        refuse(step, "normalises over the batch")


KINDS = (
    Kind(
        ("AddmmBackward0",),
        _back,
        _check,
        _own,
        _given,
        data=frozenset({1}),
        weights=frozenset({0, 2}),
    ),
    Kind(
        ("MmBackward0",), _back, _check, _own, _given, data=frozenset({0}), weights=frozenset({1})
    ),
    Kind(
        ("NativeGroupNormBackward0",),
        _back_group,
        check_first_dimension,
        _own_group,
        _given_norm,
        weights=frozenset({1, 2}),
    ),
    Kind(
        ("NativeLayerNormBackward0",),
        _back_layer,
        _check_layer,
        _own_layer,
        _given_norm,
        weights=frozenset({1, 2}),
    ),
)
