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
    found: tuple[Tensor | None, ...] = _engine.run_backward(
        tuple(roots),
        tuple(seeds),
        True,  # keep the graph
        False,  # do not record this pass
        tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return found
