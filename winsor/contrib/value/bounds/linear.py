"""Linear layers, y = h W^T + b, at P positions per row.

back.  e -> e W has norm S(W), the spectral norm.
own.   dW = e^T h, so |dW|_F <= |e|_F |h|_F;  db = sum_p e_p, so |db|^2 <= P |e|^2. Together
       a^2 = |h|_F^2 + P [bias].
given. P = 1: |dW|_F^2 = |e|^2 |h|^2 exactly. P > 1: |dW|_F <= S(e) |h|_F, and db exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from winsor.contrib.value.bounds.kind import (
    TINY,
    Kind,
    RowBlocks,
    check_first_dimension,
    refuse,
    summed,
)
from winsor.contrib.value.bounds.spectral import largest_squared
from winsor.gradients.graph import Step
from winsor.gradients.weight_gradients import KeptLinear

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
    if positions == 1:
        size, own = rows.gradients(e), _weight_own(step, rows)
        if own is None:
            return size
        return torch.addcmul(size, size, own) if _has_bias(step) else size * (own + TINY)
    per_row = e.view(rows.n, positions, -1)
    own = _weight_own(step, rows)
    total = e.new_zeros(rows.n) if own is None else (largest_squared(per_row) + TINY) * own
    if not _has_bias(step):
        return total
    return total + summed(per_row.sum(1).square().sum(1), rows.squares(e), positions)


def _check(step: Step, rows: RowBlocks) -> None:
    check_first_dimension(step, rows)
    if step.op == "AddmmBackward0" and (step.saved("alpha") != 1 or step.saved("beta") != 1):
        refuse(step, "scales its product")


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
)
