"""Gradients, row by row, of the two convolutions of `scattering_cnn`, in C or by torch.

    kind 0    81 x 7 x 7 to 16 channels of 4 x 4, stride 2        x (n, 81, 7, 7)
    kind 1    16 x 4 x 4 to 32 channels of 4 x 4                  x (n, 16 places, 16 channels)

Outputs and their gradients are (n, places, channels). Torch has these products for a batch; for the
length of a row's own gradient it would unfold every row, in every step of every run. The C file
takes row after row through the cache: 8 to 20 us for all products of a row, on one core. Both ways
agree up to rounding; the library is used only where it is found to do so. Lengths of the gradients
of kind 0 need no product with what is a run's own but the gradients at the output
(`scattering_stack.py`).
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from winsor.core import compiled

SOURCE = Path(__file__).with_name("_small_convolutions.c")
WEIGHTS = ((16, 81, 3, 3), (32, 16, 3, 3))
STRIDES = (2, 1)
PLACES = 16
"""At the outputs."""


class Products(Protocol):
    """What a run asks of its convolutions."""

    def forward(self, kind: int, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """(n, places, channels)."""
        ...

    def back(self, e: Tensor, weight: Tensor) -> Tensor:
        """The gradient at the input of kind 1, (n, 16, 16), from that at its output."""
        ...

    def squares(self, x: Tensor, e: Tensor) -> Tensor:
        """(n): squared lengths of the rows' gradients of weight and bias of kind 1."""
        ...

    def summed(self, kind: int, x: Tensor, e: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted sums of these gradients. A row of weight 0 adds nothing, whatever it holds."""
        ...


class ByTorch:
    """The pure path."""

    def forward(self, kind: int, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(_map(kind, x), weight, bias, STRIDES[kind], 1).flatten(2).mT

    def back(self, e: Tensor, weight: Tensor) -> Tensor:
        size = (len(e), 16, 4, 4)
        found = torch.nn.grad.conv2d_input(size, weight, e.mT.unflatten(2, (4, 4)), 1, 1)
        return found.flatten(2).mT

    def squares(self, x: Tensor, e: Tensor) -> Tensor:
        parts = []
        for some, at in zip(x.split(512), e.split(512), strict=True):
            rows = patches(1, some) @ at
            parts.append(rows.square().sum((1, 2)) + at.sum(1).square().sum(1))
        return torch.cat(parts)

    def summed(self, kind: int, x: Tensor, e: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        scaled = torch.where(weights[:, None, None] == 0, 0.0, e * weights[:, None, None])
        at = scaled.mT.unflatten(2, (4, 4))
        found = torch.nn.grad.conv2d_weight(_map(kind, x), WEIGHTS[kind], at, STRIDES[kind], 1)
        return found, scaled.sum((0, 1))


def patches(kind: int, x: Tensor) -> Tensor:
    """(n, numbers, places): what each place of the output is made of."""
    return F.unfold(_map(kind, x), 3, 1, 1, STRIDES[kind])


def _map(kind: int, x: Tensor) -> Tensor:
    return x if kind == 0 else x.mT.unflatten(2, (4, 4))


class Compiled:
    """The same by the library."""

    def __init__(self, path: Path) -> None:
        self._library = found = ctypes.CDLL(str(path))
        if not found.winsor_supported():
            raise OSError("the processor has no AVX2 and FMA instructions")
        pointer, whole, kind = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
        found.winsor_forward.argtypes = [kind, pointer, whole, *[pointer] * 3]
        found.winsor_back.argtypes = [pointer, whole, *[pointer] * 2]
        found.winsor_squares.argtypes = [*[pointer] * 2, whole, pointer]
        found.winsor_sum.argtypes = [kind, *[pointer] * 3, whole, *[pointer] * 2]
        self.use(16)

    def use(self, floats: int) -> int:
        """Vectors of so many floats, 8 or 16, from now on; 8 where there are no longer ones."""
        return int(self._library.winsor_use(floats))

    def forward(self, kind: int, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = x.new_empty(len(x), 16, len(bias))
        by_tap = weight.permute(1, 2, 3, 0).contiguous()
        self._library.winsor_forward(kind, *(_at(part) for part in (x, len(x), by_tap, bias, out)))
        return out

    def back(self, e: Tensor, weight: Tensor) -> Tensor:
        out = e.new_empty(len(e), 16, 16)
        by_tap = weight.permute(2, 3, 0, 1).contiguous()
        self._library.winsor_back(*(_at(part) for part in (e, len(e), by_tap, out)))
        return out

    def squares(self, x: Tensor, e: Tensor) -> Tensor:
        out = x.new_empty(len(x))
        self._library.winsor_squares(*(_at(part) for part in (x, e, len(x), out)))
        return out

    def summed(self, kind: int, x: Tensor, e: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        outs, inputs = WEIGHTS[kind][:2]
        gradient, bias = x.new_zeros(inputs, 3, 3, outs), x.new_zeros(outs)
        self._library.winsor_sum(
            kind, *(_at(part) for part in (x, e, weights, len(x), gradient, bias))
        )
        return gradient.permute(3, 0, 1, 2), bias


def _at(part: Tensor | int) -> int:
    """Its address; numbers as they are. Whoever calls keeps the tensor alive."""
    if isinstance(part, int):
        return part
    assert part.dtype == torch.float32 and part.is_contiguous()
    return part.data_ptr()


@functools.cache
def library() -> Compiled | None:
    return compiled.load(SOURCE, Compiled, _agrees)


def fastest() -> Products:
    """The library where there is one."""
    return library() or ByTorch()


def _agrees(found: Compiled) -> bool:
    """Whether some rows have what torch has for them, but for rounding."""
    generator, n = torch.Generator().manual_seed(0), 7
    pure, shapes = ByTorch(), ((n, 81, 7, 7), (n, 16, 16))
    weights = torch.rand(n, generator=generator)
    near = functools.partial(torch.allclose, rtol=1e-3, atol=1e-3)
    pairs = []
    for kind, (outs, *rest) in enumerate(WEIGHTS):
        x = torch.randn(shapes[kind], generator=generator)
        weight = torch.randn(outs, *rest, generator=generator)
        e, bias = torch.randn(n, 16, outs, generator=generator), torch.rand(outs)
        for ask in (
            lambda by, x=x, w=weight, b=bias, k=kind: [by.forward(k, x, w, b)],
            lambda by, x=x, e=e, k=kind: by.summed(k, x, e, weights),
        ):
            pairs += zip(ask(found), ask(pure), strict=True)
    pairs.append((found.back(e, weight), pure.back(e, weight)))
    pairs.append((found.squares(x, e), pure.squares(x, e)))
    return all(near(*pair) for pair in pairs)
