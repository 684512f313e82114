"""Linear maps applied once per row: norms and weighted output-gradients, in numpy.

The library made from `_outer.c` (`small.py`) does the same operations in the same order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from winsor.gradients.sums import exact_or_zero

LANES = 16
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


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
        fine = (norms <= LARGEST_FLOAT32) & (np.abs(losses.numpy()) <= LARGEST_FLOAT32)
        return bool(fine.all())

    def clip(self, norms: Tensor, least: float, clip: float, out: Tensor) -> None:
        """Write clip / max(least, norm)."""
        exact_or_zero(torch.mul(norms.clamp_min(least).reciprocal_(), clip, out=out))

    def scale(self, maps: Collection[OuterMap], weights: Tensor, sums: Sums) -> None:
        """Write w_i e_i of every map, and its sum over the rows."""
        for (e, _, _), (scaled, bias) in zip(maps, sums, strict=True):
            torch.mul(e.T, weights, out=scaled)
            if bias is not None:
                columns = scaled.numpy().astype(np.float64)
                bias.numpy()[:] = np.add.accumulate(columns, axis=1)[:, -1]


def _square(x: np.ndarray) -> np.ndarray:
    """Square and add up (n, k) to (n,): sixteen lanes, each one number after the other; then the
    lanes in pairs."""
    n, size = x.shape
    rows = np.zeros((n, max(1, -(-size // LANES)), LANES))
    rows.reshape(n, -1)[:, :size] = x
    lanes = np.add.accumulate(np.square(rows, out=rows), axis=1)[:, -1].reshape(n, 4, 4)
    four = (lanes[:, 0] + lanes[:, 1]) + (lanes[:, 2] + lanes[:, 3])
    found: np.ndarray = (four[:, 0] + four[:, 1]) + (four[:, 2] + four[:, 3])
    return found


def agrees(found: Any) -> bool:
    """Tell whether it finds the digits of the pure path, on rows of all magnitudes."""
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
