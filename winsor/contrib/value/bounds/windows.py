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

from winsor.gradients.graph import Step


def meetings(length: int, out: int, kernel: int, stride: int, pad: int, dilation: int) -> Tensor:
    """Return the (kernel, length) matrix of zeros and ones: which offset meets which entry."""
    entry = torch.arange(out) * stride - pad + torch.arange(kernel)[:, None] * dilation
    inside = (entry >= 0) & (entry < length)
    table = torch.zeros(kernel, length)
    offset = torch.arange(kernel)[:, None].expand_as(entry)
    table[offset[inside], entry[inside]] = 1.0
    return table


def geometry(sizes: tuple[int, ...], step: Step) -> tuple[tuple[int, ...], ...]:
    """Return (length, out, kernel, stride, pad, dilation) of a convolution along each axis."""
    kernel = tuple(step.saved("weight").shape[2:])
    settings = (tuple(step.saved(name)) for name in ("stride", "padding", "dilation"))
    return tuple(zip(sizes, tuple(step.shape[2:]), kernel, *settings, strict=True))


@functools.lru_cache(maxsize=64)
def cover(axes: tuple[tuple[int, ...], ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return (entries,) number of windows over each entry of the input grid."""
    counts = torch.ones(1, dtype=dtype)
    for axis in axes:
        counts = torch.kron(counts, meetings(*axis).sum(0).to(dtype))
    return counts


def sums_by_offset(h: Tensor, axes: tuple[tuple[int, ...], ...]) -> Tensor:
    """Return (rows, channels, *kernel): h, (rows, channels, *sizes), summed over each offset.

    One axis after the other, so that all but the first pass over h are over what is left of it.
    """
    for place in reversed(range(len(axes))):
        h = _along_last(h.movedim(2 + place, -1), axes[place]).movedim(-1, 2 + place)
    return h


def _along_last(h: Tensor, axis: tuple[int, ...]) -> Tensor:
    """(..., length) -> (..., kernel)."""
    table, border, missed = _meeting_tables(axis, h.dtype)
    if border is None:
        return h @ table.to(h.device)
    total = h.sum(-1, keepdim=True)
    if not len(border):
        return total.expand(*total.shape[:-1], table.shape[1])
    return total - h[..., border.to(h.device)] @ missed.to(h.device)


@functools.lru_cache(maxsize=64)
def _meeting_tables(
    axis: tuple[int, ...], dtype: torch.dtype
) -> tuple[Tensor, Tensor | None, Tensor]:
    """(length, kernel) meetings; the entries that some offset misses, if they are few: then a sum
    is the sum over all without those; and (few, kernel) which of them each offset misses."""
    table = meetings(*axis).T.contiguous().to(dtype)
    border = (table == 0).any(1).nonzero()[:, 0]
    missed = 1 - table[border]
    return table, border if 2 * len(border) <= len(table) else None, missed


def overlap(kernel: int, stride: int, dilation: int = 1) -> int:
    """Return the most windows that can cover one entry along an axis.

    Two offsets j meet the same entry only if s divides d (j - j'), that is if they agree modulo
    s / gcd(s, d).
    """
    return math.ceil(kernel / (stride // math.gcd(stride, dilation)))
