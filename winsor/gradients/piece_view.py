"""The view of one physical batch from one piece per parameter: norms, weighted sums, sketches.

Guarantee
---------
A row whose loss or gradient is not finite, or whose norm exceeds the largest float, contributes
zero. Norms are float32 sums of squares; a batch in which any of them comes near overflow or
underflow has those rows computed again in float64, so no norm reads smaller than it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from winsor.core.contract import ProtocolError, Tree
from winsor.gradients.directions import bases
from winsor.gradients.pieces import CHUNK, Piece
from winsor.gradients.total_norms import total_square
from winsor.gradients.tree import Layout
from winsor.gradients.view import Directions

LARGE_SQUARE = 1e30
SMALL_SQUARE = 1e-24


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
        tree = self._layout.empty()
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
        """With the weights as they are: ``same`` for all parameters, or one by name.

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
