"""A tree of sums as it crosses between ranks: in few messages.

A message between processes costs about as much as adding up ten thousand values, and models have
many leaves that are smaller than that: biases, norms. Those travel together, in one buffer; large
ones as they are, without a copy.

Guarantee
---------
What is sent depends on names, shapes and types alone, so that every rank sends the same messages,
whether it has rows or not.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from winsor.tree import SMALL, FlatTree, Layout

TOGETHER = 1 << 15
"""Leaves of at most so many values share a buffer."""


class Sent:
    """Buffers that hold a tree, to be added up in place, and the tree that is in them then."""

    def __init__(self, tree: Mapping[str, Tensor]) -> None:
        self._tree: dict[str, Tensor] = dict(tree)
        self._flat: FlatTree | None = None
        leaves = list(tree.values())
        if sum(leaf.numel() for leaf in leaves) <= SMALL:
            whole = tree if isinstance(tree, FlatTree) else Layout(tree).packed(leaves)
            assert isinstance(whole, FlatTree)
            self._flat = whole
            self.buffers = [whole.flat]
            return
        kinds = {(leaf.dtype, leaf.device) for leaf in leaves}
        few = TOGETHER if len(kinds) == 1 else 0
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
