"""The geometry of sliding windows: which input entries each offset of a kernel meets.

Along one axis of length L, offset j of the kernel meets entry i if i = s p + d j - pad for one of
the output positions p. The 0/1 matrix (k, L) of these meetings gives everything that a convolution
or a pooling layer needs: its column sums count the windows over each entry.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from winsor.grads.graph import Step


@functools.lru_cache(maxsize=256)
def meetings(length: int, out: int, kernel: int, stride: int, pad: int, dilation: int) -> Tensor:
    """(kernel, length) matrix of zeros and ones."""
    entry = torch.arange(out) * stride - pad + torch.arange(kernel)[:, None] * dilation
    inside = (entry >= 0) & (entry < length)
    table = torch.zeros(kernel, length)
    offset = torch.arange(kernel)[:, None].expand_as(entry)
    table[offset[inside], entry[inside]] = 1.0
    return table


def axes(sizes: tuple[int, ...], outs: tuple[int, ...], step: Step) -> list[Tensor]:
    """The meetings of a convolution along each of its axes."""
    kernel = tuple(step.saved("weight").shape[2:])
    settings = (step.saved(name) for name in ("stride", "padding", "dilation"))
    return [
        meetings(*axis) for axis in zip(sizes, outs, kernel, *map(tuple, settings), strict=True)
    ]


@functools.lru_cache(maxsize=256)
def _outer(*counts: tuple[float, ...]) -> Tensor:
    """Counts of the windows over every entry of a grid, flattened."""
    grid = torch.ones(1)
    for count in counts:
        grid = torch.outer(grid, torch.tensor(count)).flatten()
    return grid


def cover(tables: list[Tensor]) -> Tensor:
    """(entries,) number of windows over each entry of the input grid."""
    return _outer(*(tuple(table.sum(0).tolist()) for table in tables))


def overlap(kernel: int, stride: int, dilation: int = 1) -> int:
    """Most windows that can cover one entry along an axis.

    Two offsets j meet the same entry only if s divides d (j - j'), that is if they agree modulo
    s / gcd(s, d).
    """
    return math.ceil(kernel / (stride // math.gcd(stride, dilation)))
