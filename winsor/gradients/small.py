"""Small models whose trained parameters all sit in linear maps: a batch in a few calls.

    |G_i|^2 = |e_i|^2 (|x_i|^2 + 1)       e: output-gradient, x: input, + 1 for a bias

In a small model a call of torch per operation costs more than the operation. `SmallModel` is made
once per model. A step that it can serve (each layer called once, one place per row, float32 on the
processor) runs as follows; any other step is served by the recorder's hooks and by pieces.

    forward     notes where in the graph each layer's output stands; no hooks
    backward    one pass that fetches the output-gradients from there
    the rest    norms, clipping weights and scaling in one call of the library made from `_outer.c`
                each, and one matrix product per layer

Without the library numpy does the same operations in the same order, so every digit is the same.

Guarantee
---------
Squares of float32 are exact in float64, and so small beside its largest number that nothing
overflows: a norm is off by a few units in the last place of float64, then rounded to float32.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge

from winsor.core import compiled
from winsor.core.contract import Tree
from winsor.gradients.buffers import Layout
from winsor.gradients.layers.linear import LinearLayer
from winsor.gradients.outer_maps import OuterMap, Pure, Sums, agrees
from winsor.gradients.parameter_rows import Outer, ParameterRows, Rows
from winsor.gradients.recorded_view import RecordedView
from winsor.gradients.recorder import Call, Recorder, saved_tensor_hooks
from winsor.gradients.sums import FLOAT32_SUM_ROWS, exact_or_zero
from winsor.gradients.view import View

SOURCE = Path(__file__).with_name("_outer.c")
ONE_THREAD_ROWS = 1 << 14
"""Rows up to which one call of one thread is quicker than three that torch may spread."""
ONE_THREAD_NUMBERS = 1 << 20
"""Numbers in all inputs and output-gradients of a batch, up to which one thread is quickest."""

_run_backward = torch.autograd.Variable._execution_engine.run_backward

Met = Sequence[tuple[Call, int, Tensor]]
"""Calls with the number of the output and its gradient."""


class Noted(NamedTuple):
    """One call of a layer in the forward pass."""

    inputs: tuple[Tensor, ...]
    version: int
    """Of the input, which must not change before the backward pass."""
    edge: GradientEdge

    def call(self, layer: LinearLayer) -> Call:
        """Return the call as the recorder would have recorded it."""
        call = Call(layer, self.inputs)
        call.versions = [self.version] * len(self.inputs)
        return call


class SmallModel:
    """Notes what a forward pass does, and turns its backward pass into a view.

    ``pieces_of(losses, met)`` makes the view of a step that is another than planned.
    """

    def __init__(
        self,
        layers: Sequence[LinearLayer],
        parameters: Mapping[str, Tensor],
        layout: Layout,
        recorder: Recorder,
        pieces_of: Callable[[Tensor, Met], View],
    ) -> None:
        self._layers, self._recorder, self._pieces_of = layers, recorder, pieces_of
        self._parameters, self._leaves = parameters, tuple(parameters.values())
        self._layout = layout
        self._noted: dict[LinearLayer, Noted] = {}
        self._hooked = False
        """True if this step is another than planned, and left to the recorder."""

    @staticmethod
    def of(
        layers: Iterable[Any],
        parameters: Mapping[str, Tensor],
        layout: Layout,
        recorder: Recorder,
        pieces_of: Callable[[Tensor, Met], View],
    ) -> SmallModel | None:
        """Plan the model's steps, if linear maps are all it has and no two share a parameter."""
        return None
        found = list(layers)
        if any(type(layer) is not LinearLayer for layer in found):
            return None
        names = [name for layer in found for name in (layer.weight, layer.bias) if name]
        if sorted(names) != sorted(parameters) or layout.device.type != "cpu":
            return None
        fits = layout.dtype is torch.float32
        return SmallModel(found, parameters, layout, recorder, pieces_of) if fits else None

    # ------------------------------------------------------------------------------- forward

    def forward(self, layer: LinearLayer) -> Callable[[Tensor], Tensor]:
        """Return the forward of one layer's module, noted."""
        recorder, noted, trained = self._recorder, self._noted, layer.weight is not None
        held, has_bias = layer.module._parameters, layer.module._parameters.get("bias") is not None

        def forward(input: Tensor) -> Tensor:
            if not recorder.verified or self._hooked or layer in noted or saved_tensor_hooks(True):
                self.leave_to_tape()
                return layer.forward(input)
            bias = held["bias"].detach() if has_bias else None
            if not input.requires_grad and bias is not None:
                bias.requires_grad_()  # so that the output has a place in the graph
            out = F.linear(input, held["weight"].detach(), bias)
            if not out.requires_grad:
                out = out.requires_grad_().clone()  # which, unlike a leaf, may be changed in place
            assert out.grad_fn is not None
            inputs = (input,) if trained else ()
            noted[layer] = Noted(inputs, input._version, GradientEdge(out.grad_fn, 0))
            return out

        return forward

    def forget(self) -> None:
        """Begin anew."""
        self._noted.clear()
        self._hooked = False

    def leave_to_tape(self) -> None:
        """Give up the plan for this step: what was noted is delivered by hooks from now on."""
        for layer, noted in self._noted.items():
            self._recorder.hook(noted.call(layer), noted.edge.node)
        self._noted.clear()
        self._hooked = True

    # ------------------------------------------------------------------------------ backward

    def view(self, losses: Tensor, shares: Tensor | None = None) -> View:
        """Return the view of ``losses`` times the constants ``shares``.

        A run that goes on begins with the recorder's hooks where the one before went by the plan,
        and must find the same digits: so both ways end in the same view.
        """
        own = losses if shares is None else losses.detach() * shares
        if not self._noted:
            return self._by_hooks(losses, shares, own)
        noted = list(self._noted.items())
        self._noted.clear()
        # What torch.autograd.grad does after checks that take as long as the pass itself.
        found = _run_backward(
            (losses,),
            (self._recorder.ones_like(losses) if shares is None else shares,),
            False,
            False,
            (*[one.edge for _, one in noted], *self._leaves),
            allow_unreachable=True,
            accumulate_grad=False,
        )
        reached = zip(self._parameters, found[len(noted) :], strict=True)
        stray = [name for name, g in reached if g is not None]
        if stray:
            self._recorder.refuse_stray(stray)
        met = [(layer, *one[:2], g) for (layer, one), g in zip(noted, found, strict=False)]
        view = self._as_planned(own, met)
        if view is not None:
            return view
        calls = [(one.call(a), 0, g) for (a, one), (*_, g) in zip(noted, met, strict=True)]
        return self._pieces_of(own, [each for each in calls if each[2] is not None])

    def _by_hooks(self, losses: Tensor, shares: Tensor | None, own: Tensor) -> View:
        self.leave_to_tape()
        self.forget()
        met: list[tuple[Call, int, Tensor]] = []
        self._recorder.backward(losses, lambda *each: met.append(each), shares)
        seen = [(c.operation, c.inputs, sum(c.versions), g) for c, _, g in met]
        return self._as_planned(own, seen) or self._pieces_of(own, met)

    def _as_planned(
        self, losses: Tensor, met: Sequence[tuple[LinearLayer, Sequence[Tensor], int, Tensor]]
    ) -> View | None:
        """Return the view by plan, or None if this step was another than planned."""
        n, size = losses.shape[0], 0
        if len(met) != len(self._layers) or n > FLOAT32_SUM_ROWS or not _plain(losses, n, 1):
            return None
        maps: dict[LinearLayer, OuterMap] = {}
        for layer, inputs, version, e in met:
            x = inputs[0] if inputs else None
            if e is None or not _plain(e, n, 2):
                return None
            if x is not None:
                if not _plain(x, n, 2) or version != x._version:
                    return None
                size += x.shape[1]
            size += e.shape[1]
            maps[layer] = OuterMap(e, x, 0 if layer.bias is None else 1)
        if n * size > ONE_THREAD_NUMBERS or len(maps) != len(met):
            return None
        in_order = {layer: maps[layer] for layer in self._layers}  # hooks deliver them backwards
        return LinearView(self._parameters, in_order, losses, self._layout)


def _plain(x: Tensor, n: int, dimensions: int) -> bool:
    """Tell whether its numbers can be read from its address on."""
    fits = x.dim() == dimensions and x.shape[0] == n and x.dtype is torch.float32
    return fits and x.is_contiguous() and x.device.type == "cpu"


class LinearView(RecordedView):
    """Norms and one sum for all parameters without pieces; these are made for whoever asks."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        maps: Mapping[LinearLayer, OuterMap],
        losses: Tensor,
        layout: Layout,
    ) -> None:
        self._parameters, self._layout = parameters, layout  # as super().__init__, in one call less
        self._recorded: dict[str, ParameterRows] = {}
        self.raw_losses, self._n = losses.detach(), losses.shape[0]
        self._maps = maps  # empty as soon as there are pieces, or nothing is left

    @property
    def _pieces(self) -> dict[str, ParameterRows]:
        if self._maps:
            self._recorded = dict(self._made())
            self._maps = {}
        return super()._pieces

    def _made(self) -> Iterator[tuple[str, ParameterRows]]:
        for layer, (e, x, _) in self._maps.items():
            left = Rows(e)
            if x is not None and layer.weight is not None:
                yield layer.weight, Outer(left, Rows(x.detach()))
            if layer.bias is not None:
                yield layer.bias, left

    @property
    def neutralised(self) -> int:
        """Rows set to zero because they were not finite."""
        return 0 if self._checked and self._kept is None else super().neutralised

    def norms(self) -> Tensor:
        """Return (n,) norms over all parameters, by one call of the library."""
        self._check()
        assert self._norms is not None
        return self._norms

    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        """Return (n, len(groups)) norms, by pieces."""
        if self._maps and self._pieces:  # their squares are float32: rows near its limits again
            self._checked = False
        return super().group_norms(groups)

    def _check(self) -> None:
        if self._checked:
            return
        norms = torch.empty(self._n)
        if self._maps and arithmetic().norms(self._maps.values(), self.raw_losses, norms):
            self._checked, self._norms = True, norms
        else:  # there are pieces already, or a row is to be set to zero
            super()._check()

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        """Return sum_i w_i g_i, by one call of the library and a matrix product per layer."""
        self._check()
        alike = isinstance(weights, Tensor) and weights.dtype is torch.float32
        if not alike or not self._maps or torch.is_grad_enabled():
            return super().weighted_sum(weights, last)
        assert isinstance(weights, Tensor)
        tree, n = self._layout.empty(), self._n
        weights = weights if weights.is_contiguous() else weights.contiguous()
        sums = [
            (torch.empty(e.shape[1], n), None if layer.bias is None else tree[layer.bias])
            for layer, (e, _, _) in self._maps.items()
        ]
        arithmetic().scale(self._maps.values(), weights, sums)
        for (layer, (_, x, _)), (scaled, _) in zip(self._maps.items(), sums, strict=True):
            if x is not None and layer.weight is not None:
                torch.mm(scaled, x, out=tree[layer.weight])
        self._spent = last
        if last:
            self._maps = {}
        return tree


# --------------------------------------------------------------------------------- arithmetic


class Compiled:
    """Calls into the library. Addresses are of tensors that the caller has checked."""

    def __init__(self, path: Path) -> None:
        number, real, pointer = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
        # PyDLL: calls are too short to hand the interpreter over
        self._norms, self._clip, self._scale = compiled.functions(
            ctypes.PyDLL(str(path)),
            norms=(ctypes.c_int, pointer, number, number, pointer, pointer),
            clip=(None, pointer, number, real, real, pointer),
            scale=(None, pointer, number, number, pointer),
        )

    def norms(self, maps: Collection[OuterMap], losses: Tensor, out: Tensor) -> bool:
        """Write the norms over all maps; return whether losses and norms are finite."""
        count = len(maps)
        table = _table(count)(*[field for e, x, bias in maps for field in _fields(e, x, bias)])
        found = self._norms(table, count, out.shape[0], losses.data_ptr(), out.data_ptr())
        return bool(found)

    def clip(self, norms: Tensor, least: float, clip: float, out: Tensor) -> None:
        """Write clip / max(least, norm) for each row, or 0 where that has lost digits."""
        self._clip(norms.data_ptr(), norms.shape[0], least, clip, out.data_ptr())

    def scale(self, maps: Collection[OuterMap], weights: Tensor, sums: Sums) -> None:
        """Write w_i e_i of every map, and its sum over the rows."""
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
    """Return the type of ``count`` records of `_outer.c`: seven fields of eight bytes each."""
    return ctypes.c_int64 * (7 * count)


@functools.cache
def arithmetic() -> Compiled | Pure:
    """Load the library, or the same arithmetic in numpy."""
    found: Compiled | None = compiled.load(SOURCE, Compiled, agrees)
    return Pure() if found is None else found


def clipping_weights(norms: Tensor, least: float, clip: float) -> Tensor:
    """Compute clip / max(least, norm) for each row, where the digits are those of torch
    either way."""
    plain = norms.dtype is torch.float32 and norms.device.type == "cpu" and norms.is_contiguous()
    if not plain or norms.dim() != 1 or norms.shape[0] > ONE_THREAD_ROWS or norms.requires_grad:
        return exact_or_zero(norms.clamp_min(least).reciprocal_().mul_(clip))
    weights = torch.empty_like(norms)
    arithmetic().clip(norms, least, clip, weights)
    return weights
