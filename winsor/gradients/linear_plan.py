"""The plan of a small model whose trained parameters all sit in linear maps.

Made once per model: which layer has which parameters. A step that goes by the plan (each layer
called once, one place per row, float32 on the processor)

    forward     notes where in the graph each layer's output stands; no hooks
    backward    one pass that fetches the output-gradients from there
    the rest    three calls of `outer_maps.py` and one matrix product per layer (`linear_view.py`)

Any other step is served by the tape's hooks and by pieces, as every model is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge

from winsor.gradients.backward import last_gradients
from winsor.gradients.layers.linear import LinearLayer
from winsor.gradients.linear_view import LinearView
from winsor.gradients.outer_maps import OuterMap
from winsor.gradients.sums import MANY
from winsor.gradients.tape import Call, Tape, saved_tensor_hooks
from winsor.gradients.tree import Layout

SMALL = 1 << 20
"""Numbers in all inputs and output-gradients of a batch, up to which one thread is quickest."""

Met = Sequence[tuple[Call, int, Tensor]]
"""Calls with the number of the output and its gradient."""


class LinearPlan:
    """Notes what a forward pass does, and turns its backward pass into a view."""

    def __init__(
        self, layers: Sequence[LinearLayer], parameters: Mapping[str, Tensor], layout: Layout
    ) -> None:
        self._layers = layers
        self._names = list(parameters)
        self._leaves = tuple(parameters.values())
        self._layout = layout
        self._noted: dict[LinearLayer, tuple[Call, GradientEdge]] = {}
        self._hooked = False
        """True if this step is another than planned, and left to the tape."""

    @staticmethod
    def of(
        layers: Iterable[Any], parameters: Mapping[str, Tensor], layout: Layout
    ) -> LinearPlan | None:
        """A plan, if linear maps are all there is and no two share a parameter."""
        found = list(layers)
        if any(type(layer) is not LinearLayer for layer in found):
            return None
        names = [name for layer in found for name in (layer.weight, layer.bias) if name]
        if sorted(names) != sorted(parameters) or layout.device.type != "cpu":
            return None
        return LinearPlan(found, parameters, layout) if layout.dtype is torch.float32 else None

    # ------------------------------------------------------------------------------- forward

    def forward(self, layer: LinearLayer) -> Callable[[Tensor], Tensor]:
        """The forward of one layer's module, noted."""
        tape, noted = layer.tape, self._noted
        held, has_bias = layer.module._parameters, layer.module._parameters.get("bias") is not None

        def forward(input: Tensor) -> Tensor:
            if not tape.verified or self._hooked or layer in noted or saved_tensor_hooks(True):
                self.leave_to(tape)
                return layer.forward(input)
            bias = held["bias"].detach() if has_bias else None
            if not input.requires_grad and bias is not None:
                bias.requires_grad_()  # so that the output has a place in the graph
            out = F.linear(input, held["weight"].detach(), bias)
            if not out.requires_grad:
                out = out.requires_grad_().clone()  # which, unlike a leaf, may be changed in place
            assert out.grad_fn is not None
            call = Call(layer, () if layer.weight is None else (input,))
            noted[layer] = call, GradientEdge(out.grad_fn, 0)
            return out

        return forward

    def forget(self) -> None:
        """Begin anew."""
        self._noted.clear()
        self._hooked = False

    def leave_to(self, tape: Tape) -> None:
        """Give up the plan for this step: what was noted is delivered by hooks from now on."""
        for call, edge in self._noted.values():
            tape.hook(call, edge.node)
        self._noted.clear()
        self._hooked = True

    # ------------------------------------------------------------------------------ backward

    @property
    def goes_well(self) -> bool:
        """Whether all that was recorded of this step was noted here."""
        return bool(self._noted)

    def backward(self, losses: Tensor, seed: Tensor) -> tuple[Met, list[str]]:
        """Output-gradients of (seed * losses).sum() at all calls that have a part in it, and the
        names of parameters that the losses reach past their modules."""
        noted = list(self._noted.values())
        self._noted.clear()
        inputs = (*(edge for _, edge in noted), *self._leaves)
        found = last_gradients((losses,), (seed,), inputs)
        met = [(call, 0, g) for (call, _), g in zip(noted, found, strict=False) if g is not None]
        direct = zip(self._names, found[len(noted) :], strict=True)
        return met, [name for name, g in direct if g is not None]

    def view(self, parameters: Mapping[str, Tensor], losses: Tensor, met: Met) -> LinearView | None:
        """None if this step was another than planned."""
        n, size = losses.shape[0], 0
        if len(met) != len(self._layers) or n > MANY or not _plain(losses, n, 1):
            return None
        maps: dict[LinearLayer, OuterMap] = {}
        for call, _, e in met:
            layer: LinearLayer = call.operation
            x = call.inputs[0] if call.inputs else None
            if not _plain(e, n, 2):
                return None
            if x is not None:
                if not _plain(x, n, 2) or call.versions[0] != x._version:
                    return None
                size += x.shape[1]
            size += e.shape[1]
            maps[layer] = OuterMap(e, x, 0 if layer.bias is None else 1)
        if n * size > SMALL or len(maps) != len(met):
            return None
        in_order = {layer: maps[layer] for layer in self._layers}  # hooks deliver them backwards
        return LinearView(parameters, in_order, losses, self._layout)


def _plain(x: Tensor, n: int, dimensions: int) -> bool:
    """Whether its numbers can be read from its address on."""
    fits = x.dim() == dimensions and x.shape[0] == n and x.dtype is torch.float32
    return fits and x.is_contiguous() and x.device.type == "cpu"
