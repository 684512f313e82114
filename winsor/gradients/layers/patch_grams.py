"""Gram matrices of the patches that a convolution reads, without unfolding its input.

Two patches overlap with each other as their pixels do, offset by offset of the kernel:

    <patch_p, patch_q> = sum_k <x_{sp + dk}, x_{sq + dk}>        s: stride, d: dilation

So the Gram matrix of the pixels holds all that is needed; it is shifted along both of its sides and
added up, one axis of the image after the other. That takes places^2 channels multiply-adds, where
the unfolded input takes as many again for each place of the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Axis(NamedTuple):
    """How a kernel walks along one axis of the input."""

    kernel: int
    stride: int
    padding: int
    dilation: int
    places: int
    """Of the output."""


def patch_grams(x: Tensor, axes: Sequence[Axis]) -> Tensor:
    """(n, channels, *sides) -> (n, places, places), zeros beyond the edges."""
    flat = x.flatten(2)
    return shifted(torch.bmm(flat.mT, flat), x.shape[2:], axes)


def shifted(pixels: Tensor, sides: Sequence[int], axes: Sequence[Axis]) -> Tensor:
    """(n, pixels, pixels) -> (n, places, places)."""
    gram = pixels.view(len(pixels), *sides, *sides)
    for number, axis in enumerate(axes):
        gram = _along(gram, 1 + number, 1 + number + len(axes), axis)
    return gram.flatten(1 + len(axes)).flatten(1, -2)


def _along(gram: Tensor, row: int, column: int, axis: Axis) -> Tensor:
    """Pixels become patches along one axis, in rows and columns of the Gram matrix alike."""
    side, shape = gram.shape[row], list(gram.shape)
    shape[row] = shape[column] = axis.places
    total = gram.new_zeros(shape)
    for k in range(axis.kernel):
        shift = k * axis.dilation - axis.padding
        first = max(0, -(shift // axis.stride))
        last = min(axis.places - 1, (side - 1 - shift) // axis.stride)
        if first > last:
            continue  # all of it lies beyond the edge
        here, there = [slice(None)] * gram.dim(), [slice(None)] * gram.dim()
        here[row] = here[column] = slice(first, last + 1)
        begin = first * axis.stride + shift
        end = last * axis.stride + shift + 1
        there[row] = there[column] = slice(begin, end, axis.stride)
        total[tuple(here)] += gram[tuple(there)]
    return total
