"""The view for rules that need no norms: losses, and the sum of all gradients by plain autograd.

Rules that read it bound what becomes of the sum, not what single rows add to it (`Averaged`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from winsor.core.contract import Tree
from winsor.gradients.autograd import gradients
from winsor.gradients.buffers import Layout
from winsor.gradients.view import View


class PlainView(View):
    """Losses and totals by autograd."""

    def __init__(self, parameters: Mapping[str, Tensor], losses: Tensor, layout: Layout) -> None:
        self._parameters, self._layout = parameters, layout
        self._graph = losses
        self.raw_losses = losses.detach()

    def total(self) -> Tree:
        """Return sum_i g_i by one plain backward pass."""
        parameters = tuple(self._parameters.values())
        found = gradients([self._graph], [torch.ones_like(self.raw_losses)], parameters)
        pairs = zip(found, parameters, strict=True)
        leaves = [torch.zeros_like(p) if g is None else g for g, p in pairs]
        return self._layout.packed(leaves)
