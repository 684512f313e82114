"""Entry by entry functions: |d loss / d x| <= max |phi'| |e|, and no parameters.

The largest slopes: ReLU, tanh, softplus, hard tanh, clamps 1; sigmoid 1/4; GELU 1.1290 (both the
exact one and the tanh form); SiLU 1.0999; Mish 1.0885; hard swish 3/2; ELU and SELU
scale * max(1, alpha); leaky ReLU max(1, slope); multiplication by a constant (dropout, scaling) the
largest entry of the constant in the row.
"""

from __future__ import annotations

from torch import Tensor

from winsor.contrib.value.bounds.kind import Factor, Kind, RowBlocks, refuse
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


KINDS = (
    Kind(_PLAIN),
    Kind(tuple(_SLOPES), _slope),
    Kind(("LeakyReluBackward0",), _leaky),
    Kind(("EluBackward0",), _elu),
    Kind(("MulBackward0",), _times, _check_times, data=frozenset({0, 1})),
    Kind(("DivBackward0",), _over, _check_over),
)
