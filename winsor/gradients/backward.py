"""Backward passes without the checks of torch.autograd.grad, which take as long as those of a small
model. Callers have made sure that roots and seeds fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_engine = torch.autograd.Variable._execution_engine


def gradients(
    roots: Sequence[Any], seeds: Sequence[Tensor], inputs: Sequence[Any]
) -> tuple[Tensor | None, ...]:
    """d <seeds, roots> / d inputs; the graph is kept. None where an input has no part in it.

    Roots and inputs are tensors or edges of the graph.
    """
    return _run(roots, seeds, inputs, True)


def last_gradients(
    roots: Sequence[Any], seeds: Sequence[Tensor], inputs: Sequence[Any]
) -> tuple[Tensor | None, ...]:
    """The same, and what the graph had saved is freed on the way."""
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
