"""The fast engine: one backward pass, ghost norms, book-keeping.

    forward    every module with parameters runs on detached parameters and keeps its input
    backward   the output-gradient of each module arrives; weight gradients are never computed
    norms      per parameter, from rows or from ghost norms, whichever is cheaper for its shape
    sum        one weighted contraction per parameter

Rules that need only losses, totals or weights known from the losses get plain autograd: no
recording, no per-sample work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from winsor.grads.bookkeeping import PieceView
from winsor.grads.func import call_rows, recorded_module
from winsor.grads.layers import layer_for
from winsor.grads.layers.attention import attention_forward
from winsor.grads.layers.layer import Layer
from winsor.grads.layers.linear import recorded_linear
from winsor.grads.layers.recurrent import recurrent_forward
from winsor.grads.parameters import Site, find_sites
from winsor.grads.pieces import Piece, Rows, merged
from winsor.grads.plain import PlainView
from winsor.grads.tape import Call, Forward, Tape, refuse_other_batch, refuse_without_graph
from winsor.grads.view import Need, View

PER_SAMPLE = Need.NORMS | Need.GROUP_NORMS | Need.SKETCH | Need.ROWS


class GhostEngine:
    """Closed forms for the layers of `winsor/grads/layers`, torch.func for any other module."""

    name = "ghost"

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        needs: Need | None = None,
    ) -> None:
        self._parameters = dict(parameters)
        self._sites = find_sites(model, parameters)
        self._tape = Tape(model, self._sites)
        self._layers: dict[Any, Any] = {}
        self._pure: dict[Any, Any] = {}
        self._per_sample = needs is None or bool(needs & PER_SAMPLE)
        self._weighs_rows = needs is None or bool(needs & Need.WEIGHTED_SUM)
        for site in self._sites:
            self._prepare(site)

    def attach(self) -> None:
        self._tape.attach(self._recorded)

    def detach(self) -> None:
        self._tape.detach()

    def recording(self, on: bool) -> None:
        self._on = on
        self._tape.on = on and not self._plain

    @property
    def _plain(self) -> bool:
        """Plain autograd is enough. Weighted rows are recorded until they are seen not to mix."""
        return not self._per_sample and (self._tape.verified or not self._weighs_rows)

    def view(self, losses: Tensor) -> View:
        refuse_without_graph(losses)
        if not self._tape.on:
            return PlainView(self._parameters, losses)
        n = len(losses)
        pieces: dict[str, list[Piece]] = {}
        later: dict[int, Call] = {}

        def receive(call: Call, j: int, g: Tensor) -> None:
            if g.dim() == 0 or g.shape[0] != n:
                refuse_other_batch(call, g, n)
            if isinstance(call.operation, Layer):
                call.refuse_changed_inputs()
                for name, piece in call.operation.pieces(call, g):
                    pieces.setdefault(name, []).append(piece)
                call.inputs = ()  # the pieces hold what is still needed
            else:
                call.grads[j] = g
                later[id(call)] = call

        verify = not self._tape.verified
        if n > 0:
            self._tape.backward(losses, receive)
        if later:
            with self._tape.paused():
                for call in later.values():
                    for name, rows in call_rows(call, self._parameters, n, verify).items():
                        pieces.setdefault(name, []).append(Rows(rows))
        self._tape.on = self._on and not self._plain
        return PieceView(self._parameters, {k: merged(v) for k, v in pieces.items()}, losses)

    def explain(self) -> str:
        """One line per layer and input shape: what is kept, and the costs it was chosen by."""
        lines = ["engine ghost: one backward pass, then norms and one weighted sum per parameter"]
        if self._plain:
            return "engine ghost: plain backward passes, this rule needs no per-sample work"
        for layer in self._layers.values():
            if not layer.plans:
                lines.append(f"  {layer}: {layer.kind}")
            for key, (choice, costs) in layer.plans.items():
                lines.append(f"  {layer}: {layer.kind} {key}: {choice} (costs: {costs})")
        for pure in self._pure.values():
            lines.append(f"  {pure}: torch.func, {'vmap' if pure.vmappable else 'row by row'}")
        return "\n".join(lines)

    # ------------------------------------------------------------------------------- forward

    def _prepare(self, site: Site) -> None:
        found = layer_for(site.module)
        if found is not None:
            self._layers[site.path] = found(site, self._tape)

    def _recorded(self, site: Site, plain: Forward) -> Forward:
        module = site.module
        if site.path in self._layers:
            forward: Forward = self._layers[site.path].forward
            return forward
        if isinstance(module, nn.MultiheadAttention):
            linear = recorded_linear(site, self._tape, self._layers)
            return lambda *args, **kwargs: attention_forward(module, linear, *args, **kwargs)
        if isinstance(module, nn.RNNBase):
            linear = recorded_linear(site, self._tape, self._layers)
            return lambda *args, **kwargs: recurrent_forward(module, linear, *args, **kwargs)
        return recorded_module(self._tape, site, plain, self._pure)
