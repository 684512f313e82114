"""The fast engine: one backward pass, ghost norms, book-keeping.

    forward    every module with parameters runs on detached parameters and keeps its input
    backward   the output-gradient of each module arrives; weight gradients are never computed
    norms      per parameter, from rows or from ghost norms, whichever is cheaper for its shape
    sum        one weighted contraction per parameter

Rules that need only losses, totals or weights known from the losses get plain autograd: no
recording, no per-sample work. Book-keeping (Bu et al. 2023, "Differentially private optimization on
large model at small cost"): everything a clipped sum needs was recorded in one backward pass.

Guarantee
---------
A row whose loss or gradient is not finite, or whose norm exceeds the largest float, contributes
zero. Norms are float32 sums of squares; a batch in which any of them comes near overflow or
underflow has those rows computed again in float64, so no norm reads smaller than it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from winsor.contract import ProtocolError, Tree
from winsor.grads.directions import bases
from winsor.grads.func import call_rows, recorded_module
from winsor.grads.layers import layer_for
from winsor.grads.layers.attention import attention_forward
from winsor.grads.layers.layer import Layer
from winsor.grads.layers.linear import recorded_linear
from winsor.grads.layers.recurrent import recurrent_forward
from winsor.grads.parameters import Site, find_sites
from winsor.grads.pieces import CHUNK, Piece, Rows, merged
from winsor.grads.plain import DirectView, PlainView
from winsor.grads.tape import (
    Call,
    Forward,
    Tape,
    refuse_changed_inputs,
    refuse_other_batch,
    refuse_without_graph,
)
from winsor.grads.total_norms import total_square
from winsor.grads.view import Directions, Need, View
from winsor.tree import FlatTree, Layout, unflatten

LARGE_SQUARE = 1e30
SMALL_SQUARE = 1e-24
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
        self._layout = Layout(parameters)
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
        self._tape.on = on and (self._per_sample or self._weighs_rows)

    def view(self, losses: Tensor) -> View:
        if losses.grad_fn is None:
            refuse_without_graph()
        if not self._tape.on:
            return PlainView(self._parameters, losses, self._layout)
        if self._per_sample:
            return self._pieces(losses)
        return DirectView(
            self._parameters,
            losses,
            lambda seed: self._sweep(losses, seed),
            lambda: self._pieces(losses, retain=True),
        )

    def shared_view(self, losses: Tensor, shares: Tensor) -> View:
        """The view of ``losses * shares``, which are constants: the backward pass takes them as
        its seed, so that no operation is recorded for them."""
        if not (self._tape.on and self._per_sample) or losses.grad_fn is None:
            return self.view(losses * shares)
        return self._pieces(losses, shares=shares)

    def _pieces(
        self, losses: Tensor, retain: bool = False, shares: Tensor | None = None
    ) -> PieceView:
        """One backward pass that keeps, for each parameter, what norms and sums will need."""
        pieces: dict[str, Piece] = {}
        more: dict[str, list[Piece]] = {}  # of parameters that several calls used

        def keep(name: str, piece: Piece) -> None:
            if pieces.setdefault(name, piece) is not piece:
                more.setdefault(name, [pieces[name]]).append(piece)

        self._backward(losses, shares, keep, retain)
        for name, parts in more.items():
            pieces[name] = merged(parts)
        own = losses if shares is None else losses.detach() * shares
        return PieceView(self._parameters, pieces, own, self._layout)

    def _sweep(self, losses: Tensor, seed: Tensor) -> Tree:
        """One backward pass of (seed * losses).sum() that adds up weight gradients as it goes."""
        sums = self._layout.empty()
        seen: set[str] = set()

        def add(name: str, piece: Piece) -> None:
            part = torch.empty_like(sums[name]) if name in seen else sums[name]
            piece.weighted(None, part)
            if name in seen:
                sums[name].add_(part)
            seen.add(name)

        self._tape.totals_only = True
        try:
            self._backward(losses, seed, add, retain=True)
        finally:
            self._tape.totals_only = False
        for name in sums.keys() - seen:
            sums[name].zero_()
        return sums

    def _backward(
        self,
        losses: Tensor,
        seed: Tensor | None,
        take: Callable[[str, Piece], None],
        retain: bool,
    ) -> None:
        n = losses.shape[0]
        if n == 0:
            return
        later: dict[int, Call] = {}

        def receive(call: Call, j: int, g: Tensor) -> None:
            if g.dim() == 0 or g.shape[0] != n:
                refuse_other_batch(call, g, n)
            if isinstance(call.operation, Layer):
                if call.versions != [x._version for x in call.inputs]:
                    refuse_changed_inputs(call)
                for name, piece in call.operation.pieces(call, g):
                    take(name, piece)
                if not retain:
                    call.inputs = ()  # the pieces hold what is still needed
            else:
                call.grads[j] = g
                later[id(call)] = call

        verify = not self._tape.verified
        self._tape.backward(losses, receive, seed, retain)
        if later:
            with self._tape.paused():
                for call in later.values():
                    for name, rows in call_rows(call, self._parameters, n, verify).items():
                        take(name, Rows(rows))

    def explain(self) -> str:
        """One line per layer and input shape: what is kept, and the costs it was chosen by."""
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


class PieceView:
    """The `View` of one physical batch, from one piece per parameter that took part."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        pieces: dict[str, Piece],
        losses: Tensor,
        layout: Layout,
    ) -> None:
        self._parameters = parameters
        self._layout = layout
        self._recorded = pieces
        self._spent = False
        self._loss = losses.detach()
        self._n = losses.shape[0]
        self._squares: dict[str, Tensor] | None = None
        self._norms: Tensor | None = None
        self._kept: Tensor | None = None  # None: all rows are kept
        self._checked = False

    @property
    def recorded(self) -> Mapping[str, Piece]:
        """What is known of each parameter."""
        return self._pieces

    @property
    def raw_losses(self) -> Tensor:
        """As they came, finite or not."""
        return self._loss

    def with_pieces(self, pieces: dict[str, Piece], losses: Tensor) -> PieceView:
        """The view of other rows of the same parameters."""
        return PieceView(self._parameters, pieces, losses, self._layout)

    @property
    def size(self) -> int:
        return self._n

    @property
    def neutralised(self) -> int:
        self._check()
        return 0 if self._kept is None else self._n - int(self._kept.sum())

    def losses(self) -> Tensor:
        return torch.where(self._loss.isfinite(), self._loss, 0.0)

    def norms(self) -> Tensor:
        self._check()
        assert self._norms is not None
        return self._norms

    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        self._check()
        if torch.is_grad_enabled():  # recorded tensors carry a graph: do not extend it
            with torch.no_grad():
                return self.group_norms(groups)
        if self._squares is None:
            self._squares = {name: piece.square() for name, piece in self._pieces.items()}
        squares, zero = self._squares, self._loss.new_zeros(self._n)
        sums = [sum((squares.get(name, zero) for name in g), start=zero) for g in groups]
        return torch.stack(sums, dim=1).sqrt_().to(self._layout.dtype)

    @torch.no_grad()
    def sketch(self, directions: Directions) -> Tensor:
        self._check()
        per_parameter = bases(directions, self._parameters)
        out = torch.zeros(self._n, directions.k, dtype=self._layout.dtype, device=self._loss.device)
        for name, piece in self._pieces.items():
            out += piece.sketch(per_parameter[name])
        return out

    @torch.no_grad()
    def total(self) -> Tree:
        tree = self._empty_tree()
        for name, leaf in tree.items():
            if name in self._pieces:
                self._pieces[name].weighted(None, leaf)
            else:
                leaf.zero_()
        return tree

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        """As the ``last`` question, what was recorded is freed parameter by parameter while the
        sum comes into being, so that a large model never holds both."""
        self._check()
        if torch.is_grad_enabled():  # recorded tensors carry a graph: do not extend it
            with torch.no_grad():
                return self.weighted_sum(weights, last)
        usable = self._usable
        if isinstance(weights, Tensor):
            return self._sum(usable(weights), {}, last)
        return self._sum(None, {name: usable(w) for name, w in weights.items()}, last)

    def _sum(self, same: Tensor | None, by_name: Mapping[str, Tensor], last: bool) -> Tree:
        """With the weights as they are: ``same`` for all parameters, or one by name."""
        tree, pieces = self._empty_tree(), self._pieces
        for name, leaf in tree.items():
            piece = pieces.get(name)
            if piece is None:
                leaf.zero_()
                continue
            piece.weighted(by_name[name] if same is None else same, leaf)
            if last:
                del piece, pieces[name]
        self._spent = last
        return tree

    @torch.no_grad()
    def map_sum(self, f: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Tree:
        self._check()
        out = {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        size = max(1, CHUNK // max(1, sum(p.numel() for p in out.values())))
        for start in range(0, self._n, size):
            stop = min(self._n, start + size)
            kept = slice(None) if self._kept is None else self._kept[start:stop]
            rows = {name: piece.rows(start, stop)[kept] for name, piece in self._pieces.items()}
            some = next(iter(rows.values()))
            for name, p in out.items():
                if name not in rows:
                    rows[name] = p.new_zeros((len(some), *p.shape))
            mapped = f({name: rows[name] for name in out})
            for name, value in mapped.items():
                out[name] += value.sum(0)
        return out

    # ------------------------------------------------------------------------------ internals

    @property
    def _pieces(self) -> dict[str, Piece]:
        if self._spent:
            raise ProtocolError(
                "a view must not be asked for more after its last sum, which frees what was "
                "recorded. Say last=True for the last sum only."
            )
        return self._recorded

    def _empty_tree(self) -> FlatTree:
        """A tree with undefined values, in one piece of memory."""
        layout = self._layout
        flat = torch.empty(layout.total, dtype=layout.dtype, device=layout.device)
        tree = FlatTree(zip(layout.names, unflatten(flat, layout.like), strict=True))
        tree.flat = flat
        return tree

    def _usable(self, weights: Tensor) -> Tensor:
        same = weights.dtype is self._layout.dtype
        w = weights if same else weights.to(self._layout.dtype)
        return w if self._kept is None else torch.where(self._kept, w, 0.0)

    def _check(self) -> None:
        """Compute the norms, once, and neutralise rows. One cheap look when all is well."""
        if self._checked:
            return
        if torch.is_grad_enabled():  # recorded tensors carry a graph: do not extend it
            with torch.no_grad():
                return self._check()
        self._checked = True
        total = self._total_square()
        if self._n == 0 or total is None:
            self._norms = torch.zeros(self._n, dtype=self._layout.dtype, device=self._loss.device)
            return
        # A loss that is not finite makes 0 * loss NaN, so one look at both ends covers it too.
        total = torch.add(total, self._loss, alpha=0)
        low, high = torch.aminmax(total)
        if high.item() < LARGE_SQUARE and low.item() > SMALL_SQUARE:
            self._norms = total.sqrt_()
        else:
            self._recompute(total)

    def _total_square(self) -> Tensor | None:
        return total_square(self._pieces.values())

    @torch.no_grad()
    def _recompute(self, total: Tensor) -> None:
        """Rows near the limits of float32, again in float64; then decide which are kept."""
        extreme = ~((total < LARGE_SQUARE) & (total > SMALL_SQUARE))
        index = extreme.nonzero()[:, 0]
        exact: dict[str, Tensor] = {}
        for name, piece in self._pieces.items():
            exact[name] = piece.square().double()
            if len(index):
                exact[name][index] = piece.select(index).square()
        norms = torch.stack([*exact.values(), torch.zeros_like(total, dtype=torch.float64)])
        norms = norms.sum(0).sqrt()
        kept = self._loss.isfinite() & (norms <= torch.finfo(self._layout.dtype).max)
        if not kept.all():
            self._kept = kept
            self._recorded = {name: piece.where(kept) for name, piece in self._pieces.items()}
            exact = {name: torch.where(kept, square, 0.0) for name, square in exact.items()}
            norms = torch.where(kept, norms, 0.0)
        self._squares = exact
        self._norms = norms.to(self._layout.dtype)
