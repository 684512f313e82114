"""A gradient tree in one piece of memory, so that one operation can serve all parameters."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_unflatten = torch._C._nn.unflatten_dense_tensors


class FlatTree(dict[str, Tensor]):
    """{name: leaf} whose leaves are consecutive views of ``flat``, in order.

    Adding noise, dividing by the batch size or clipping then takes one operation on ``flat``
    instead of one per parameter. In every other respect it is a plain dictionary.
    """

    flat: Tensor


class Layout:
    """Names, shapes and order of the leaves: made once, used at every step."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        first = next(iter(parameters.values()))
        self.dtype, self.device = first.dtype, first.device
        self._names = list(parameters)
        self._like = [p.detach() for p in parameters.values()]
        self._total = sum(p.numel() for p in parameters.values())

    def empty(self) -> FlatTree:
        """A tree with undefined values."""
        flat = torch.empty(self._total, dtype=self.dtype, device=self.device)
        tree = FlatTree(zip(self._names, _unflatten(flat, self._like), strict=True))
        tree.flat = flat
        return tree
