"""Convolutions of 1, 2 or 3 dimensions, plain and transposed, with stride, dilation and groups.

    G_i = the weight gradient of a convolution on row i alone

All n of them at once are the weight gradient of *one* convolution with n times as many groups, on
the batch read as (1, n * channels, ...): row i is group i. No unfolding, the library's own kernel,
at about the cost of the weight gradient that plain training computes.

Where that costs more, or the rows are too large to keep, they are formed in chunks for the norm
only, or (few places, many channels) the norm is a ghost norm from the Gram matrices of patches
(`patch_grams.py`); the clipped sum is then one more weight gradient, with the output-gradient
scaled row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from winsor.gradients.layers.layer import Layer, Named, as_dtype
from winsor.gradients.layers.patches import Axis, patch_squares
from winsor.gradients.parameter_rows import NORM_FLOOR, ParameterRows, Rows, careful
from winsor.gradients.recorder import Call
from winsor.gradients.row_memory import MAC
from winsor.gradients.sums import scaled, square_rows, zero_where_not

ROWS_AT_ONCE = 1 << 22
"""Floats of rows that one call of the library's kernel forms: it needs as much again inside."""


SHORT = 32
"""Numbers in a patch up to which patches are copied: the first layer of a net on images."""

NUMBERS_IN_CACHE = 1 << 19
"""Numbers in the patches of a few rows, which are gone before the next are made."""

GROUPED, SMALL_PRODUCT, VISIT = 1.3, 2.0, 10.0
"""A multiply-add of a convolution with as many groups as rows, and of the product of many small
matrices, in multiply-adds of a plain weight gradient; one float of an array beyond the cache, read
or written once, in the same unit. Measured on maps of 4 x 4 to 32 x 32 and 16 to 256 channels."""


@dataclass(frozen=True)
class Geometry:
    """How a kernel walks over the input: the arguments of `torch.convolution`."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve ``x`` with ``weight``."""
        return torch.convolution(
            x,
            weight,
            bias,
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding,
            self.groups,
        )

    def weight_gradient(self, x: Tensor, g: Tensor, shape: torch.Size, groups: int) -> Tensor:
        """Return the gradient of a weight of ``shape``, from inputs and output-gradients."""
        return torch.ops.aten.convolution_backward(
            g,
            x,
            g.new_empty(shape),  # only its shape is read
            None,
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding,
            groups,
            (False, True, False),
        )[1]

    def rows(self, x: Tensor, g: Tensor, shape: torch.Size) -> Tensor:
        """Form rows (n, *shape): each row is a group of its own."""
        if len(x) * shape.numel() <= ROWS_AT_ONCE:
            return self._rows(x, g, shape)
        count = -(-len(x) * shape.numel() // ROWS_AT_ONCE)
        size = -(-len(x) // min(len(x), count))
        rows = g.new_empty(len(x), *shape)
        for i in range(0, len(x), size):
            rows[i : i + size] = self._rows(x[i : i + size], g[i : i + size], shape)
        return rows

    def _from_patches(self, x: Tensor, g: Tensor, shape: torch.Size) -> Tensor:
        """Return the same rows from patches of a padded copy, a cacheful at a time: where patches
        are short, the library's kernel spends most of its time on finding them."""
        x, g = x.detach(), g.detach()
        padded = F.pad(x, [pad for each in reversed(self.padding) for pad in (each, each)])
        for axis, (places, step) in enumerate(zip(g.shape[2:], self.dilation, strict=True)):
            padded = padded.unfold(2 + axis, places, step)
        g = g.flatten(2)
        rows, size = g.new_empty(len(g), *shape), max(1, NUMBERS_IN_CACHE // padded[0].numel())
        for i in range(0, len(g), size):
            patches = padded[i : i + size].reshape(-1, shape[1:].numel(), g.shape[2])
            torch.bmm(g[i : i + size], patches.mT, out=rows[i : i + size].flatten(2))
        return rows

    def axes(self, kernel: Sequence[int], places: Sequence[int]) -> list[Axis]:
        """Describe how the kernel walks over an input; not for transposed maps."""
        parts = zip(kernel, self.stride, self.padding, self.dilation, places, strict=True)
        return [Axis(*part) for part in parts]

    def _rows(self, x: Tensor, g: Tensor, shape: torch.Size) -> Tensor:
        n = len(x)
        plain = not self.transposed and self.groups == 1 and all(s == 1 for s in self.stride)
        if plain and n and shape[1:].numel() <= SHORT and x.device.type == "cpu":
            return self._from_patches(x, g, shape)
        wide = torch.Size((n * shape[0], *shape[1:]))
        rows = self.weight_gradient(
            x.reshape(1, -1, *x.shape[2:]), g.reshape(1, -1, *g.shape[2:]), wide, n * self.groups
        )
        return rows.view(n, *shape)


class ConvolutionPiece(ParameterRows):
    """Input and output-gradient of a convolution whose rows are too large to keep."""

    def __init__(
        self, x: Tensor, g: Tensor, shape: torch.Size, geometry: Geometry, ghost: bool
    ) -> None:
        self.x, self.g, self.shape, self.geometry, self.ghost = x, g, shape, geometry, ghost
        self.n = len(x)

    def _with(self, x: Tensor, g: Tensor) -> ConvolutionPiece:
        return ConvolutionPiece(x, g, self.shape, self.geometry, self.ghost)

    def rows(self, start: int, stop: int) -> Tensor:
        """Form rows ``start`` to ``stop`` by one grouped convolution."""
        return self.geometry.rows(self.x[start:stop], self.g[start:stop], self.shape)

    def select(self, index: Tensor) -> ParameterRows:
        """Return inputs and output-gradients of the rows of ``index``, as float64."""
        return self._with(self.x[index].double(), self.g[index].double())

    def where(self, kept: Tensor) -> ParameterRows:
        """Set rows that are not ``kept`` to zero."""
        return self._with(zero_where_not(kept, self.x), zero_where_not(kept, self.g))

    def square(self) -> Tensor:
        """Return (n,) squared norms, from Gram matrices or rows, whichever costs less."""
        if self.ghost:
            return self._ghosts()
        square = super().square()
        if self.geometry.transposed:
            return square
        doubtful = (square < NORM_FLOOR * self.reach()).nonzero()[:, 0]
        if len(doubtful):
            diagonal = self._with(self.x[doubtful], self.g[doubtful]).diagonal()
            square[doubtful] = torch.maximum(square[doubtful], NORM_FLOOR * diagonal)
        return square

    def reach(self) -> Tensor:
        """Bound `square` by |x|^2 |g|^2 times the places of the kernel, as often as a value may be
        in patches. The diagonal is below it too: no patch is longer than the whole input."""
        return square_rows(self.x) * square_rows(self.g) * self.shape[2:].numel()

    def diagonal(self) -> Tensor:
        """Return (n,) sum over places and groups of |g|^2 |patch|^2; patches are summed by a kernel
        of ones. Not for transposed maps, whose places are those of the input."""
        groups = self.geometry.groups
        x, g = (t.unflatten(1, (groups, -1)).square().sum(2) for t in (self.x, self.g))
        patches = self.geometry.forward(x, x.new_ones(groups, 1, *self.shape[2:]), None)
        return (patches * g).flatten(1).sum(1)

    def _ghosts(self) -> Tensor:
        """Return (n,) ghost norms, a few rows at a time."""
        axes = self.geometry.axes(self.shape[2:], self.g.shape[2:])
        places = max(self.x[0, 0].numel(), self.g[0, 0].numel()) ** 2 * self.geometry.groups
        size = max(1, ROWS_AT_ONCE // places)
        starts = range(0, self.n, size)
        return torch.cat([self._ghost(i, min(self.n, i + size), axes) for i in starts])

    def _ghost(self, start: int, stop: int, axes: list[Axis]) -> Tensor:
        """Compute <E E^T, X X^T> of the places of each row, group by group of the channels."""
        x, g = self.x[start:stop], self.g[start:stop]
        m, groups = stop - start, self.geometry.groups
        of_x, of_g = (t.unflatten(1, (groups, -1)).flatten(0, 1) for t in (x, g))
        square, diagonal = (found.view(m, -1).sum(1) for found in patch_squares(of_x, of_g, axes))
        return careful(self._with(x, g), square, diagonal)

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        """Write sum_i w_i G_i as one weight gradient."""
        if self.geometry.transposed:
            super().weighted(w, out)  # the rows whose norms were taken
            return
        g = scaled(self.g, w)
        out.copy_(self.geometry.weight_gradient(self.x, g, self.shape, self.geometry.groups))


def costs_of_convolution(
    x: Tensor, g: Tensor, shape: torch.Size, geometry: Geometry
) -> dict[str, float]:
    """Keep rows; or form them for the norm only; or use ghost norms."""
    places, pixels = g[0, 0].numel(), x[0, 0].numel()
    contraction = MAC * places * shape.numel()
    rows, visit = GROUPED * contraction, VISIT * shape.numel()
    costs = {"rows": rows + 3 * visit, "rows, twice": rows + contraction + 2 * visit}
    if not geometry.transposed:
        grams = SMALL_PRODUCT * MAC * (pixels**2 * x.shape[1] + places**2 * shape[0])
        shifts = VISIT * (sum(shape[2:]) + 1) * max(pixels, places) ** 2 * geometry.groups
        costs["ghost"] = contraction + grams + shifts
    return costs


class ConvolutionLayer(Layer):
    """Convolutions of one to three dimensions, transposed ones too."""

    kind = "convolution"
    serves = (
        nn.Conv1d,
        nn.Conv2d,
        nn.Conv3d,
        nn.ConvTranspose1d,
        nn.ConvTranspose2d,
        nn.ConvTranspose3d,
    )

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        """Convolve with detached parameters and record the call."""
        module = self.module
        weight, bias = self.recorder.detached(self.module)
        assert weight is not None
        if module.transposed:
            geometry = self._transposed(input, output_size)
        else:
            input, geometry = self._padded(input)
        out = geometry.forward(input, weight, bias)
        return self.recorder.record(
            self, out, *([input] if self.weight is not None else []), note=geometry
        )

    def _padded(self, x: Tensor) -> tuple[Tensor, Geometry]:
        """Apply padding that the kernel cannot do itself (circular, uneven "same")."""
        module = self.module
        padding = module.padding
        if module.padding_mode != "zeros":
            x = F.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
            padding = (0,) * (x.dim() - 2)
        elif isinstance(padding, str):
            if padding == "same":
                x = F.pad(x, module._reversed_padding_repeated_twice)
            padding = (0,) * (x.dim() - 2)
        return x, Geometry(
            module.stride, padding, module.dilation, False, module.output_padding, module.groups
        )

    def _transposed(self, x: Tensor, output_size: Any) -> Geometry:
        module = self.module
        extra = module._output_padding(
            x,
            output_size,
            module.stride,
            module.padding,
            module.kernel_size,
            x.dim() - 2,
            module.dilation,
        )
        return Geometry(
            module.stride, module.padding, module.dilation, True, tuple(extra), module.groups
        )

    def pieces(self, call: Call, g: Tensor) -> Named:
        """Yield rows or factors of weight and bias from output-gradient ``g``."""
        geometry: Geometry = call.note
        g = as_dtype(g, self.dtype)
        if g.dim() != len(geometry.stride) + 2:
            raise self.unbatched(g)
        if self.weight is not None:
            x = as_dtype(call.inputs[0], self.dtype)
            yield self.weight, self._weight(x, g, geometry)
        if self.bias is not None:
            yield self.bias, Rows(g.flatten(2).sum(2))

    def _weight(self, x: Tensor, g: Tensor, geometry: Geometry) -> ParameterRows:
        shape = self.module.weight.shape
        if self.recorder.totals_only:
            return ConvolutionPiece(x, g, shape, geometry, False)
        key = (*x.shape[1:], geometry)
        if key in self.plans:
            choice = self.plans[key][0]
        else:
            costs = costs_of_convolution(x, g, shape, geometry)
            choice = self.plan(key, shape.numel(), x[0].numel() + g[0].numel(), costs)
        if choice == "rows":
            return Rows(geometry.rows(x, g, shape))
        return ConvolutionPiece(x, g, shape, geometry, choice == "ghost")
