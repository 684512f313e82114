"""The rows of a batch by one `index_select`, large ones into memory that nobody holds any more.

A fresh tensor of some ten megabytes costs more in page faults than in copying, so large batches
share a few buffers. A buffer is written to again only when its storage has no owner but this
object: a batch that the user keeps, a view of it, an array made from it, or a graph that saved it
each count as an owner, and then another buffer is taken.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGE = 1 << 24
"""Bytes from which a batch is put into a shared buffer."""
_MOST = 3  # buffers for each tensor of a dataset: one in use, one just left, one to spare


class RowBuffers:
    """Buffers for the batches of one dataset."""

    def __init__(self) -> None:
        self._buffers: dict[int, list[Tensor]] = {}

    def rows_of(self, place: int, values: Tensor, index: Tensor) -> Tensor:
        """``values[index]``; ``place`` names the tensor within its dataset."""
        large = values.nbytes * index.shape[0] >= LARGE * values.shape[0]
        if not large or values.requires_grad or values.device.type != "cpu":
            return values.index_select(0, index)
        out = self._free(place, values, len(index))
        return torch.index_select(values, 0, index, out=out)

    def _free(self, place: int, values: Tensor, count: int) -> Tensor:
        known = self._buffers.setdefault(place, [])
        for buffer in known:
            if len(buffer) >= count and _owners(buffer) == _ALONE:
                return buffer[:count]
        if len(known) >= _MOST:
            del known[0]
        known.append(values.new_empty((count + count // 16, *values.shape[1:])))
        return known[-1][:count]


def _owners(buffer: Tensor) -> int:
    """How many tensors and others hold the memory of ``buffer``, itself included."""
    return int(torch._C._storage_Use_Count(buffer.untyped_storage()._cdata))


_ALONE = _owners(torch.empty(1))
