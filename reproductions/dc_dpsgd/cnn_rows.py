"""Per-sample gradients of the convolutions of `two_layer_cnn`, by a library in C or by torch.

The network up to its linear layers, for images (n, 1, 28, 28):

    convolution 8 x 8 to 16 channels, GroupNorm, ReLU, pooling      to 13 x 13
    convolution 4 x 4 to 32 channels, GroupNorm, ReLU, pooling      to 4 x 4: `features` (n, 512)

Most of a private step of this network goes to pooling and to small convolutions, whose tensors do
not fit a cache: the C file takes a row through all of it, forward and back. Both ways give

    rows     (n, ROW): weight of a convolution (taps, channels), then its bias, gamma, beta; twice
    squares  (n): the squared length of each

up to rounding; the library is used only where it is found to do so.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from winsor import compiled

SOURCE = Path(__file__).with_name("_cnn.c")
SHAPES = ((16, 1, 8, 8), (16,), (16,), (16,), (32, 16, 4, 4), (32,), (32,), (32,))
"""Of the parameters before the linear layers, in the order of the model."""
SIZES = tuple(torch.Size(shape).numel() for shape in SHAPES)
ROW = sum(SIZES)
WIDTH = 512
KEPT = 7200
"""Floats of a row that the library keeps from the forward pass for the backward pass."""

BLOCK = 7
"""Columns that the library multiplies at a time."""


class Rows(Protocol):
    """One batch after the other: `features`, then `gradients` of the same batch."""

    def features(self, images: Tensor, parameters: Tensor) -> Tensor:
        """(n, 512); ``parameters`` are those of the model in one piece, or the first ROW."""
        ...

    def gradients(self, at_features: Tensor) -> tuple[Tensor, Tensor]:
        """``rows`` and ``squares``, valid until the next call."""
        ...

    def along(self, rows: Tensor, place: int, v: Tensor) -> Tensor:
        """(n, q, channels): v' G of every row, G (taps, channels) the gradient of the weight that
        is the parameter ``place``, v (taps, q)."""
        ...


def in_pieces(parameters: Tensor) -> list[Tensor]:
    """Parameters of the convolutions and norms, as torch has them."""
    pieces = parameters[:ROW].split(SIZES)
    return [piece.view(shape) for piece, shape in zip(pieces, SHAPES, strict=True)]


def as_parameters(row: Tensor) -> list[Tensor]:
    """A gradient (ROW,), or a sum of them, in the shapes of the parameters."""
    first, *three, second, b, gamma, beta = row.split(SIZES)
    return [
        first.view(8, 8, 1, 16).permute(3, 2, 0, 1),
        *three,
        second.view(4, 4, 16, 32).permute(3, 2, 0, 1),
        b, gamma, beta,
    ]  # fmt: skip


class ByTorch:
    """The pure path: one backward to the outputs of the convolutions, then products row by row."""

    def features(self, images: Tensor, parameters: Tensor) -> Tensor:
        w1, b1, gamma1, beta1, w2, b2, gamma2, beta2 = in_pieces(parameters.detach())
        with torch.enable_grad():
            c1 = F.conv2d(images, w1, b1, stride=2, padding=3).requires_grad_()
            y1 = F.group_norm(c1, 4, gamma1, beta1)
            h1 = F.max_pool2d(F.relu(y1), 2, 1)
            c2 = F.conv2d(h1, w2, b2, stride=2)
            y2 = F.group_norm(c2, 4, gamma2, beta2)
            h2 = F.max_pool2d(F.relu(y2), 2, 1).flatten(1)
        self._seen = images, c1, y1, h1, c2, y2, h2
        return h2.detach()

    def gradients(self, at_features: Tensor) -> tuple[Tensor, Tensor]:
        images, c1, y1, h1, c2, y2, h2 = self._seen
        e1, d1, e2, d2 = torch.autograd.grad(h2, [c1, y1, c2, y2], at_features)
        with torch.no_grad():
            patches = F.unfold(images, 8, padding=3, stride=2)  # (n, taps, places)
            first = patches @ e1.flatten(2).mT
            taps = F.unfold(h1, 4, stride=2).unflatten(1, (16, 16)).transpose(1, 2)
            second = taps.flatten(1, 2) @ e2.flatten(2).mT
            rows = torch.cat(
                [first.flatten(1), *_three(c1, e1, d1), second.flatten(1), *_three(c2, e2, d2)], 1
            )
        return rows, rows.square().sum(1)

    def along(self, rows: Tensor, place: int, v: Tensor) -> Tensor:
        return v.T @ rows.split(SIZES, 1)[place].unflatten(1, (len(v), -1))


def _three(c: Tensor, e: Tensor, d: Tensor) -> list[Tensor]:
    """Of bias, gamma and beta, from the gradients before and after the norm."""
    unit = F.group_norm(c, 4)
    return [part.sum((2, 3)) for part in (e, d * unit, d)]


class Compiled:
    """The same by the library."""

    def __init__(self, path: Path) -> None:
        found = ctypes.CDLL(str(path))
        if not found.winsor_supported():
            raise OSError("the processor has no AVX2 and FMA instructions")
        found.winsor_kept.restype = found.winsor_row.restype = ctypes.c_int64
        if (found.winsor_kept(), found.winsor_row()) != (KEPT, ROW):
            raise OSError("the library has other sizes")
        self._forward, self._backward = found.winsor_forward, found.winsor_backward
        self._along = found.winsor_along
        pointer, whole = ctypes.c_void_p, ctypes.c_int64
        self._forward.argtypes = [pointer, whole, *[pointer] * 3]
        self._backward.argtypes = [pointer, whole, *[pointer] * 5]
        self._along.argtypes = [pointer, *[whole] * 4, pointer, whole, pointer]
        for function in (self._forward, self._backward, self._along):
            function.restype = None
        self._room(0)

    def _room(self, n: int) -> None:
        """For batches of up to n rows."""
        self._kept, self._rows = torch.empty(n, KEPT), torch.empty(n, ROW)
        self._features, self._squares = torch.empty(n, WIDTH), torch.empty(n)

    def features(self, images: Tensor, parameters: Tensor) -> Tensor:
        n = len(images)
        if n > len(self._rows):
            self._room(n + n // 4)
        self._given = images.contiguous(), parameters.contiguous()
        assert all(part.dtype == torch.float32 for part in self._given)
        x, p = (part.data_ptr() for part in self._given)
        self._forward(x, n, p, self._kept.data_ptr(), self._features.data_ptr())
        return self._features[:n]

    def gradients(self, at_features: Tensor) -> tuple[Tensor, Tensor]:
        n = len(at_features)
        x, p = (part.data_ptr() for part in self._given)
        given = at_features.contiguous()
        outputs = self._kept, given, self._rows, self._squares
        self._backward(x, n, p, *(part.data_ptr() for part in outputs))
        return self._rows[:n], self._squares[:n]

    def along(self, rows: Tensor, place: int, v: Tensor) -> Tensor:
        (taps, q), n = v.shape, len(rows)
        blocks, channels = -(-q // BLOCK), SIZES[place] // taps
        wide = F.pad(v, (0, blocks * BLOCK - q)).contiguous()
        out = rows.new_empty(n, blocks * BLOCK, channels)
        self._along(
            rows.data_ptr(), n, sum(SIZES[:place]), taps, channels, wide.data_ptr(), blocks,
            out.data_ptr(),
        )  # fmt: skip
        return out[:, :q]


@functools.cache
def library() -> Compiled | None:
    return compiled.load(SOURCE, Compiled, _agrees)


def fastest() -> Rows:
    """The library where there is one."""
    return library() or ByTorch()


def _agrees(found: Compiled) -> bool:
    """Whether some rows have the gradients that torch has, but for rounding."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(7, 1, 28, 28, generator=generator)
    images[:, :, 20:] = 0
    flat = 0.2 * torch.randn(ROW, generator=generator)
    at_features = torch.randn(7, WIDTH, generator=generator)
    pure = ByTorch()
    near = functools.partial(torch.allclose, rtol=1e-3, atol=1e-4)
    if not near(found.features(images, flat), pure.features(images, flat)):
        return False
    rows, squares = found.gradients(at_features)
    v = torch.randn(256, 9, generator=generator)
    return (
        all(map(near, (rows, squares), pure.gradients(at_features)))
        and near(found.along(rows, 0, v[:64]), pure.along(rows, 0, v[:64]))
        and near(found.along(rows, 4, v), pure.along(rows, 4, v))
    )
