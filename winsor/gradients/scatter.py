"""Weighted rows added up by index, the weighted sum of an embedding: out[index_it] += w_i right_it.

The library made from `_scatter.c` does it in one pass; torch scales first and adds up then. The
order is the same, place after place, and so is every digit.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from winsor.core import compiled

SOURCE = Path(__file__).with_name("_scatter.c")


class Compiled:
    """Calls into the library. Addresses are of tensors that `scatter` has checked."""

    def __init__(self, path: Path) -> None:
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        (self._scatter,) = compiled.functions(
            ctypes.CDLL(str(path)),
            scatter=(number, pointer, pointer, *[number] * 4, pointer, pointer),
        )

    def scatter(self, right: Tensor, index: Tensor, weights: Tensor, out: Tensor) -> None:
        """Add weighted rows into ``out`` by one call of the library."""
        beyond = self._scatter(
            right.data_ptr(),
            index.data_ptr(),
            *right.shape,
            out.shape[0],
            weights.data_ptr(),
            out.data_ptr(),
        )
        if beyond:
            raise IndexError(f"{beyond} indices must be below {out.shape[0]}.")


def scatter(right: Tensor, index: Tensor, weights: Tensor | None, out: Tensor) -> None:
    """Add w_i right_it (n, T, d) to row index_it (n, T) of ``out``; negative ones are no places."""
    found = library()
    if found is not None and weights is not None and _plain(right, index, weights, out):
        found.scatter(right, index, weights, out)
    else:
        by_torch(right, index, weights, out)


def by_torch(right: Tensor, index: Tensor, weights: Tensor | None, out: Tensor) -> None:
    """Do the same by torch, in two passes."""
    absent = index < 0
    if absent.any():
        right = right.masked_fill(absent.unsqueeze(2), 0.0)
    rows = right if weights is None else right * weights.view(-1, 1, 1)
    out.index_add_(0, index.clamp_min(0).flatten(), rows.flatten(0, 1))


def _plain(right: Tensor, index: Tensor, weights: Tensor, out: Tensor) -> bool:
    """Tell whether the numbers can be read from their addresses on."""
    floats = (right, weights, out)
    alike = all(x.dtype is torch.float32 and x.is_contiguous() for x in floats)
    fits = index.dtype is torch.int64 and index.shape == right.shape[:2] and index.is_contiguous()
    sizes = weights.shape == right.shape[:1] and out.shape[1:] == right.shape[2:]
    return alike and fits and sizes and all(x.device.type == "cpu" for x in (*floats, index))


@functools.cache
def library() -> Compiled | None:
    """Load the library; None where there is none with the digits of torch."""
    return compiled.load(SOURCE, Compiled, agrees)


def agrees(found: Compiled) -> bool:
    """Tell whether it adds up as torch does."""
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(-1, 9, (17, 5), generator=generator)
    right = torch.randn(17, 5, 21, generator=generator)
    weights = torch.rand(17, generator=generator)
    mine, theirs = torch.zeros(9, 21), torch.zeros(9, 21)
    found.scatter(right, index, weights, mine)
    by_torch(right, index, weights, theirs)
    return torch.equal(mine, theirs)
