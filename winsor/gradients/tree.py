"""A gradient tree in one piece of memory, so that one operation can serve all parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from winsor.core.buffers import FlatTree
from winsor.gradients import buffers as buffers

unflatten = torch._C._nn.unflatten_dense_tensors
SMALL = 1 << 18
"""Up to this many values, a copy into one piece costs less than an operation per leaf."""


class Layout:
    """Names, shapes and order of the leaves: made once, used at every step."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        first = next(iter(parameters.values()))
        self.dtype, self.device = first.dtype, first.device
        self.names = list(parameters)
        self.like = [p.detach() for p in parameters.values()]
        self.total = sum(p.numel() for p in parameters.values())

    def empty(self) -> FlatTree:
        """A tree with undefined values."""
        return self.over(torch.empty(self.total, dtype=self.dtype, device=self.device))

    def packed(self, leaves: Sequence[Tensor]) -> dict[str, Tensor]:
        """A tree of these leaves, in one piece where the copy is worth it."""
        if self.total > SMALL:
            return dict(zip(self.names, leaves, strict=True))
        return self.joined(leaves)

    def joined(self, leaves: Sequence[Tensor]) -> FlatTree:
        """A tree of a copy of these leaves, in one piece."""
        return self.over(torch.cat([leaf.reshape(-1) for leaf in leaves]))

    def over(self, flat: Tensor) -> FlatTree:
        """The tree whose leaves are views of ``flat``."""
        tree = FlatTree(zip(self.names, unflatten(flat, self.like), strict=True))
        tree.flat = flat
        return tree
