"""Small models whose trained parameters all sit in linear maps: a batch in a few calls.

    |G_i|^2 = |e_i|^2 (|x_i|^2 + 1)       e: output-gradient, x: input, + 1 for a bias

In a small model a call of torch per operation costs more than the operation. `SmallModel` is made
once per model. A step that it can serve (each layer called once, one place per row, float32 on the
processor) runs as follows; any other step is served by the recorder's hooks and by pieces.

    forward     notes where in the graph each layer's output stands; no hooks
    backward    one pass that fetches the output-gradients from there
    the rest    norms of all layers in one call, and their sums in another (`arithmetic.py`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge

from winsor.core.contract import Tree
from winsor.gradients import arithmetic
from winsor.gradients.arithmetic import OuterMap
from winsor.gradients.buffers import Layout
from winsor.gradients.layers.linear import LinearLayer
from winsor.gradients.parameter_rows import Outer, ParameterRows, Rows, zero_where_not
from winsor.gradients.recorded_view import RecordedView
from winsor.gradients.recorder import Call, Recorder, saved_tensor_hooks
from winsor.gradients.view import View

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
            (torch.ones_like(losses) if shares is None else shares,),
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
        if len(met) != len(self._layers) or not _plain(losses, n, 1):
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

    places = 1

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

    def _check(self) -> None:
        if self._checked:
            return
        if not self._maps:
            return super()._check()
        way = arithmetic.library() or arithmetic.PLAIN  # no call in between: short steps notice
        norms, fine = way.norms_of_maps(self._maps.values(), self.raw_losses)
        if not fine:  # other rows keep the digits of their norms
            self._kept = self.raw_losses.isfinite() & norms.isfinite()
            norms = torch.where(self._kept, norms, 0.0)
            self._maps = {layer: _kept_of(each, self._kept) for layer, each in self._maps.items()}
        self._checked, self._norms = True, norms

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        """Return sum_i w_i g_i, all of it by one call."""
        self._check()
        if not isinstance(weights, Tensor) or not self._maps:
            return super().weighted_sum(weights, last)
        tree = self._layout.empty()
        leaves: list[tuple[Tensor | None, Tensor | None]] = []
        for layer in self._maps:
            leaves.append((tree.get(layer.weight or ""), tree.get(layer.bias or "")))
        w = weights.detach()
        way = arithmetic.library() or arithmetic.PLAIN
        way.sums_of_maps(self._maps.values(), w if self._kept is None else self._usable(w), leaves)
        self._spent = last
        if last:
            self._maps = {}
        return tree


def _kept_of(one: OuterMap, kept: Tensor) -> OuterMap:
    """Return the map with rows that are not ``kept`` set to zero."""
    e, x = (None if t is None else zero_where_not(kept, t.detach()) for t in (one.e, one.x))
    assert e is not None
    return OuterMap(e, x, one.has_bias)
