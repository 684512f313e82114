"""Norms and weighted output-gradients of linear maps applied once per row, all layers in one call.

    |G_i|^2 = |e_i|^2 (|x_i|^2 + 1)       e: output-gradient, x: input, + 1 for a bias

In a small model a call of torch per operation costs more than the operation. The library made from
`_outer.c` does each of the three steps (norms, clipping weights, scaling) in one call; without it
numpy does the same operations in the same order, so that every digit is the same.

Guarantee
---------
Squares of float32 are exact in float64, and so small beside its largest number that nothing
overflows: a norm is off by a few units in the last place of float64, then rounded to float32.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from winsor.core import compiled

SOURCE = Path(__file__).with_name("_outer.c")
LANES = 16
FEW = 1 << 14
"""Rows up to which one call of one thread is quicker than three that torch may spread."""
LARGEST = float(np.finfo(np.float32).max)


class OuterMap(NamedTuple):
    """One linear map: contiguous float32 on the processor. ``x`` is None if only a bias is trained;
    then ``has_bias`` is 1."""

    e: Tensor
    """(n, outputs)"""
    x: Tensor | None
    """(n, inputs)"""
    has_bias: int


Sums = Sequence[tuple[Tensor, Tensor | None]]
"""For each map: where w_i e_i goes (outputs, n), and where their sum goes, if there is a bias."""


class Compiled:
    """Calls into the library. Addresses are of tensors that the caller has checked."""

    def __init__(self, path: Path) -> None:
        library = ctypes.PyDLL(str(path))  # calls are too short to hand the interpreter over
        if not library.winsor_supported():
            raise OSError("the processor has no AVX2 instructions")
        number, real, pointer = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
        self._norms, self._clip = library.winsor_norms, library.winsor_clip
        self._scale = library.winsor_scale
        self._norms.argtypes = [pointer, number, number, pointer, pointer]
        self._clip.argtypes = [pointer, number, real, real, pointer]
        self._scale.argtypes = [pointer, number, number, pointer]
        self._clip.restype = self._scale.restype = None

    def norms(self, maps: Collection[OuterMap], losses: Tensor, out: Tensor) -> bool:
        count = len(maps)
        table = _table(count)(*[field for e, x, bias in maps for field in _fields(e, x, bias)])
        found = self._norms(table, count, out.shape[0], losses.data_ptr(), out.data_ptr())
        return bool(found)

    def clip(self, norms: Tensor, least: float, clip: float, out: Tensor) -> None:
        self._clip(norms.data_ptr(), norms.shape[0], least, clip, out.data_ptr())

    def scale(self, maps: Collection[OuterMap], weights: Tensor, sums: Sums) -> None:
        numbers: list[int] = []
        for (e, _, has_bias), (scaled, bias) in zip(maps, sums, strict=True):
            to = 0 if bias is None else bias.data_ptr()
            numbers += (e.data_ptr(), 0, e.shape[1], 0, has_bias, scaled.data_ptr(), to)
        count = len(maps)
        self._scale(_table(count)(*numbers), count, weights.shape[0], weights.data_ptr())


def _fields(e: Tensor, x: Tensor | None, has_bias: int) -> tuple[int, ...]:
    if x is None:
        return e.data_ptr(), 0, e.shape[1], 0, has_bias, 0, 0
    return e.data_ptr(), x.data_ptr(), e.shape[1], x.shape[1], has_bias, 0, 0


@functools.cache
def _table(count: int) -> type[ctypes.Array[ctypes.c_int64]]:
    """``count`` records of `_outer.c`: seven fields of eight bytes each."""
    return ctypes.c_int64 * (7 * count)


class Pure:
    """The same in numpy."""

    def norms(self, maps: Collection[OuterMap], losses: Tensor, out: Tensor) -> bool:
        """Write the norms over all maps; whether losses and norms are finite."""
        total = np.zeros(len(out))
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is told
            for e, x, has_bias in maps:
                inner = np.zeros(len(out)) if x is None else _square(x.detach().numpy())
                total = total + _square(e.numpy()) * (inner + float(has_bias))
            norms = np.sqrt(total)
            out.numpy()[:] = norms
        fine = (norms <= LARGEST) & (np.abs(losses.numpy()) <= LARGEST)
        return bool(fine.all())

    def clip(self, norms: Tensor, least: float, clip: float, out: Tensor) -> None:
        """clip / max(least, norm)."""
        exact_or_zero(torch.mul(norms.clamp_min(least).reciprocal_(), clip, out=out))

    def scale(self, maps: Collection[OuterMap], weights: Tensor, sums: Sums) -> None:
        """Write w_i e_i of every map, and its sum over the rows."""
        for (e, _, _), (scaled, bias) in zip(maps, sums, strict=True):
            torch.mul(e.T, weights, out=scaled)
            if bias is not None:
                columns = scaled.numpy().astype(np.float64)
                bias.numpy()[:] = np.add.accumulate(columns, axis=1)[:, -1]


def _square(x: np.ndarray) -> np.ndarray:
    """(n, k) -> (n,): sixteen lanes, each one number after the other; then the lanes in pairs."""
    n, size = x.shape
    rows = np.zeros((n, max(1, -(-size // LANES)), LANES))
    rows.reshape(n, -1)[:, :size] = x
    lanes = np.add.accumulate(np.square(rows, out=rows), axis=1)[:, -1].reshape(n, 4, 4)
    four = (lanes[:, 0] + lanes[:, 1]) + (lanes[:, 2] + lanes[:, 3])
    found: np.ndarray = (four[:, 0] + four[:, 1]) + (four[:, 2] + four[:, 3])
    return found


@functools.cache
def arithmetic() -> Compiled | Pure:
    """What does it here."""
    found: Compiled | None = compiled.load(SOURCE, Compiled, agrees)
    return Pure() if found is None else found


def clipping_weights(norms: Tensor, least: float, clip: float) -> Tensor:
    """clip / max(least, norm) for each row, where the digits are those of torch either way."""
    plain = norms.dtype is torch.float32 and norms.device.type == "cpu" and norms.is_contiguous()
    if not plain or norms.dim() != 1 or norms.shape[0] > FEW or norms.requires_grad:
        return exact_or_zero(norms.clamp_min(least).reciprocal_().mul_(clip))
    weights = torch.empty_like(norms)
    arithmetic().clip(norms, least, clip, weights)
    return weights


def exact_or_zero(weights: Tensor) -> Tensor:
    """Weights below the normal range of their type have lost digits, and may have been rounded up
    by more than rules make room for. Such a row, some 1e38 times as long as its bound, counts
    nothing. In place."""
    return F.threshold(weights, torch.finfo(weights.dtype).tiny, 0.0, inplace=True)


def agrees(found: Compiled) -> bool:
    """Whether it finds the digits of the pure path, on rows of all magnitudes."""
    generator = torch.Generator().manual_seed(0)
    n, pure = 37, Pure()
    shapes = ((1, 1), (10, 784), (129, 17), (64, 16))
    sizes = torch.logspace(-30, 30, n).unsqueeze(1)
    maps = [
        OuterMap(torch.randn(n, out, generator=generator) * sizes,
                 torch.randn(n, size, generator=generator).contiguous(), bias)
        for (out, size), bias in zip(shapes, (1, 0, 1, 0), strict=True)
    ]  # fmt: skip
    maps.append(OuterMap(maps[0].e, None, 1))
    losses = torch.randn(n, generator=generator)
    answers = []
    for each in (pure, found):
        norms, weights = torch.empty(n), torch.empty(n)
        widths = [(e.shape[1], bias) for e, _, bias in maps]
        sums = [(torch.empty(out, n), torch.empty(out) if bias else None) for out, bias in widths]
        fine = each.norms(maps, losses, norms)
        each.clip(norms, 1e-37, 1e-8, weights)  # the longest rows are beyond the normal range
        each.scale(maps, weights, sums)
        tensors = [norms, weights, *(t for pair in sums for t in pair if t is not None)]
        answers.append((fine, [tensor.numpy().tobytes() for tensor in tensors]))
    return answers[0] == answers[1]
