"""Operations without parameters: entry by entry functions, moving and adding, and pooling.

Entry by entry functions: |d loss / d x| <= max |phi'| |e|. The largest slopes: ReLU, tanh,
softplus, hard tanh, clamps 1; sigmoid 1/4; GELU 1.1290 (both the exact one and the tanh form); SiLU
1.0999; Mish 1.0885; hard swish 3/2; ELU and SELU scale * max(1, alpha); leaky ReLU max(1, slope);
multiplication by a constant (dropout, scaling) the largest entry of the constant in the row.

Moving entries keeps norms (b = 1); taking a part of them can only shorten the gradient. A sum
x + y hands the same e to both sides, so a residual block x + F(x) gets 1 + b_F once the two ways
to x are added up. Summing m entries repeats e: b = sqrt(m); their mean has b = 1/sqrt(m).
Log-softmax along a dimension of K entries: e -> e - p sum(e), so b = 1 + sqrt(K).

The first dimension must stay the batch: transposing, reducing or slicing it mixes rows.

Pooling. Max: each output entry hands e to one input entry, and an input entry lies under at most
c = prod ceil(k/s) windows, so |d loss / d x|^2 <= c |e|^2.
Average: the same with e/K spread over K = prod k entries: b = sqrt(c / K). Global or exactly
dividing adaptive pooling has disjoint windows, c = 1.
"""

from __future__ import annotations

import math

from torch import Tensor

from winsor.contrib.value.bounds.kind import Factor, Kind, RowBlocks, check_first_dimension, refuse
from winsor.contrib.value.bounds.windows import overlap
from winsor.gradients.graph import Step

_SLOPES = {
    "SigmoidBackward0": 0.25,
    "GeluBackward0": 1.13,
    "SiluBackward0": 1.10,
    "MishBackward0": 1.09,
    "HardswishBackward0": 1.5,
    "HardsigmoidBackward0": 1 / 6,
}
CONTRACTIONS = ("ReluBackward0", "TanhBackward0", "HardtanhBackward0")
"""phi(0) = 0 and slope at most 1, hence also |phi(z)| <= |z|."""

_PLAIN = (
    *CONTRACTIONS,
    "SoftplusBackward0",
    "ClampBackward0",
    "ClampBackward1",
    "ClampMinBackward0",
    "ClampMaxBackward0",
    "AbsBackward0",
    "NegBackward0",
    "ThresholdBackward0",
)


def _slope(step: Step, position: int, rows: RowBlocks) -> float:
    return _SLOPES[step.op]


def _leaky(step: Step, position: int, rows: RowBlocks) -> float:
    return max(1.0, abs(float(step.saved("negative_slope"))))


def _elu(step: Step, position: int, rows: RowBlocks) -> float:
    alpha, scale, inner = (float(step.saved(x)) for x in ("alpha", "scale", "input_scale"))
    return abs(scale) * max(1.0, abs(alpha * inner)) * (1 + 1e-6)  # saved in single precision


def _constant(step: Step, position: int) -> Tensor:
    """The other argument of a product, if it is not differentiated itself."""
    if len(step.inputs) > 1:
        refuse(step, "multiplies two activations, so its slope has no bound")
    constant: Tensor = step.saved("other" if position == 0 else "self")
    return constant


def _times(step: Step, position: int, rows: RowBlocks) -> Factor:
    constant = _constant(step, position)
    if constant.numel() == 1:
        return abs(float(constant))
    return rows.largest(constant.abs().expand(step.shape))


def _check_times(step: Step, rows: RowBlocks) -> None:
    for position, below in step.inputs.items():
        _constant(step, position)
        if below.shape != step.shape:
            refuse(step, "repeats its input along a dimension")


def _over(step: Step, position: int, rows: RowBlocks) -> Factor:
    constant = step.saved("other").abs()
    if constant.numel() == 1:
        return 1 / float(constant)
    return rows.largest((1 / constant).expand(step.shape))


def _check_over(step: Step, rows: RowBlocks) -> None:
    if any(below.shape != step.shape for below in step.inputs.values()):
        refuse(step, "repeats its input along a dimension")


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
    Kind(_PLAIN),
    Kind(tuple(_SLOPES), _slope),
    Kind(("LeakyReluBackward0",), _leaky),
    Kind(("EluBackward0",), _elu),
    Kind(("MulBackward0",), _times, _check_times, data=frozenset({0, 1})),
    Kind(("DivBackward0",), _over, _check_over),
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
    Kind(_MAX, _max),
    Kind(_AVERAGE, _average, _check_average),
    Kind(_ADAPTIVE, _adaptive, _check_adaptive),
    Kind(_ADAPTIVE_MAX, check=_check_adaptive),
)
