"""A tree of sums as it crosses between ranks: in few messages.

A message between processes costs about as much as adding up ten thousand values, and models have
many leaves that are smaller than that: biases, norms. So a tree travels in one piece, in which most
lie already. Of larger trees, which could not afford the copy, the small leaves travel in one
buffer and the large ones as they are.

Guarantee
---------
What is sent depends on names, shapes and types alone, so that every rank sends the same messages,
whether it has rows or not.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from winsor.core.noise.slices import DRAWN_AHEAD
from winsor.core.values import FlatTree
from winsor.gradients.tree import Layout

IN_ONE_PIECE = DRAWN_AHEAD
"""Values of the largest tree that is sent in one piece: those whose noise is drawn ahead."""
TOGETHER = 1 << 15
"""Leaves of at most so many values share a buffer, in larger trees."""


class Sent:
    """Buffers that hold a tree, to be added up in place, and the tree that is in them then."""

    def __init__(self, tree: Mapping[str, Tensor]) -> None:
        self._tree: dict[str, Tensor] = dict(tree)
        self._flat: FlatTree | None = None
        leaves = list(tree.values())
        alike = len({(leaf.dtype, leaf.device) for leaf in leaves}) == 1
        if alike and sum(leaf.numel() for leaf in leaves) <= IN_ONE_PIECE:
            self._flat = tree if isinstance(tree, FlatTree) else Layout(tree).joined(leaves)
            self.buffers = [self._flat.flat]
            return
        few = TOGETHER if alike else 0
        self._small = [leaf for leaf in leaves if leaf.numel() <= few]
        self._large = [leaf for leaf in leaves if leaf.numel() > few]
        self.buffers = [leaf.contiguous() for leaf in self._large]
        if self._small:
            self.buffers.append(torch.cat([leaf.reshape(-1) for leaf in self._small]))

    def received(self) -> dict[str, Tensor]:
        """The tree of what the buffers hold now."""
        if self._flat is not None:
            return self._flat
        for leaf, buffer in zip(self._large, self.buffers, strict=False):
            if buffer.data_ptr() != leaf.data_ptr():
                leaf.copy_(buffer)
        if self._small:
            parts = self.buffers[-1].split([leaf.numel() for leaf in self._small])
            for leaf, part in zip(self._small, parts, strict=True):
                leaf.copy_(part.view_as(leaf))
        return self._tree
