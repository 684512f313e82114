"""The oracle: one backward pass per row. Obviously right, and slow.

    g_i = d losses[i] / d parameters,    for i = 1..n

Works for any model whose rows are independent. Every other engine is tested against this one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from winsor.grads.rows import RowsView
from winsor.grads.tape import refuse_without_graph
from winsor.grads.view import View


class LoopEngine:
    """Per-sample gradients by one `torch.autograd.grad` per row."""

    name = "loop"

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)

    def attach(self) -> None:
        """Nothing to install: plain autograd does it all."""

    def detach(self) -> None:
        """Nothing to remove."""

    def recording(self, on: bool) -> None:
        """Nothing to record."""

    def view(self, losses: Tensor) -> View:
        refuse_without_graph(losses)
        n, leaves = len(losses), list(self._parameters.values())
        rows = [p.new_zeros((n, *p.shape)) for p in leaves]
        for i in range(n):
            gradient = torch.autograd.grad(losses[i], leaves, retain_graph=True, allow_unused=True)
            for kept, g in zip(rows, gradient, strict=True):
                if g is not None:
                    kept[i] = g
        return RowsView(dict(zip(self._parameters, rows, strict=True)), losses)

    def explain(self) -> str:
        return "engine loop: one backward pass per row (the oracle)"
