"""Gradients of a PyTorch model, one row per record, for `Algorithm1`: a plain loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

Array = NDArray[np.float64]
RowLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs of one row, its label) -> its loss."""


class ModelRows:
    """``rows(w, indices)`` is the (b, d) matrix of per-record gradients at the parameters w."""

    def __init__(self, model: nn.Module, loss: RowLoss, x: Tensor, y: Tensor) -> None:
        self._model, self._loss, self._x, self._y = model, loss, x, y
        self._parameters = [p for p in model.parameters() if p.requires_grad]

    def start(self) -> Array:
        """The model's parameters as one vector."""
        vector = parameters_to_vector(self._parameters).detach()
        return vector.double().numpy().copy()

    def load(self, w: Array) -> None:
        """Put ``w`` into the model."""
        like = self._parameters[0]
        vector_to_parameters(torch.from_numpy(w).to(like.dtype), self._parameters)

    def __call__(self, w: Array, indices: NDArray[np.int64]) -> Array:
        self.load(w)
        found = np.empty((len(indices), w.size))
        for row, i in zip(found, indices.tolist(), strict=True):
            loss = self._loss(self._model(self._x[i : i + 1]), self._y[i : i + 1]).sum()
            parts = torch.autograd.grad(loss, self._parameters)
            row[:] = torch.cat([part.reshape(-1) for part in parts]).double().numpy()
        return found
