"""Convolutions of 1, 2 or 3 dimensions, plain and transposed, with stride, dilation and groups.

    G_i = the weight gradient of a convolution on row i alone

All n of them at once are the weight gradient of *one* convolution with n times as many groups, on
the batch read as (1, n * channels, ...): row i is group i. No unfolding, the library's own kernel,
at about the cost of the weight gradient that plain training computes.

Where that costs more, or the rows are too large to keep, a convolution is read as a linear map of
patches, which are made a few rows at a time and gone before the next: once for the norms, once for
the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from winsor.gradients.arithmetic import add_up_chunks, inner_products, weigh_products
from winsor.gradients.layers.layer import Layer, Named, as_dtype
from winsor.gradients.parameter_rows import (
    Factors,
    ParameterRows,
    Rows,
    chunks_of,
    zero_where_not,
)
from winsor.gradients.recorder import Call
from winsor.gradients.row_memory import MAC

ROWS_AT_ONCE = 1 << 22
"""Floats of rows that one call of the library's kernel forms: it needs as much again inside."""

GROUPED, WIDE, VISIT = 1.3, 2.0, 10.0
"""A multiply-add of a convolution with as many groups as rows, and of the products in float64, in
multiply-adds of a plain weight gradient; one float of an array beyond the cache, read or written
once, in the same unit. Measured on maps of 4 x 4 to 32 x 32 and 16 to 256 channels."""


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
        size = max(1, ROWS_AT_ONCE // shape.numel())  # whatever the count of rows, which is private
        if len(x) <= size:
            return self._rows(x, g, shape)
        rows = g.new_empty(len(x), *shape)
        for i in range(0, len(x), size):
            rows[i : i + size] = self._rows(x[i : i + size], g[i : i + size], shape)
        return rows

    def patches(self, x: Tensor, kernel: Sequence[int], places: Sequence[int]) -> Tensor:
        """Return (n groups, T, numbers) patches of ``x`` that the kernel meets at its places."""
        x = F.pad(x.detach(), [pad for each in reversed(self.padding) for pad in (each, each)])
        walks = list(zip(kernel, self.stride, self.dilation, places, strict=True))
        for axis, (size, stride, dilation, count) in enumerate(walks, 2):
            x = x.unfold(axis, dilation * (size - 1) + 1, stride).narrow(axis, 0, count)
        for axis, (_, _, dilation, _) in enumerate(walks, 2 + len(walks)):
            x = x[(slice(None),) * axis + (slice(None, None, dilation),)]
        x = x.unflatten(1, (self.groups, -1)).flatten(0, 1)  # (n G, C / G, *places, *kernel)
        spatial = len(places)
        order = (0, *range(2, 2 + spatial), 1, *range(2 + spatial, 2 + 2 * spatial))
        return x.permute(order).flatten(1 + spatial).flatten(1, spatial)

    def _rows(self, x: Tensor, g: Tensor, shape: torch.Size) -> Tensor:
        n = len(x)
        wide = torch.Size((n * shape[0], *shape[1:]))
        rows = self.weight_gradient(
            x.reshape(1, -1, *x.shape[2:]), g.reshape(1, -1, *g.shape[2:]), wide, n * self.groups
        )
        return rows.view(n, *shape)


class ConvolutionPiece(ParameterRows):
    """Input and output-gradient of a convolution whose rows are too large to keep.

    It is a linear map of patches, which are made of a few rows at a time. The patches of a
    transposed convolution are those of its output-gradient.
    """

    def __init__(self, x: Tensor, g: Tensor, shape: torch.Size, geometry: Geometry) -> None:
        self.x, self.g, self.shape, self.geometry = x, g, shape, geometry
        self.n, self.places = len(x), (x if geometry.transposed else g).shape[2:].numel()

    def factors(self, start: int, stop: int) -> Factors:
        """Return the factors of rows ``start`` to ``stop``, every group of channels for itself."""
        x, g = self.x[start:stop].detach(), self.g[start:stop].detach()
        seen, met = (g, x) if self.geometry.transposed else (x, g)
        right = self.geometry.patches(seen, self.shape[2:], met.shape[2:])
        left = met.flatten(2).unflatten(1, (self.geometry.groups, -1)).flatten(0, 1).mT
        return Factors(left.contiguous(), right)

    def parts(self) -> list[tuple[int, int]]:
        """Return (start, stop) of as many rows as have their patches in the cache."""
        return chunks_of(self.n, self.places * self.shape[1:].numel() * self.geometry.groups)

    def rows(self, start: int, stop: int) -> Tensor:
        """Form rows ``start`` to ``stop``."""
        found = self.factors(start, stop)
        return found.rows(0, found.n).view(stop - start, *self.shape)

    def gross(self, order: float) -> Tensor:
        """Return (n,) lengths that the rows have if no place cancels another."""
        groups = self.geometry.groups
        apart = [self.factors(*at).gross(order).view(-1, groups) for at in self.parts()]
        return torch.linalg.vector_norm(torch.cat(apart), order, dim=1)

    def select(self, index: Tensor) -> ConvolutionPiece:
        """Return inputs and output-gradients of the rows of ``index``."""
        return ConvolutionPiece(self.x[index], self.g[index], self.shape, self.geometry)

    def where(self, kept: Tensor) -> ConvolutionPiece:
        """Set rows that are not ``kept`` to zero."""
        x, g = zero_where_not(kept, self.x), zero_where_not(kept, self.g)
        return ConvolutionPiece(x, g, self.shape, self.geometry)

    def square(self) -> Tensor:
        """Return (n,) squared norms, with the term that covers what cancels."""
        groups = self.geometry.groups
        apart = [self.factors(*at).square().view(-1, groups) for at in self.parts()]
        return torch.cat(apart).sum(1)

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        """Write sum_i w_i G_i, by one product of output-gradients and patches for a few rows."""
        groups = self.geometry.groups

        def add(start: int, stop: int, into: Tensor) -> None:
            found, some = self.factors(start, stop), None if w is None else w[start:stop]
            left, right = (f.unflatten(0, (-1, groups)) for f in (found.left, found.right))
            for group, each in enumerate(into.view(groups, self.shape[0] // groups, -1)):
                pair = left[:, group].contiguous(), right[:, group].contiguous()
                weigh_products(some, *pair, each, add=True)

        add_up_chunks(self.parts(), add, out)


def costs_of_convolution(
    x: Tensor, g: Tensor, shape: torch.Size, geometry: Geometry
) -> dict[str, float]:
    """Keep rows; or keep factors, and make patches for norm and sum."""
    places = (x if geometry.transposed else g)[0, 0].numel()
    contraction, visit = MAC * places * shape.numel(), VISIT * shape.numel()
    patches = 2 * VISIT * places * shape[1:].numel() * geometry.groups
    grams = MAC * 0.5 * places**2 * (shape[0] + shape[1:].numel() * geometry.groups)
    return {
        "rows": GROUPED * contraction + 3 * visit,
        "patches": WIDE * (contraction + min(contraction, grams)) + patches,
    }


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
            flat = g.reshape(g.shape[:2].numel(), -1)
            sums = inner_products(flat, flat.new_ones(1, flat.shape[1]))
            yield self.bias, Rows(sums.view(g.shape[:2]))

    def _weight(self, x: Tensor, g: Tensor, geometry: Geometry) -> ParameterRows:
        shape = self.module.weight.shape
        key = (*x.shape[1:], geometry)
        if key in self.plans:
            choice = self.plans[key][0]
        else:
            costs = costs_of_convolution(x, g, shape, geometry)
            choice = self.plan(key, shape.numel(), x[0].numel() + g[0].numel(), costs)
        if choice == "rows":
            return Rows(geometry.rows(x, g, shape))
        return ConvolutionPiece(x, g, shape, geometry)
