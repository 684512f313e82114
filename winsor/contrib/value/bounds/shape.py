"""Operations that move entries, add tensors, or sum over a row's own dimensions.

Moving entries keeps norms (b = 1); taking a part of them can only shorten the gradient. A sum
x + y hands the same e to both sides, so a residual block x + F(x) gets 1 + b_F once the two ways
to x are added up. Summing m entries repeats e: b = sqrt(m); their mean has b = 1/sqrt(m).
Log-softmax along a dimension of K entries: e -> e - p sum(e), so b = 1 + sqrt(K).

The first dimension must stay the batch: transposing, reducing or slicing it mixes rows.
"""

from __future__ import annotations

import math

from winsor.contrib.value.bounds.kind import Kind, RowBlocks, check_first_dimension, refuse
from winsor.gradients.graph import Step

_VIEWS = (
    "ViewBackward0",
    "UnsafeViewBackward0",
    "ReshapeAliasBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
    "UnsqueezeBackward0",
    "CloneBackward0",
    "AliasBackward0",
)
_PARTS = ("SliceBackward0", "SelectBackward0")
_SUMS = ("MeanBackward1", "SumBackward1")


def _dims(step: Step) -> list[int]:
    """The dimensions a reduction runs over, counted from the front."""
    sizes = step.saved("self_sym_sizes")
    dims = step.saved("dim")
    dims = dims if isinstance(dims, list | tuple) else [dims]
    return [_signed(int(d)) % len(sizes) for d in (dims or range(len(sizes)))]


def _signed(value: int) -> int:
    """Saved dimensions come back as unsigned 64-bit numbers."""
    return value - 2**64 if value >= 2**63 else value


def _check_not_first(step: Step, rows: RowBlocks) -> None:
    if 0 in _dims(step):
        refuse(step, "works along the first dimension and so mixes rows")
    check_first_dimension(step, rows)


def _check_transpose(step: Step, rows: RowBlocks) -> None:
    rank = len(step.shape)
    moved = [_signed(int(step.saved(name))) % rank for name in ("dim0", "dim1")]
    if 0 in moved:
        refuse(step, "moves the first dimension, which must stay the batch")
    check_first_dimension(step, rows)


def _check_permute(step: Step, rows: RowBlocks) -> None:
    if _signed(int(step.saved("dims")[0])) != 0:
        refuse(step, "moves the first dimension, which must stay the batch")
    check_first_dimension(step, rows)


def _check_part(step: Step, rows: RowBlocks) -> None:
    if _signed(int(step.saved("dim"))) % len(step.saved("self_sym_sizes")) == 0:
        refuse(step, "takes a part of the batch")
    check_first_dimension(step, rows)


def _check_pad(step: Step, rows: RowBlocks) -> None:
    if len(step.saved("pad")) >= 2 * len(step.shape):
        refuse(step, "pads the batch")
    check_first_dimension(step, rows)


def _check_cat(step: Step, rows: RowBlocks) -> None:
    if _signed(int(step.saved("dim"))) % len(step.shape) == 0:
        refuse(step, "joins batches")
    check_first_dimension(step, rows)


def _check_add(step: Step, rows: RowBlocks) -> None:
    check_first_dimension(step, rows)
    if any(below.shape != step.shape for below in step.inputs.values()):
        refuse(step, "adds tensors of different shapes")


def _add(step: Step, position: int, rows: RowBlocks) -> float:
    return 1.0 if position == 0 else abs(float(step.saved("alpha")))


def _reduced(step: Step) -> int:
    sizes = step.saved("self_sym_sizes")
    return math.prod(int(sizes[d]) for d in set(_dims(step)))


def _mean(step: Step, position: int, rows: RowBlocks) -> float:
    return 1 / math.sqrt(_reduced(step))


def _sum(step: Step, position: int, rows: RowBlocks) -> float:
    return math.sqrt(_reduced(step))


def _check_softmax(step: Step, rows: RowBlocks) -> None:
    if _signed(int(step.saved("dim"))) % len(step.shape) == 0:
        refuse(step, "normalises over the batch")


def _log_softmax(step: Step, position: int, rows: RowBlocks) -> float:
    return 1 + math.sqrt(step.shape[_signed(int(step.saved("dim")))])


KINDS = (
    Kind(_VIEWS, check=check_first_dimension),
    Kind(_PARTS, check=_check_part),
    Kind(("ConstantPadNdBackward0",), check=_check_pad),
    Kind(("TransposeBackward0",), check=_check_transpose),
    Kind(("PermuteBackward0",), check=_check_permute),
    Kind(("CatBackward0",), check=_check_cat, data=None),
    Kind(("AddBackward0", "SubBackward0"), _add, _check_add, data=frozenset({0, 1})),
    Kind(("MeanBackward1",), _mean, _check_not_first),
    Kind(("SumBackward1",), _sum, _check_not_first),
    Kind(("LogSoftmaxBackward0",), _log_softmax, _check_softmax),
)
