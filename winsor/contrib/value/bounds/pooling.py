"""Pooling layers. No parameters.

Max: each output entry hands e to one input entry, and an input entry lies under at most
c = prod ceil(k/s) windows, so |d loss / d x|^2 <= c |e|^2.
Average: the same with e/K spread over K = prod k entries: b = sqrt(c / K). Global or exactly
dividing adaptive pooling has disjoint windows, c = 1.
"""

from __future__ import annotations

import math

from winsor.contrib.value.bounds.kind import Kind, RowBlocks, refuse
from winsor.contrib.value.bounds.windows import overlap
from winsor.gradients.graph import Step

_MAX = ("MaxPool2DWithIndicesBackward0", "MaxPool3DWithIndicesBackward0")
_AVERAGE = ("AvgPool2DBackward0", "AvgPool3DBackward0")
_ADAPTIVE = ("AdaptiveAvgPool2DBackward0", "AdaptiveAvgPool3DBackward0")
_ADAPTIVE_MAX = ("AdaptiveMaxPool2DBackward0", "AdaptiveMaxPool3DBackward0")


def _windows(step: Step, dilation: tuple[int, ...] | None = None) -> tuple[int, int]:
    """(most windows over one entry, entries of a window)."""
    kernel = tuple(step.saved("kernel_size"))
    stride = tuple(step.saved("stride")) or kernel
    spread = dilation or (1,) * len(kernel)
    cover = math.prod(overlap(*axis) for axis in zip(kernel, stride, spread, strict=True))
    return cover, math.prod(kernel)


def _max(step: Step, position: int, rows: RowBlocks) -> float:
    return math.sqrt(_windows(step, tuple(step.saved("dilation")))[0])


def _average(step: Step, position: int, rows: RowBlocks) -> float:
    cover, size = _windows(step)
    return math.sqrt(cover / size)


def _check_average(step: Step, rows: RowBlocks) -> None:
    padded = any(step.saved("padding"))
    if step.saved("divisor_override") is not None or step.saved("ceil_mode"):
        refuse(step, "divides by something other than the size of its window")
    if padded and not step.saved("count_include_pad"):
        refuse(step, "divides by fewer entries at the border (count_include_pad=False)")


def _ratios(step: Step) -> list[float]:
    sizes, outs = step.saved("self").shape, step.shape
    dims = 3 if "3D" in step.op else 2
    return [sizes[-d] / outs[-d] for d in range(1, dims + 1)]


def _check_adaptive(step: Step, rows: RowBlocks) -> None:
    if any(ratio != int(ratio) for ratio in _ratios(step)):
        refuse(step, "pools windows that overlap unevenly (its output does not divide its input)")


def _adaptive(step: Step, position: int, rows: RowBlocks) -> float:
    return 1 / math.sqrt(math.prod(_ratios(step)))


KINDS = (
    Kind(_MAX, _max),
    Kind(_AVERAGE, _average, _check_average),
    Kind(_ADAPTIVE, _adaptive, _check_adaptive),
    Kind(_ADAPTIVE_MAX, check=_check_adaptive),
)
