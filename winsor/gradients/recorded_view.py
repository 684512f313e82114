"""The view of one physical batch from one piece per parameter: norms, weighted sums, sketches.

Guarantee
---------
Norms and sums are those of `arithmetic.py`, of the same pieces. A row whose loss or gradient is not
finite contributes zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from winsor.core.contract import ProtocolError, Tree
from winsor.gradients.arithmetic import add_up_chunks, weigh_rows
from winsor.gradients.buffers import Layout
from winsor.gradients.directions import bases
from winsor.gradients.parameter_rows import (
    Factors,
    ParameterRows,
    chunks_of,
    square_of_factors,
)
from winsor.gradients.view import Directions, View


class RecordedView(View):
    """The `View` of one physical batch, from one piece per parameter that took part."""

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

    @property
    def places(self) -> int:  # type: ignore[override]
        """Largest number of places at which one row uses the same weight."""
        return max((piece.places for piece in self._recorded.values()), default=1)

    def with_pieces(self, pieces: dict[str, ParameterRows], losses: Tensor) -> RecordedView:
        """Return the view of other rows of the same parameters."""
        return RecordedView(self._parameters, pieces, losses, self._layout)

    def select(self, index: Tensor) -> RecordedView:
        """Return the view of the rows of ``index`` alone."""
        pieces = {name: piece.select(index) for name, piece in self._pieces.items()}
        return self.with_pieces(pieces, self.raw_losses[index])

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

    @torch.no_grad()  # recorded tensors carry a graph: do not extend it
    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        """Return (n, len(groups)) norms from the squares of each parameter."""
        self._check()
        squares = {name: piece.square() for name, piece in self._pieces.items()}
        zero = torch.zeros(self._n, dtype=torch.float64, device=self.raw_losses.device)
        sums = [sum((squares.get(name, zero) for name in g), start=zero) for g in groups]
        return torch.stack(sums, dim=1).sqrt_()

    @torch.no_grad()
    def sketch(self, directions: Directions) -> Tensor:
        """Return (n, k) inner products, added up over parameters."""
        self._check()
        per_parameter = bases(directions, self._parameters)
        out = torch.zeros(self._n, directions.k, dtype=torch.float64, device=self.raw_losses.device)
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
        if torch.is_grad_enabled():  # recorded tensors carry a graph: do not extend it
            with torch.no_grad():
                return self.weighted_sum(weights, last)
        self._check()
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
        tree, pieces = self._layout.empty(), self._pieces

        def add(start: int, stop: int, into: Tensor) -> None:
            kept = slice(None) if self._kept is None else self._kept[start:stop]
            rows = {name: piece.rows(start, stop)[kept] for name, piece in pieces.items()}
            count = len(next(iter(rows.values())))
            sums = self._layout.over(into)
            for name, leaf in sums.items():
                if name not in rows:
                    rows[name] = leaf.new_zeros((count, *leaf.shape))
            for name, value in f({name: rows[name] for name in sums}).items():
                weigh_rows(None, value, sums[name], add=True)

        add_up_chunks(chunks_of(self._n, self._layout.total), add, tree.flat)
        return tree

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
        sum, which never forms it. The others are formed, parameter by parameter.
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
        w = weights.double()
        return w if self._kept is None else torch.where(self._kept, w, 0.0)

    def _check(self) -> None:
        """Compute the norms, once, and set rows that are not finite to zero."""
        if self._checked:
            return
        if torch.is_grad_enabled():  # recorded tensors carry a graph: do not extend it
            with torch.no_grad():
                return self._check()
        self._checked = True
        total = total_square(self._pieces.values())
        if total is None:
            total = torch.zeros(self._n, dtype=torch.float64, device=self.raw_losses.device)
        kept = self.raw_losses.isfinite() & total.isfinite()
        if not kept.all():
            self._kept = kept
            self._recorded = {name: piece.where(kept) for name, piece in self._pieces.items()}
            total = torch.where(kept, total, 0.0)
        self._norms = total.sqrt()  # pieces keep their squares


def _add_cut(
    out: Tensor, piece: ParameterRows, index: Tensor, weights: Tensor, bound: float
) -> None:
    """Add the rows of ``index`` to ``out``, weighted and cut, a cacheful of rows at a time."""
    chosen, more = piece.select(index), torch.empty_like(out)

    def add(start: int, stop: int, into: Tensor) -> None:
        rows = chosen.rows(start, stop)
        w = weights[index[start:stop]].view(-1, *[1] * (rows.dim() - 1))
        weigh_rows(None, (rows * w).clamp_(-bound, bound), into, add=True)

    add_up_chunks(chosen.chunks(), add, more)
    out += more


def total_square(pieces: Collection[ParameterRows]) -> Tensor | None:
    """Return (n,) squared norms over all parameters; None if there are no parameters.

    What pieces share is computed once: a bias has the output-gradients of its weight, and linear
    maps that read one input (query, key, value) share its Gram matrix X X^T, as
    sum_j <E_j E_j^T, X X^T> = <sum_j E_j E_j^T, X X^T>.
    """
    total: Tensor | None = None
    alike: dict[Any, list[Factors]] = {}
    for piece in pieces:
        if isinstance(piece, Factors):
            right = piece.right
            key = (right.data_ptr(), right.shape, right.stride(), right.dtype)
            alike.setdefault(key, []).append(piece)
            continue
        square = piece.square()
        total = square if total is None else total + square
    for same in alike.values():
        square = square_of_factors([piece.left for piece in same], same[0].right)
        total = square if total is None else total + square
    return total
