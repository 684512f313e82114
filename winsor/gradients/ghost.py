"""The fast engine: one backward pass, ghost norms, book-keeping.

    forward    every module with parameters runs on detached parameters and keeps its input
    backward   the output-gradient of each module arrives; weight gradients are never computed
    norms      per parameter, from rows or from ghost norms, whichever is cheaper for its shape
    sum        one weighted contraction per parameter

Rules that need only losses and totals get plain autograd: no recording, no per-sample work.
Book-keeping (Bu et al. 2023, "Differentially private optimization on large model at small cost"):
everything a clipped sum needs was recorded in one backward pass.

What the view guarantees is in `recorded_view.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from winsor.gradients.buffers import Layout
from winsor.gradients.func import call_rows, recorded_module
from winsor.gradients.layers import layer_for
from winsor.gradients.layers.attention import attention_forward
from winsor.gradients.layers.layer import Layer
from winsor.gradients.layers.linear import recorded_linear
from winsor.gradients.layers.recurrent import recurrent_forward
from winsor.gradients.parameter_rows import ParameterRows, Rows, merged
from winsor.gradients.parameters import Site, find_sites
from winsor.gradients.plain import PlainView
from winsor.gradients.recorded_view import RecordedView
from winsor.gradients.recorder import (
    Call,
    Forward,
    Recorder,
    refuse_changed_inputs,
    refuse_other_batch,
    refuse_without_graph,
)
from winsor.gradients.small import Met, SmallModel
from winsor.gradients.view import Engine, Need, View

PER_SAMPLE = Need.NORMS | Need.GROUP_NORMS | Need.SKETCH | Need.ROWS | Need.WEIGHTED_SUM


class Kept:
    """The pieces of one backward pass; a parameter that several calls used has one piece too."""

    def __init__(self) -> None:
        self._first: dict[str, ParameterRows] = {}
        self._more: dict[str, list[ParameterRows]] = {}

    def keep(self, name: str, piece: ParameterRows) -> None:
        """Add what one call knows of parameter ``name``."""
        if self._first.setdefault(name, piece) is not piece:
            self._more.setdefault(name, [self._first[name]]).append(piece)

    def pieces(self) -> dict[str, ParameterRows]:
        """Return one piece per parameter, merged over its calls."""
        merges = {name: merged(parts) for name, parts in self._more.items()}
        return self._first | merges if merges else self._first


class GhostEngine(Engine):
    """Closed forms for the layers of `winsor/gradients/layers`, torch.func for any other module."""

    name = "ghost"

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        needs: Need | None = None,
    ) -> None:
        self._parameters = dict(parameters)
        self._layout = Layout(parameters)
        self._sites = find_sites(model, parameters)
        self._recorder = Recorder(model, self._sites)
        self._layers: dict[Any, Any] = {}
        self._pure: dict[Any, Any] = {}
        self._per_sample = needs is None or bool(needs & PER_SAMPLE)
        for site in self._sites:
            self._prepare(site)
        whole = len(self._layers) == len(self._sites) and self._per_sample
        layers = self._layers.values() if whole else [None]
        self._plan = SmallModel.of(
            layers, self._parameters, self._layout, self._recorder, self._pieces_of
        )

    @property
    def has_plan(self) -> bool:
        """Return whether all layers are linear maps: norms then cost less than any bound."""
        return self._plan is not None

    def attach(self) -> None:
        """Install recorded forwards in all modules with parameters."""
        self._recorder.attach(self._recorded)

    def detach(self) -> None:
        """Remove every trace from the model."""
        self._recorder.detach()

    def recording(self, on: bool) -> None:
        """Record the next forward passes, or stop doing so."""
        self._recorder.on = on and self._per_sample
        if self._plan is not None:
            self._plan.forget()

    def view(self, losses: Tensor) -> View:
        """Run one backward pass of ``losses`` and return the cheapest view that serves the rule."""
        if losses.grad_fn is None:
            refuse_without_graph()
        if not self._recorder.on:
            return PlainView(self._parameters, losses, self._layout)
        return self._pieces(losses)

    def shared_view(self, losses: Tensor, shares: Tensor) -> View:
        """Return the view of ``losses * shares``, which are constants: the backward pass takes them
        as its seed, so that no operation is recorded for them."""
        if not self._recorder.on or losses.grad_fn is None:
            return self.view(losses * shares)
        return self._pieces(losses, shares=shares)

    def _pieces(self, losses: Tensor, shares: Tensor | None = None) -> View:
        """Run one backward pass that keeps, for each parameter, what norms and sums will need."""
        if self._plan is not None and losses.shape[0]:
            return self._plan.view(losses, shares)
        kept = Kept()
        self._backward(losses, shares, kept.keep)
        own = losses if shares is None else losses.detach() * shares
        return RecordedView(self._parameters, kept.pieces(), own, self._layout)

    def _pieces_of(self, losses: Tensor, met: Met) -> View:
        """Return the view of a small model's step that is another than planned."""
        kept = Kept()
        receive = self._receiver(losses.shape[0], kept.keep, {})
        for each in met:
            receive(*each)
        return RecordedView(self._parameters, kept.pieces(), losses, self._layout)

    def _backward(
        self, losses: Tensor, seed: Tensor | None, take: Callable[[str, ParameterRows], None]
    ) -> None:
        n = losses.shape[0]
        if self._plan is not None:
            self._plan.leave_to_tape()
            self._plan.forget()
        if n == 0:
            return
        later: dict[int, Call] = {}
        receive = self._receiver(n, take, later)
        self._recorder.backward(losses, receive, seed)
        if later:
            with self._recorder.paused():
                for call in later.values():
                    for name, rows in call_rows(call, self._parameters, n).items():
                        take(name, Rows(rows))

    @staticmethod
    def _receiver(
        n: int, take: Callable[[str, ParameterRows], None], later: dict[int, Call]
    ) -> Callable[[Call, int, Tensor], None]:
        """Return a function from output-gradients to pieces; ``later`` is left to torch.func."""

        def receive(call: Call, j: int, g: Tensor) -> None:
            if g.dim() == 0 or g.shape[0] != n:
                refuse_other_batch(call, g, n)
            if isinstance(call.operation, Layer):
                if call.versions != [x._version for x in call.inputs]:
                    refuse_changed_inputs(call)
                for name, piece in call.operation.pieces(call, g):
                    take(name, piece)
                call.inputs = ()  # the pieces hold what is still needed
            else:
                call.grads[j] = g
                later[id(call)] = call

        return receive

    def explain(self) -> str:
        """Give one line per layer and input shape: what is kept, and the costs it was chosen by."""
        lines = ["engine ghost: one backward pass, then norms and one weighted sum per parameter"]
        if not self._per_sample:
            return "engine ghost: backward passes as in plain training, no per-sample work"
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
            self._layers[site.path] = found(site, self._recorder)

    def _recorded(self, site: Site, plain: Forward) -> Forward:
        module = site.module
        if site.path in self._layers:
            layer = self._layers[site.path]
            forward: Forward = layer.forward if self._plan is None else self._plan.forward(layer)
            return forward
        if isinstance(module, nn.MultiheadAttention):
            linear = recorded_linear(site, self._recorder, self._layers)
            return lambda *args, **kwargs: attention_forward(module, linear, *args, **kwargs)
        if isinstance(module, nn.RNNBase):
            linear = recorded_linear(site, self._recorder, self._layers)
            return lambda *args, **kwargs: recurrent_forward(module, linear, *args, **kwargs)
        return recorded_module(self._recorder, site, plain, self._pure)
