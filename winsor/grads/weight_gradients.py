"""From the output-gradients of one recorded operation to the gradients of its own parameters.

Any operation can be asked through autograd; the frequent ones are called directly, which spares the
trip through the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from winsor.contract import Tree
from winsor.grads.graph import Step


def own_gradients(step: Step, e: Tensor) -> Tree:
    """{name: gradient} of the step's parameters, summed over rows, from output-gradients ``e``."""
    direct = _DIRECT.get(step.op)
    if direct is not None:
        return direct(step, e)
    return gradients_below([step], [e], {w.name: w.tensor for w in step.weights.values()})


def gradients_below(
    steps: Sequence[Step], e: Sequence[Tensor], tensors: Mapping[str, Tensor]
) -> Tree:
    """Gradients of ``tensors`` by a plain backward pass that starts at ``steps``."""
    edges = [step.edge for step in steps]
    found = torch.autograd.grad(
        edges, list(tensors.values()), e, retain_graph=True, allow_unused=True
    )
    return {name: g for name, g in zip(tensors, found, strict=True) if g is not None}


def _linear(step: Step, e: Tensor) -> Tree:
    with_bias = step.op == "AddmmBackward0"
    weight = step.weights.get(2 if with_bias else 1)
    found: Tree = {}
    if weight is not None:
        h = step.saved("mat1" if with_bias else "self")
        found[weight.name] = e.mT @ h if weight.transposed else h.mT @ e
    if with_bias and 0 in step.weights:
        found[step.weights[0].name] = e.sum(0)
    return found


def _convolution(step: Step, e: Tensor) -> Tree:
    found: Tree = {}
    if 1 in step.weights:
        weight, h = step.weights[1], step.saved("input")
        shape, groups = weight.tensor.shape, int(step.saved("groups"))
        n = len(h)
        if h.shape[1] == 1 and groups == 1 and n > 1 and h.device.type == "cpu":
            # One input channel is the slow case of oneDNN. Read as two groups over half of the
            # batch, the same sum takes less than half of the time.
            half = n // 2
            x, g = (t[: 2 * half].reshape(half, -1, *t.shape[2:]) for t in (h, e))
            both = _weight_gradient(step, x, g, torch.Size((2 * shape[0], *shape[1:])), 2)
            total = both[: shape[0]] + both[shape[0] :]
            if n % 2:
                total = total + _weight_gradient(step, h[-1:], e[-1:], shape, 1)
        else:
            total = _weight_gradient(step, h, e, shape, groups)
        found[weight.name] = total
    if 2 in step.weights:
        found[step.weights[2].name] = e.flatten(2).sum((0, 2))
    return found


def _weight_gradient(step: Step, h: Tensor, e: Tensor, shape: torch.Size, groups: int) -> Tensor:
    gradient: Tensor = torch.ops.aten.convolution_backward(
        e,
        h,
        e.new_empty(shape),  # only its shape is read
        None,
        step.saved("stride"),
        step.saved("padding"),
        step.saved("dilation"),
        step.saved("transposed"),
        step.saved("output_padding"),
        groups,
        (False, True, False),
    )[1]
    return gradient


def _group_norm(step: Step, e: Tensor) -> Tree:
    # Contiguous: asked for weights only, the kernel for channels-last inputs crashes (torch 2.13).
    found = torch.ops.aten.native_group_norm_backward(
        e.contiguous(),
        step.saved("input").contiguous(),
        step.saved("result1"),
        step.saved("result2"),
        step.saved("weight"),
        step.saved("N"),
        step.saved("C"),
        step.saved("HxW"),
        step.saved("group"),
        (False, 1 in step.weights, 2 in step.weights),
    )
    return {weight.name: found[position] for position, weight in step.weights.items()}


_DIRECT: dict[str, Callable[[Step, Tensor], Tree]] = {
    "AddmmBackward0": _linear,
    "MmBackward0": _linear,
    "ConvolutionBackward0": _convolution,
    "NativeGroupNormBackward0": _group_norm,
}
