"""What must be kept of a recorded operation until the weights of the rows are known.

`kept` is asked when the output-gradient e of the operation is there, and reads everything it needs
from the graph at once, so that the graph may be let go. Its `sum(w)` is then sum_i w_i g_i for the
operation's own parameters, in float64 from the numbers that are kept. What is kept:

    linear                 the input and e, of which the input is held by plain training as well
    convolution            likewise, or the gradients row by row where they are no larger than that
    GroupNorm, LayerNorm   the gradients of scale and shift, row by row: as small as a bias

Guarantee
---------
Row i of a sum is a function of what is kept of row i, and of nothing else: these numbers are the
row, for the norms and bounds of other files as for the sums here (`arithmetic.py`). Rows that are
not used count zero, whatever they hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from winsor.core.contract import Tree
from winsor.gradients.arithmetic import squares, weigh_products, weigh_rows, wide
from winsor.gradients.graph import Step, Weight
from winsor.gradients.layers.convolution import ConvolutionPiece, Geometry


def used(x: Tensor, rows: Tensor) -> Tensor:
    """Return the n equal blocks of ``x`` as (n, ...), those that are not among ``rows`` as
    zeros."""
    blocks = x.reshape(len(rows), -1, *x.shape[1:])
    return torch.where(rows.view(-1, *[1] * x.dim()), blocks, 0.0)


class Kept:
    """What is kept of one operation: `tensors` of n equal blocks of rows, and its parameters."""

    tensors: Sequence[Tensor]

    def lengths(self, n: int) -> Tensor:
        """Return (n,) sums of squares of all that is kept; not finite where any of it is not."""
        return torch.stack([squares(x.reshape(n, -1)) for x in self.tensors]).sum(0)

    def sum(self, weights: Tensor, rows: Tensor) -> Tree:
        """Return sum_i w_i g_i in float64 of the parameters, over ``rows`` ((n,) of bool)."""
        raise NotImplementedError


def _empty(weight: Weight, like: Tensor) -> Tensor:
    return torch.zeros(weight.tensor.shape, dtype=torch.float64, device=like.device)


class KeptLinear(Kept):
    """A linear map: its output-gradient and input."""

    def __init__(self, step: Step, e: Tensor, n: int) -> None:
        self.e = e
        with_bias = step.op == "AddmmBackward0"
        self.weight = step.weights.get(2 if with_bias else 1)
        self.bias = step.weights.get(0) if with_bias else None
        self.input: Tensor | None = None
        if self.weight is not None:
            self.input = step.saved("mat1" if with_bias else "self")
        self.tensors = [e] if self.input is None else [e, self.input]

    def sum(self, weights: Tensor, rows: Tensor) -> Tree:
        """Return the sums of weight and bias by one product each."""
        e, found = used(self.e, rows), {}
        if self.weight is not None:
            assert self.input is not None
            pair = e, used(self.input, rows)
            left, right = pair if self.weight.transposed else pair[::-1]
            found[self.weight.name] = out = _empty(self.weight, e)
            weigh_products(weights, left, right, out)
        if self.bias is not None:
            found[self.bias.name] = out = _empty(self.bias, e)
            weigh_rows(weights, wide(e).sum(1), out)
        return found


class KeptConvolution(Kept):
    """A convolution: its output-gradient and input, a linear map of the patches that it meets."""

    def __init__(self, step: Step, e: Tensor, n: int) -> None:
        self.e = e
        self.weight, self.bias = step.weights.get(1), step.weights.get(2)
        self.input: Tensor | None = None
        if self.weight is not None:
            self.input = step.saved("input")
        self.geometry = _geometry(step)
        self.tensors = [e] if self.input is None else [e, self.input]

    def piece(self, rows: Tensor) -> ConvolutionPiece:
        """Return the blocks of ``rows`` as rows of the weight."""
        assert self.weight is not None and self.input is not None
        h, e = (used(x, rows).flatten(0, 1) for x in (self.input, self.e))
        return ConvolutionPiece(h, e, self.weight.tensor.shape, self.geometry)

    def sum(self, weights: Tensor, rows: Tensor) -> Tree:
        """Return the sums of weight and bias from patches, some blocks of rows after the others."""
        found, blocks = {}, weights.repeat_interleave(len(self.e) // len(rows))
        if self.weight is not None:
            found[self.weight.name] = out = _empty(self.weight, self.e)
            self.piece(rows).weighted(blocks, out)
        if self.bias is not None:
            found[self.bias.name] = out = _empty(self.bias, self.e)
            e = used(self.e, rows).flatten(0, 1).flatten(2)
            weigh_rows(blocks, wide(e).sum(2), out)
        return found


def _geometry(step: Step) -> Geometry:
    return Geometry(
        step.saved("stride"),
        step.saved("padding"),
        step.saved("dilation"),
        step.saved("transposed"),
        step.saved("output_padding"),
        int(step.saved("groups")),
    )


def _convolution(step: Step, e: Tensor, n: int) -> Kept:
    """Choose rows where they cost what the weight gradient costs later: they give norms away."""
    weight = step.weights.get(1)
    if weight is None or len(e) != n:
        return KeptConvolution(step, e, n)
    shape, h = weight.tensor.shape, step.saved("input")
    if shape.numel() > h[0].numel() + e[0].numel():
        return KeptConvolution(step, e, n)
    found = {1: _geometry(step).rows(h, e, shape).flatten(1)}
    if 2 in step.weights:
        found[2] = e.flatten(2).sum(2)
    return KeptRows(step, n, found)


class KeptRows(Kept):
    """Gradients of the parameters row by row: {name: (n, entries)}."""

    def __init__(self, step: Step, n: int, rows: Mapping[int, Tensor]) -> None:
        """``rows``: by argument position, (n times positions, entries)."""
        self._weights = {w.name: w for w in step.weights.values()}
        self.rows = {
            step.weights[at].name: values.reshape(n, -1, values.shape[-1]).sum(1)
            for at, values in rows.items()
        }
        self.tensors = list(self.rows.values())

    def sum(self, weights: Tensor, rows: Tensor) -> Tree:
        """Return the sums of explicit rows."""
        found = {name: _empty(self._weights[name], values) for name, values in self.rows.items()}
        for name, values in self.rows.items():
            weigh_rows(weights, used(values, rows), found[name])
        return found


def _group_norm(step: Step, e: Tensor, n: int) -> KeptRows:
    """Find the sums row by row: the library's kernel has them before it adds them up, if it is told
    that the batch is one row of as many channels and groups (`layers/norms.py`)."""
    channels = int(step.saved("C"))
    x, mean, rstd = (step.saved(name) for name in ("input", "result1", "result2"))
    blocks = mean.shape[0]
    _, scale, shift = torch.ops.aten.native_group_norm_backward(
        e.contiguous(),
        x.contiguous(),
        mean.reshape(1, -1),
        rstd.reshape(1, -1),
        x.new_ones(blocks * channels),  # the scale of the input-gradient, which is not asked for
        1,
        blocks * channels,
        int(step.saved("HxW")),
        blocks * int(step.saved("group")),
        (False, True, True),
    )
    found = {at: rows.view(blocks, channels) for at, rows in ((1, scale), (2, shift))}
    return KeptRows(step, n, {at: rows for at, rows in found.items() if at in step.weights})


def _layer_norm(step: Step, e: Tensor, n: int) -> KeptRows:
    features = math.prod(int(length) for length in step.saved("normalized_shape"))
    found: dict[int, Tensor] = {}
    if 1 in step.weights:
        x, mean, rstd = (step.saved(name) for name in ("input", "result1", "result2"))
        found[1] = (e * ((x - mean) * rstd)).reshape(-1, features)
    if 2 in step.weights:
        found[2] = e.reshape(-1, features)
    return KeptRows(step, n, found)


_KEPT: dict[str, Callable[[Step, Tensor, int], Any]] = {
    "AddmmBackward0": KeptLinear,
    "MmBackward0": KeptLinear,
    "ConvolutionBackward0": _convolution,
    "NativeGroupNormBackward0": _group_norm,
    "NativeLayerNormBackward0": _layer_norm,
}


def kept(step: Step, e: Tensor, n: int) -> Kept:
    """Keep what sum_i w_i g_i of the step's parameters takes, from output-gradients ``e`` of n
    rows."""
    piece: Kept = _KEPT[step.op](step, e, n)
    return piece


def outlives_the_graph(step: Step) -> bool:
    """Tell whether what is kept of the step stands on its own."""
    return step.op in _KEPT
