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


def meetings(length: int, out: int, kernel: int, stride: int, pad: int, dilation: int) -> Tensor:
    """(kernel, length) matrix of zeros and ones."""
    entry = torch.arange(out) * stride - pad + torch.arange(kernel)[:, None] * dilation
    inside = (entry >= 0) & (entry < length)
    table = torch.zeros(kernel, length)
    offset = torch.arange(kernel)[:, None].expand_as(entry)
    table[offset[inside], entry[inside]] = 1.0
    return table


def geometry(sizes: tuple[int, ...], step: Step) -> tuple[tuple[int, ...], ...]:
    """(length, out, kernel, stride, pad, dilation) of a convolution along each of its axes."""
    kernel = tuple(step.saved("weight").shape[2:])
    settings = (tuple(step.saved(name)) for name in ("stride", "padding", "dilation"))
    return tuple(zip(sizes, tuple(step.shape[2:]), kernel, *settings, strict=True))


@functools.lru_cache(maxsize=64)
def patches(axes: tuple[tuple[int, ...], ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """(entries, offsets): summing h over the entries of an offset gives its patch entry's sum."""
    table = torch.ones(1, 1, dtype=dtype)
    for axis in axes:
        table = torch.kron(table, meetings(*axis).to(dtype))
    return table.T.contiguous()


@functools.lru_cache(maxsize=64)
def cover(axes: tuple[tuple[int, ...], ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """(entries,) number of windows over each entry of the input grid."""
    return patches(axes, dtype).sum(1)


def overlap(kernel: int, stride: int, dilation: int = 1) -> int:
    """Most windows that can cover one entry along an axis.

    Two offsets j meet the same entry only if s divides d (j - j'), that is if they agree modulo
    s / gcd(s, d).
    """
    return math.ceil(kernel / (stride // math.gcd(stride, dilation)))
