"""Per-sample gradients of `two_layer_cnn`, by a library in C or by torch.

    convolution 8 x 8 to 16 channels, GroupNorm, ReLU, pooling      28 x 28 to 13 x 13
    convolution 4 x 4 to 32 channels, GroupNorm, ReLU, pooling      to 4 x 4: h (512)
    linear to 32, ReLU, linear to 10 classes, the loss

Most of a private step of this network goes to pooling and to small convolutions, whose tensors do
not fit a cache: the C file takes one row after the other through all of it, forward and back. Both
ways give the same `Gradients` up to rounding; the library is used only where it is found to do so.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from winsor.core import compiled
from winsor.training.losses import LdamDrw
from winsor_papers.reproductions.dc_dpsgd.descent import Loss, cross_entropy

SOURCE = Path(__file__).with_name("_cnn.c")
SHAPES = ((16, 1, 8, 8), (16,), (16,), (16,), (32, 16, 4, 4), (32,), (32,), (32,))
"""Of the parameters before the linear layers, in the order of the model."""
SIZES = tuple(torch.Size(shape).numel() for shape in SHAPES)
ROW = sum(SIZES)
WIDTH, HIDDEN, CLASSES = 512, 32, 10
ALL = (*SHAPES, (HIDDEN, WIDTH), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,))
BLOCK = 7
"""Columns that the library multiplies at a time."""


@dataclass(frozen=True, eq=False)
class Margins:
    """A loss: weight of the label's class times cross-entropy of scale (logits - its margin)."""

    scale: float
    margins: Tensor
    weights: Tensor

    @classmethod
    def of(cls, loss: Loss, progress: float) -> Margins | None:
        """A loss of the tasks at some point of a run; None if it is of another kind."""
        ones = torch.ones(CLASSES)
        if loss is cross_entropy:
            return cls(1.0, 0 * ones, ones)
        if isinstance(loss, LdamDrw) and len(loss.profile) == CLASSES:
            weights = ones if progress < loss.deferred else loss.weights()
            return cls(loss.scale, loss.margins(), weights)
        return None

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        shift = F.one_hot(labels, CLASSES) * self.margins
        losses = F.cross_entropy(self.scale * (logits - shift), labels, reduction="none")
        return losses * self.weights[labels]


@dataclass(frozen=True, eq=False)
class Gradients:
    """Of every row of a batch; valid until those of the next."""

    rows: Tensor
    """(n, ROW): weight of a convolution (taps, channels), then its bias, gamma, beta; twice."""
    squares: Tensor
    """(n): squared lengths, linear layers included."""
    linear: tuple[tuple[Tensor, Tensor], ...]
    """Of both linear layers (e, h): e_i h_i' for the weight, e_i for the bias."""
    losses: Tensor


class Maker(Protocol):
    """How gradients come about."""

    def gradients(
        self, images: Tensor, labels: Tensor, parameters: Tensor, loss: Margins
    ) -> Gradients:
        """``parameters``: those of the model in one piece."""
        ...

    def along(self, rows: Tensor, place: int, v: Tensor) -> Tensor:
        """(n, q, channels): v' G of every row, G (taps, channels) the gradient of the weight that
        is the parameter ``place``, v (taps, q)."""
        ...


def as_parameters(row: Tensor) -> list[Tensor]:
    """A row of gradients (ROW,), or a sum of them, in the shapes of the parameters."""
    first, *three, second, b, gamma, beta = row.split(SIZES)
    return [
        first.view(8, 8, 1, 16).permute(3, 2, 0, 1),
        *three,
        second.view(4, 4, 16, 32).permute(3, 2, 0, 1),
        b, gamma, beta,
    ]  # fmt: skip


class ByTorch:
    """The pure path: one backward to the outputs of the layers, then products row by row."""

    def gradients(
        self, images: Tensor, labels: Tensor, parameters: Tensor, loss: Margins
    ) -> Gradients:
        pieces = parameters.detach().split([torch.Size(shape).numel() for shape in ALL])
        w1, b1, gamma1, beta1, w2, b2, gamma2, beta2, w3, b3, w4, b4 = (
            piece.view(shape) for piece, shape in zip(pieces, ALL, strict=True)
        )
        with torch.enable_grad():
            c1 = F.conv2d(images, w1, b1, stride=2, padding=3).requires_grad_()
            y1 = F.group_norm(c1, 4, gamma1, beta1)
            h1 = F.max_pool2d(F.relu(y1), 2, 1)
            c2 = F.conv2d(h1, w2, b2, stride=2)
            y2 = F.group_norm(c2, 4, gamma2, beta2)
            h2 = F.max_pool2d(F.relu(y2), 2, 1).flatten(1)
            z3 = F.linear(h2, w3, b3)
            a = F.relu(z3)
            z4 = F.linear(a, w4, b4)
            losses = loss(z4, labels)
            total = losses.sum()
        e1, d1, e2, d2, e3, e4 = torch.autograd.grad(total, [c1, y1, c2, y2, z3, z4])
        with torch.no_grad():
            patches = F.unfold(images, 8, padding=3, stride=2)  # (n, taps, places)
            first = patches @ e1.flatten(2).mT
            taps = F.unfold(h1, 4, stride=2).unflatten(1, (16, 16)).transpose(1, 2)
            second = taps.flatten(1, 2) @ e2.flatten(2).mT
            rows = torch.cat(
                [first.flatten(1), *_three(c1, e1, d1), second.flatten(1), *_three(c2, e2, d2)], 1
            )
            linear = (e3, h2.detach()), (e4, a.detach())
            squares = rows.square().sum(1) + sum(
                e.square().sum(1) * (h.square().sum(1) + 1) for e, h in linear
            )
        return Gradients(rows, squares, linear, losses.detach())

    def along(self, rows: Tensor, place: int, v: Tensor) -> Tensor:
        return v.T @ rows.split(SIZES, 1)[place].unflatten(1, (len(v), -1))


def _three(c: Tensor, e: Tensor, d: Tensor) -> list[Tensor]:
    """Of bias, gamma and beta, from the gradients before and after the norm."""
    unit = F.group_norm(c, 4)
    return [part.sum((2, 3)) for part in (e, d * unit, d)]


class _Loss(ctypes.Structure):
    """`loss_t` of the C file."""

    _fields_ = [
        ("scale", ctypes.c_float),
        ("margins", ctypes.c_float * CLASSES),
        ("weights", ctypes.c_float * CLASSES),
    ]


class Compiled:
    """The same by the library."""

    def __init__(self, path: Path) -> None:
        found = ctypes.CDLL(str(path))
        if not found.winsor_supported():
            raise OSError("the processor has no AVX2 and FMA instructions")
        self._use = found.winsor_use
        self.use(16)
        self._rows, self._along = found.winsor_rows, found.winsor_along
        pointer, whole = ctypes.c_void_p, ctypes.c_int64
        self._rows.argtypes = [pointer, pointer, whole, *[pointer] * 5]
        self._along.argtypes = [pointer, *[whole] * 4, pointer, whole, pointer]
        self._rows.restype = self._along.restype = None
        self._room(0)

    def use(self, floats: int) -> int:
        """Vectors of so many floats, 8 or 16, from now on; 8 where the processor has no longer
        ones. The gradients are the same to the last bit."""
        return int(self._use(floats))

    def _room(self, n: int) -> None:
        """For batches of up to n rows."""
        self._made = torch.empty(n, ROW), torch.empty(n)
        widths = (WIDTH, HIDDEN, HIDDEN, CLASSES)  # in the order of linear_t
        self._left = (*(torch.empty(n, width) for width in widths), torch.empty(n))
        self._places = (ctypes.c_void_p * 5)(*(part.data_ptr() for part in self._left))

    def gradients(
        self, images: Tensor, labels: Tensor, parameters: Tensor, loss: Margins
    ) -> Gradients:
        n = len(images)
        if n > len(self._made[0]):
            self._room(n + n // 4)
        x, y, p = images.contiguous(), labels.contiguous(), parameters.contiguous()
        assert x.dtype == p.dtype == torch.float32 and y.dtype == torch.int64
        lists = (loss.margins.tolist(), loss.weights.tolist())
        given = _Loss(loss.scale, *((ctypes.c_float * CLASSES)(*values) for values in lists))
        pointers = ctypes.addressof(given), *(part.data_ptr() for part in self._made)
        self._rows(
            x.data_ptr(), y.data_ptr(), n, p.data_ptr(), *pointers, ctypes.addressof(self._places)
        )
        (rows, squares), (h, e3, a, e4, losses) = (
            [part[:n] for part in parts] for parts in (self._made, self._left)
        )
        return Gradients(rows, squares, ((e3, h), (e4, a)), losses)

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


def fastest() -> Maker:
    """The library where there is one."""
    return library() or ByTorch()


def _agrees(found: Compiled) -> bool:
    """Whether some rows have the gradients that torch has, but for rounding."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(7, 1, 28, 28, generator=generator)
    images[:, :, 20:] = 0
    count = sum(torch.Size(shape).numel() for shape in ALL)
    flat, labels = 0.2 * torch.randn(count, generator=generator), torch.arange(7)
    loss = Margins(1.5, torch.rand(CLASSES, generator=generator), torch.linspace(0.1, 2, CLASSES))
    near = functools.partial(torch.allclose, rtol=1e-3, atol=1e-4)
    pure = ByTorch()
    ours, theirs = (maker.gradients(images, labels, flat, loss) for maker in (found, pure))
    v = torch.randn(256, 9, generator=generator)
    pairs = [
        (ours.rows, theirs.rows),
        (ours.squares, theirs.squares),
        (ours.losses, theirs.losses),
        *zip(sum(ours.linear, ()), sum(theirs.linear, ()), strict=True),
        (found.along(ours.rows, 0, v[:64]), pure.along(ours.rows, 0, v[:64])),
        (found.along(ours.rows, 4, v), pure.along(ours.rows, 4, v)),
    ]
    return all(near(*pair) for pair in pairs)
