"""Tensors in memory: what the core reads and overwrites, and gradient trees in one piece.

Importing this module registers tensors of PyTorch with the core (`winsor/core/buffers.py`). A
`Layout` puts the leaves of a gradient into one piece, so that one operation serves all parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from winsor.core import buffers
from winsor.core.buffers import FlatTree

_WIDTHS = {torch.float32: 4, torch.float64: 8}


class _Tensors:
    """The buffer protocol of `torch.Tensor`, on any device and of any floating type."""

    size = staticmethod(Tensor.numel)

    def place(self, array: Tensor) -> buffers.Place | None:
        width = _WIDTHS.get(array.dtype)
        if width is None or not (array.is_cpu and array.is_contiguous()):
            return None
        return array.data_ptr(), array.numel(), width

    def view(self, array: Tensor) -> np.ndarray:
        return array.detach().view(-1).numpy()

    def doubles(self, array: Tensor) -> buffers.Doubles:
        copy = torch.empty(array.shape, dtype=torch.float64)
        return copy.copy_(array.detach()).view(-1).numpy()

    def write(self, array: Tensor, values: buffers.Doubles) -> None:
        array.detach().copy_(torch.from_numpy(values).view(array.shape))

    def contents(self, array: Tensor) -> memoryview | None:
        flat = array.detach().reshape(-1)
        if not math.isfinite(flat.sum().item()) and not torch.isfinite(flat).all():
            return None
        flat = flat.cpu().contiguous()
        if flat.dtype is torch.bfloat16:  # NumPy has no name for it: through its bytes
            flat = flat.view(torch.uint8)
        return flat.numpy().view(np.uint8).data


buffers.register(Tensor, _Tensors())


def as_tensor(array: Any) -> Tensor:
    """Return a tensor that shares memory with a NumPy array; a tensor as it is."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array


def with_tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of nested mappings and lists with NumPy arrays as tensors, for checkpoints.

    Checkpoints are loaded with ``weights_only=True``, which takes tensors and plain values.
    """

    def converted(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: converted(each) for name, each in value.items()}
        if isinstance(value, list):
            return [converted(each) for each in value]
        return as_tensor(value)

    return {name: converted(value) for name, value in state.items()}


unflatten = torch._C._nn.unflatten_dense_tensors


class Layout:
    """Names, shapes and order of the leaves: made once, used at every step."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        first = next(iter(parameters.values()))
        self.dtype, self.device = first.dtype, first.device
        self.names = list(parameters)
        self.like = [p.detach() for p in parameters.values()]
        self.total = sum(p.numel() for p in parameters.values())

    def empty(self) -> FlatTree:
        """Return a tree of sums over rows, in float64, with undefined values."""
        return self.over(torch.empty(self.total, dtype=torch.float64, device=self.device))

    def packed(self, leaves: Sequence[Tensor]) -> FlatTree:
        """Return a tree of these leaves as sums over rows, in float64."""
        return self.joined([leaf.double() for leaf in leaves])

    def joined(self, leaves: Sequence[Tensor]) -> FlatTree:
        """Copy the leaves into one piece of memory and return a tree of views of it."""
        return self.over(torch.cat([leaf.reshape(-1) for leaf in leaves]))

    def over(self, flat: Tensor) -> FlatTree:
        """Return the tree whose leaves are views of ``flat``."""
        tree = FlatTree(zip(self.names, unflatten(flat, self.like), strict=True))
        tree.flat = flat
        return tree
