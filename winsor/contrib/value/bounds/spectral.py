"""Certified upper bounds on operator norms.

Power iteration approaches a spectral norm from below and is no bound. Here:

* one matrix: the largest eigenvalue of its smaller Gram matrix in float64, plus what products and
  LAPACK (which is backward stable) can be off by, rounded outwards by `OUTWARDS`;
* many small matrices: Gram iteration, |(M M^T)^(2^t)|_F^(1/2^(t+1)) >= S(M). The Frobenius norm
  bounds the spectral norm at every t, and the ratio is at most rank^(1/2^(t+2));
* convolutions: the smaller of S(W as a matrix) sqrt(windows over an entry) and the largest
  spectral norm over the frequencies of a circular convolution that contains the real one.

Between steps a norm is carried on as S(W) <= S(W_old) + |W - W_old|_F (times sqrt(windows) for a
convolution) for as long as that adds little; then it is computed anew. W_old is a copy, and the
difference is taken from the weights as they are: nobody needs to say that they were changed.

References
----------
Sedghi, Gupta, Long: The singular values of convolutional layers, ICLR 2019 (frequencies).
Delattre et al.: Efficient bound of Lipschitz constant by Gram iteration, ICML 2023.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from winsor.contrib.value.bounds.windows import overlap

OUTWARDS = 1 + 1e-9
"""Covers the rounding of float64 singular values, products and roots."""

DRIFT = 0.05
"""A carried norm may exceed the computed one by this share before it is computed anew. One in a
hundred is what private noise moves a layer by in a single step (docs/performance.md)."""

_GRAM = 1e-15
"""Nine times the rounding of one float64 operation, as a share of |M|_F^2: see `spectral_norm`."""

_SQUARES = (1e-200, 1e200)
"""Where no square that matters is lost or overflows: every float32 weight but zero is inside."""

_DIFFERENCE = 1 + 1e-6
"""Covers the rounding of a difference of weights, which is 6e-8 of itself in float32, and of its
norm, whose squares are added up in float64."""


def spectral_norm(matrix: Tensor) -> float:
    """Return an upper bound on the largest singular value, from the smaller Gram matrix.

    With inner length k, a product of matrices is off by at most k u |M|_F^2 in any norm and any
    order of summation (u = 1.1e-16), and eigenvalues by a small multiple of their number times u
    times the largest, which is at most |M|_F^2: `_GRAM` per row and column covers both.
    """
    m = matrix.detach().double()
    gram = m @ m.mT if m.shape[0] <= m.shape[1] else m.mT @ m
    energy = float(gram.trace())  # |M|_F^2
    if not _SQUARES[0] < energy < _SQUARES[1]:  # zero, not finite, or squares that are lost
        return _largest_singular_value(m)
    top = float(torch.linalg.eigvalsh(gram)[-1])
    return math.sqrt(top + sum(m.shape) * _GRAM * energy) * OUTWARDS


def _largest_singular_value(m: Tensor) -> float:
    """At any scale; raises where entries are not finite."""
    values = torch.linalg.svdvals(m)
    return float(values[0]) * OUTWARDS if len(values) else 0.0


def gram_norm(matrices: Tensor, squarings: int = 6) -> Tensor:
    """Return (...) bounds on the largest singular values of (..., m, k), by Gram iteration."""
    m = matrices if matrices.shape[-2] <= matrices.shape[-1] else matrices.mH
    gram = m @ m.mH
    log_scale = torch.zeros(gram.shape[:-2], dtype=gram.real.dtype)
    for _ in range(squarings):
        size = torch.linalg.matrix_norm(gram).real.clamp_min(1e-300)
        gram = gram / size[..., None, None]
        gram = gram @ gram
        log_scale = 2 * (log_scale + size.log())
    norm = torch.linalg.matrix_norm(gram).real.clamp_min(1e-300)
    power = 2.0 ** (squarings + 1)
    bound: Tensor = ((norm.log() + log_scale) / power).exp() * OUTWARDS
    return bound


def largest_squared(e: Tensor) -> Tensor:
    """Return (n,) upper bounds on the squared largest singular values of (n, a, b) in float64."""
    gram = e @ e.mT if e.shape[1] <= e.shape[2] else e.mT @ e
    return top_eigenvalue(gram, trace(gram))


def trace(gram: Tensor) -> Tensor:
    """Return (n,) traces of (n, k, k)."""
    return gram.diagonal(dim1=1, dim2=2).sum(1)


def top_eigenvalue(gram: Tensor, scale: Tensor) -> Tensor:
    """Return (n,) upper bounds on the largest eigenvalues of symmetric (n, k, k).

    |G|_2 <= |G^2|_F^(1/2), or |G|_F where another product would cost more than it gains. Entries
    are divided by ``scale`` first, which must be about as large as they are: fourth powers leave
    the range of float64.
    """
    unit = gram / torch.where(scale == 0, 1.0, scale)[:, None, None]
    if gram.shape[1] <= 32:
        return (unit @ unit).square().sum((1, 2)).sqrt().sqrt() * scale * OUTWARDS
    return unit.square().sum((1, 2)).sqrt() * scale * OUTWARDS


def convolution_norm(
    weight: Tensor,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    outs: Sequence[int],
) -> float:
    """Return an upper bound on the norm of a convolution to size ``outs``, for any padding."""
    w = weight.detach().double()
    w = w.view(groups, -1, *w.shape[1:])  # (groups, K/groups, C/groups, *kernel)
    unfolded = max(spectral_norm(part.flatten(1)) for part in w)
    bound = unfolded * window_factor(tuple(weight.shape[2:]), stride, dilation)
    if all(d == 1 for d in dilation):
        bound = min(bound, max(_by_frequency(part, stride, outs) for part in w))
    return bound


def window_factor(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> float:
    """Return sqrt of the most windows over one entry: |unfold(x)|_F <= this * |x|."""
    return math.sqrt(math.prod(overlap(*a) for a in zip(kernel, stride, dilation, strict=True)))


def _by_frequency(w: Tensor, stride: Sequence[int], outs: Sequence[int]) -> float:
    """Largest spectral norm over frequencies.

    A stride s splits the input into s phases per axis, on which the convolution has stride 1 and
    kernels of ceil(k/s). A circular convolution of length out + ceil(k/s) - 1 computes every
    output without wrapping around, so the real operator is a part of it.
    """
    phases = w
    for axis, s in enumerate(stride):
        dim = 2 + axis
        k = -(-phases.shape[dim] // s)
        pad = torch.zeros(*phases.shape[:dim], k * s, *phases.shape[dim + 1 :], dtype=w.dtype)
        pad.narrow(dim, 0, phases.shape[dim]).copy_(phases)
        shape = (*pad.shape[:dim], k, s, *pad.shape[dim + 1 :])
        split = pad.view(shape).movedim(dim + 1, 1)  # (K, s, C, ..., k, ...)
        phases = split.flatten(1, 2)
    grid = [out + size - 1 for out, size in zip(outs, phases.shape[2:], strict=True)]
    spectrum = torch.fft.rfftn(phases, s=grid, dim=tuple(range(2, phases.dim())))
    matrices = spectrum.flatten(2).permute(2, 0, 1)
    return float(gram_norm(matrices).max())


class OperatorNorms:
    """Certified norms of the current weights, carried from step to step in ``memory``.

    ``memory`` holds plain numbers and public weights, so it belongs to a rule's state: a resumed
    run finds the same reference weights and computes the same bounds.
    """

    def __init__(self, memory: dict[str, Any]) -> None:
        self._memory = memory

    def matrix(self, name: str | None, weight: Tensor) -> float:
        """Return an upper bound on the spectral norm of ``weight``."""
        return self._carried(name, weight, 1.0, spectral_norm)

    def convolution(
        self,
        name: str | None,
        weight: Tensor,
        stride: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        outs: Sequence[int],
    ) -> float:
        """Return an upper bound on the norm of a convolution with ``weight``."""
        key = None if name is None else f"{name}@{'x'.join(map(str, outs))}"
        factor = window_factor(tuple(weight.shape[2:]), stride, dilation)
        return self._carried(
            key, weight, factor, lambda w: convolution_norm(w, stride, dilation, groups, outs)
        )

    def _carried(
        self, key: str | None, weight: Tensor, factor: float, compute: Callable[[Tensor], float]
    ) -> float:
        """``factor`` bounds how far the norm moves per unit of |W - W_old|_F."""
        now = weight.detach()
        old = self._memory.get(key) if key is not None else None
        if old is not None and old["weight"].shape == now.shape:  # others would be broadcast
            difference = _single(now) - _single(old["weight"])
            moved = torch.linalg.vector_norm(difference, dtype=torch.float64)
            drift = factor * float(moved) * _DIFFERENCE
            if drift <= DRIFT * old["norm"]:
                return float(old["norm"]) + drift
        norm = compute(now)
        if key is not None:
            self._memory[key] = {"norm": norm, "weight": now.clone()}
        return norm


def _single(weight: Tensor) -> Tensor:
    """At least float32: a difference of bfloat16 numbers would be rounded by 0.4 per cent."""
    return weight.to(torch.promote_types(weight.dtype, torch.float32))
