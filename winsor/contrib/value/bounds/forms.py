"""The three ways to bound a row's gradient from a recorded pass, by name (see `rules/value.py`)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from winsor.contrib.value.bounds import KINDS
from winsor.contrib.value.bounds.chain import chain_squares
from winsor.contrib.value.bounds.network import gradient_squares, streamed_squares
from winsor.contrib.value.bounds.spectral import OperatorNorms
from winsor.contrib.value.view import ForwardView
from winsor.gradients.graph import Step

Squares = Callable[[ForwardView, OperatorNorms], Tensor]


def above_convolutions(step: Step) -> bool:
    """Cross what is cheap to differentiate, down to the last convolution."""
    return step.op in KINDS and KINDS[step.op].local


def _forward(view: ForwardView, norms: OperatorNorms) -> Tensor:
    return gradient_squares(view, above_convolutions, norms)


def _outputs(view: ForwardView, norms: OperatorNorms) -> Tensor:
    return streamed_squares(view, norms)


FORMS: dict[str, Squares] = {
    "value": chain_squares,
    "forward": _forward,
    "outputs": _outputs,
}
