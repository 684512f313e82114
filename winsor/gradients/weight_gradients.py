"""What must be kept of a recorded operation until the weights of the rows are known.

`kept` is asked when the output-gradient e of the operation is there, and reads everything it needs
from the graph at once, so that the graph may be let go. Its `sum(w)` is then sum_i w_i g_i for the
operation's own parameters. What is kept:

    linear                 the input and e, of which the input is held by plain training as well
    convolution            likewise, or the gradients row by row where they are no larger than that
    GroupNorm, LayerNorm   the gradients of scale and shift, row by row: as small as a bias
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from winsor.core.contract import Tree
from winsor.gradients.graph import Step, Weight
from winsor.gradients.layers.convolution import Geometry


def scaled(gradient: Tensor, weights: Tensor, spent: bool = False) -> Tensor:
    """Return row i of ``gradient`` times w_i, where a row is one of n equal blocks.

    In place where the gradient is ``spent``: nobody reads it again.
    """
    n = weights.shape[0]
    flat = gradient.dim() == 2 and gradient.shape[0] == n
    rows = gradient if flat else gradient.reshape(n, -1)
    if spent and gradient.is_contiguous():
        rows.mul_(weights[:, None])
        return gradient
    product = rows * weights[:, None]
    return product if flat else product.view(gradient.shape)


def gradients_below(
    steps: Sequence[Step], e: Sequence[Tensor], tensors: Mapping[str, Tensor]
) -> Tree:
    """Return gradients of ``tensors`` by a plain backward pass that starts at ``steps``."""
    edges = [step.edge for step in steps]
    found = torch.autograd.grad(
        edges, list(tensors.values()), e, retain_graph=True, allow_unused=True
    )
    return {name: g for name, g in zip(tensors, found, strict=True) if g is not None}


class Kept:
    """An operation whose parameters are asked through autograd: the graph must stay.

    With ``spent``, a sum may overwrite the output-gradient: it is the last one.
    """

    e: Tensor | None = None

    def __init__(self, step: Step, e: Tensor, n: int) -> None:
        self.step, self.e = step, e

    def sum(self, weights: Tensor, spent: bool = False) -> Tree:
        """Return sum_i w_i g_i of the parameters of this operation."""
        tensors = {w.name: w.tensor for w in self.step.weights.values()}
        assert self.e is not None
        return gradients_below([self.step], [scaled(self.e, weights)], tensors)


class KeptLinear(Kept):
    """A linear map: its input and output-gradient."""

    e: Tensor

    def __init__(self, step: Step, e: Tensor, n: int) -> None:
        self.e = e
        with_bias = step.op == "AddmmBackward0"
        self.weight = step.weights.get(2 if with_bias else 1)
        self.bias = step.weights.get(0) if with_bias else None
        self.input: Tensor | None = None
        if self.weight is not None:
            self.input = step.saved("mat1" if with_bias else "self")

    def sum(self, weights: Tensor, spent: bool = False) -> Tree:
        """Return sum_i w_i g_i of weight and bias by one product each."""
        e, found = scaled(self.e, weights, spent), {}
        if self.weight is not None:
            assert self.input is not None
            product = (e, self.input) if self.weight.transposed else (self.input, e)
            found[self.weight.name] = product[0].mT @ product[1]
        if self.bias is not None:
            found[self.bias.name] = e.sum(0)
        return found


class KeptConvolution(Kept):
    """A convolution: its input and output-gradient."""

    e: Tensor

    def __init__(self, step: Step, e: Tensor, n: int) -> None:
        self.e = e
        self.weight, self.bias = step.weights.get(1), step.weights.get(2)
        self.input: Tensor | None = None
        if self.weight is not None:
            self.input = step.saved("input")
        self.geometry = _geometry(step)

    def sum(self, weights: Tensor, spent: bool = False) -> Tree:
        """Return sum_i w_i g_i of weight and bias by one weight gradient."""
        e, found = scaled(self.e, weights, spent), {}
        if self.weight is not None:
            found[self.weight.name] = self._weight_gradient(self.weight, e)
        if self.bias is not None:
            found[self.bias.name] = e.flatten(2).sum((0, 2))
        return found

    def _weight_gradient(self, weight: Weight, e: Tensor) -> Tensor:
        h, geometry = self.input, self.geometry
        assert h is not None
        return geometry.weight_gradient(h, e, weight.tensor.shape, geometry.groups)


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
        self._shapes = {w.name: w.tensor.shape for w in step.weights.values()}
        self.rows = {
            step.weights[at].name: values.reshape(n, -1, values.shape[-1]).sum(1)
            for at, values in rows.items()
        }

    def sum(self, weights: Tensor, spent: bool = False) -> Tree:
        """Return sum_i w_i g_i from explicit rows."""
        return {name: (weights @ rows).view(self._shapes[name]) for name, rows in self.rows.items()}


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
    piece: Kept = _KEPT.get(step.op, Kept)(step, e, n)
    return piece


def outlives_the_graph(step: Step) -> bool:
    """Tell whether what is kept of the step stands on its own."""
    return step.op in _KEPT
