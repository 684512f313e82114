"""Backward passes without ceremony, and computations that leave no graph.

`torch.autograd.grad` makes checks that take as long as the backward pass of a small model. Callers
of this module have made sure that roots and seeds fit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

_engine = torch.autograd.Variable._execution_engine


def gradients(
    roots: Sequence[Any], seeds: Sequence[Tensor], inputs: Sequence[Any]
) -> tuple[Tensor | None, ...]:
    """Compute d <seeds, roots> / d inputs and keep the graph. None where an input has no
    part in it.

    Roots and inputs are tensors or edges of the graph.
    """
    return _run(roots, seeds, inputs, True)


def last_gradients(
    roots: Sequence[Any], seeds: Sequence[Tensor], inputs: Sequence[Any]
) -> tuple[Tensor | None, ...]:
    """Compute the same, and free what the graph had saved on the way."""
    return _run(roots, seeds, inputs, False)


def _run(
    roots: Sequence[Any], seeds: Sequence[Tensor], inputs: Sequence[Any], keep: bool
) -> tuple[Tensor | None, ...]:
    found: tuple[Tensor | None, ...] = _engine.run_backward(
        tuple(roots),
        tuple(seeds),
        keep,
        False,  # do not record this pass
        tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return found


P = ParamSpec("P")
R = TypeVar("R")


def without_graph(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate as `torch.no_grad` does, at no cost where gradients are off already.

    Switching them off and on again costs as much as a small operation, several times per step.
    """

    @functools.wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        with torch.no_grad():
            return function(*args, **kwargs)

    return quiet
