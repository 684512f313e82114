"""The view of one physical batch from one piece per parameter: norms, weighted sums, sketches.

Guarantee
---------
A row whose loss or gradient is not finite, or whose norm exceeds the largest float, contributes
zero. Norms are float32 sums of squares; a batch in which any of them comes near overflow or
underflow has those rows computed again in float64, so no norm reads smaller than it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from winsor.core.contract import ProtocolError, Tree
from winsor.gradients.buffers import Layout
from winsor.gradients.directions import bases
from winsor.gradients.parameter_rows import (
    NUMBERS_IN_CACHE,
    ROWS_AT_ONCE,
    Factors,
    Outer,
    ParameterRows,
    Rows,
    careful,
    ghost,
)
from winsor.gradients.sums import scaled
from winsor.gradients.view import Directions, View

LARGE_SQUARE = 1e30
SMALL_SQUARE = 1e-24


class RecordedView(View):
    """The `View` of one physical batch, from one piece per parameter that took part."""

    _squares: dict[str, Tensor] | None = None
    _norms: Tensor | None = None
    _kept: Tensor | None = None  # None: all rows are kept
    _checked = _spent = False

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        pieces: dict[str, ParameterRows],
        losses: Tensor,
        layout: Layout,
    ) -> None:
        self._parameters = parameters
        self._layout = layout
        self._recorded = pieces
        self.raw_losses = losses.detach()
        self._n = losses.shape[0]

    @property
    def recorded(self) -> Mapping[str, ParameterRows]:
        """What is known of each parameter."""
        return self._pieces

    def with_pieces(self, pieces: dict[str, ParameterRows], losses: Tensor) -> RecordedView:
        """Return the view of other rows of the same parameters."""
        return RecordedView(self._parameters, pieces, losses, self._layout)

    @property
    def neutralised(self) -> int:
        """Rows set to zero because they were not finite."""
        self._check()
        return 0 if self._kept is None else self._n - int(self._kept.sum())

    def norms(self) -> Tensor:
        """Return (n,) norms over all parameters, computed once."""
        self._check()
        assert self._norms is not None
        return self._norms

    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        """Return (n, len(groups)) norms from the squares of each parameter."""
        self._check()
        if torch.is_grad_enabled():  # recorded tensors carry a graph: do not extend it
            with torch.no_grad():
                return self.group_norms(groups)
        if self._squares is None:
            self._squares = {name: piece.square() for name, piece in self._pieces.items()}
        squares, zero = self._squares, self.raw_losses.new_zeros(self._n)
        sums = [sum((squares.get(name, zero) for name in g), start=zero) for g in groups]
        return torch.stack(sums, dim=1).sqrt_().to(self._layout.dtype)

    @torch.no_grad()
    def sketch(self, directions: Directions) -> Tensor:
        """Return (n, k) inner products, added up over parameters."""
        self._check()
        per_parameter = bases(directions, self._parameters)
        out = torch.zeros(
            self._n, directions.k, dtype=self._layout.dtype, device=self.raw_losses.device
        )
        for name, piece in self._pieces.items():
            out += piece.sketch(per_parameter[name])
        return out

    @torch.no_grad()
    def total(self) -> Tree:
        """Return sum_i g_i of what was recorded."""
        tree = self._layout.empty()
        for name, leaf in tree.items():
            if name in self._pieces:
                self._pieces[name].weighted(None, leaf)
            else:
                leaf.zero_()
        return tree

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        """Return sum_i w_i g_i. As the ``last`` question, what was recorded is freed parameter by
        parameter while the sum comes into being, so that a large model never holds both."""
        self._check()
        if torch.is_grad_enabled():  # recorded tensors carry a graph: do not extend it
            with torch.no_grad():
                return self.weighted_sum(weights, last)
        usable = self._usable
        if isinstance(weights, Tensor):
            return self._sum(usable(weights), {}, last)
        return self._sum(None, {name: usable(w) for name, w in weights.items()}, last)

    def _sum(self, same: Tensor | None, by_name: Mapping[str, Tensor], last: bool) -> Tree:
        """Add up with the weights as they are: ``same`` for all parameters, or one by name.

        The last parameters come first. Their output-gradients are usually the largest (logits), and
        would else be held until nearly all of the sum is there, which is when memory peaks.
        """
        tree, pieces = self._layout.empty(), self._pieces
        for name, leaf in reversed(tree.items()):
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
        """Return sum_i f(g)_i over explicit rows, a chunk at a time."""
        self._check()
        out = {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        size = max(1, ROWS_AT_ONCE // max(1, sum(p.numel() for p in out.values())))
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

    @torch.no_grad()
    def lengths(self, order: float) -> dict[str, Tensor]:
        """Return (n,) lengths of the rows of each parameter, in L1 (``order`` 1) or in the largest
        coordinate (infinity). Rows that are not finite have length 0."""
        self._check()
        return {name: piece.length(order) for name, piece in self._pieces.items()}

    @torch.no_grad()
    def cut_sum(self, weights: Tensor, bound: float) -> Tree:
        """Return the sum of w_i g_i with every coordinate cut to [-bound, bound].

        A row whose largest coordinate is within the bound is cut nowhere, so it joins the weighted
        sum, which never forms it. The others are formed, parameter by parameter. ``bound`` must
        leave room for the rounding of float32: rows that join may exceed it by a few units in the
        last place.
        """
        peaks = {name: weights * length for name, length in self.lengths(math.inf).items()}
        within = {name: peak <= bound for name, peak in peaks.items()}
        zero = torch.zeros_like(weights)
        total = self.weighted_sum({n: torch.where(w, weights, zero) for n, w in within.items()})
        for name, inside in within.items():
            index = (~inside).nonzero()[:, 0]
            if len(index):
                _add_cut(total[name], self._pieces[name], index, weights, bound)
        return total

    # ------------------------------------------------------------------------------ internals

    @property
    def _pieces(self) -> dict[str, ParameterRows]:
        if self._spent:
            raise ProtocolError(
                "a view must not be asked for more after its last sum, which frees what was "
                "recorded. Say last=True for the last sum only."
            )
        return self._recorded

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
            self._norms = torch.zeros(
                self._n, dtype=self._layout.dtype, device=self.raw_losses.device
            )
            return
        # A loss that is not finite makes 0 * loss NaN, so one look at both ends covers it too.
        total = torch.add(total, self.raw_losses, alpha=0)
        low, high = torch.aminmax(total)
        if high.item() < LARGE_SQUARE and low.item() > SMALL_SQUARE:
            self._norms = total.sqrt_()
        else:
            self._recompute(total)

    def _total_square(self) -> Tensor | None:
        return total_square(self._pieces.values())

    @torch.no_grad()
    def _recompute(self, total: Tensor) -> None:
        """Compute rows near the limits of float32 again in float64; then decide which are kept."""
        extreme = ~((total < LARGE_SQUARE) & (total > SMALL_SQUARE))
        index = extreme.nonzero()[:, 0]
        exact: dict[str, Tensor] = {}
        for name, piece in self._pieces.items():
            exact[name] = piece.square().double()
            if len(index):
                exact[name][index] = piece.select(index).square()
        norms = torch.stack([*exact.values(), torch.zeros_like(total, dtype=torch.float64)])
        norms = norms.sum(0).sqrt()
        kept = self.raw_losses.isfinite() & (norms <= torch.finfo(self._layout.dtype).max)
        if not kept.all():
            self._kept = kept
            self._recorded = {name: piece.where(kept) for name, piece in self._pieces.items()}
            exact = {name: torch.where(kept, square, 0.0) for name, square in exact.items()}
            norms = torch.where(kept, norms, 0.0)
        self._squares = exact
        self._norms = norms.to(self._layout.dtype)


def _add_cut(
    out: Tensor, piece: ParameterRows, index: Tensor, weights: Tensor, bound: float
) -> None:
    """Add the rows of ``index`` to ``out``, weighted and cut, a cacheful of rows at a time."""
    chosen = piece.select(index)
    size = max(1, NUMBERS_IN_CACHE // max(1, piece.shape.numel()))
    for start in range(0, len(index), size):
        rows = chosen.rows(start, min(len(index), start + size))
        w = weights[index[start : start + size]].to(rows.dtype)
        out += scaled(rows, w).clamp_(-bound, bound).sum(0)


def total_square(pieces: Collection[ParameterRows]) -> Tensor | None:
    """Return (n,) squared norms over all parameters; None if there are no parameters.

    What pieces share is computed once: a bias has the output-gradients of its weight, and linear
    maps that read one input (query, key, value) share its Gram matrix X X^T, as
    sum_j <E_j E_j^T, X X^T> = <sum_j E_j E_j^T, X X^T>.
    """
    total: Tensor | None = None
    rows = {id(piece) for piece in pieces if isinstance(piece, Rows)}
    counted: set[int] = set()
    some = any(isinstance(piece, Factors) for piece in pieces)
    for piece in _together(pieces) if some else pieces:
        if id(piece) in counted:
            continue
        bias = id(piece.left) if isinstance(piece, Outer) else None
        if isinstance(piece, Outer) and bias in rows and bias not in counted:
            left = piece.left.square()
            square = torch.addcmul(left, left, piece.right.square())
            counted.add(bias)
        else:
            square = piece.square()
            counted.add(id(piece))
        total = square if total is None else total + square
    return total


class _SameInput(ParameterRows):
    """Several factors with one right side, for their norms taken together."""

    def __init__(self, parts: Sequence[Factors]) -> None:
        self.parts = parts
        self.n = parts[0].n
        self.shape = torch.Size((sum(part.shape[0] for part in parts), parts[0].shape[1]))

    def rows(self, start: int, stop: int) -> Tensor:
        return torch.cat([part.rows(start, stop) for part in self.parts], dim=1)

    def select(self, index: Tensor) -> _SameInput:
        return _SameInput([part.select(index) for part in self.parts])

    def where(self, kept: Tensor) -> _SameInput:
        return _SameInput([part.where(kept) for part in self.parts])

    def square(self) -> Tensor:
        found = ghost([part.left for part in self.parts], self.parts[0].right)
        return careful(self, *found)


def _together(pieces: Collection[ParameterRows]) -> list[ParameterRows]:
    """Return the same pieces, with those put together whose norms share a Gram matrix."""
    alike: dict[Any, list[Factors]] = {}
    others: list[ParameterRows] = []
    for piece in pieces:
        if isinstance(piece, Factors) and piece.is_ghostly():
            right = piece.right
            key = (right.data_ptr(), right.shape, right.stride(), right.dtype)
            alike.setdefault(key, []).append(piece)
        else:
            others.append(piece)
    return others + [same[0] if len(same) == 1 else _SameInput(same) for same in alike.values()]
