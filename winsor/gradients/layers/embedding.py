"""`nn.Embedding`: never a vocabulary-sized row per sample.

    G_i has row v equal to the sum of e_it over the places t where token v stands

The squared norm is sum_t |e_it|^2 when no token repeats; only repeated tokens of a row need their
gradients added up first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from winsor.core.contract import UnsupportedModel
from winsor.gradients.directions import Basis, Kronecker
from winsor.gradients.layers.layer import Layer, Named, as_dtype
from winsor.gradients.parameters import Site
from winsor.gradients.pieces import Factors, Piece, careful
from winsor.gradients.scatter import scatter
from winsor.gradients.sums import square_rows, zero_where_not
from winsor.gradients.tape import Call, Tape
from winsor.gradients.units import Units


class Indexed(Piece):
    """G_i = sum_t onehot(index_it) right_it^T; a negative index is no token."""

    def __init__(self, index: Tensor, right: Tensor, size: int) -> None:
        self.index = index  # (n, T)
        self.right = right  # (n, T, d)
        self.n, self.shape = len(index), torch.Size((size, right.shape[2]))

    @staticmethod
    def joined(parts: Sequence[Piece]) -> Sequence[Piece]:
        found = [part for part in parts if isinstance(part, Indexed)]
        index = torch.cat([part.index for part in found], dim=1)
        right = torch.cat([part.right for part in found], dim=1)
        return [Indexed(index, right, found[0].shape[0])]

    def _with(self, index: Tensor, right: Tensor) -> Indexed:
        return Indexed(index, right, self.shape[0])

    def rows(self, start: int, stop: int) -> Tensor:
        right = self.right[start:stop]
        rows = right.new_zeros(stop - start, *self.shape)
        return rows.scatter_add_(
            1, _token(self.index[start:stop], right), _silent(self, start, stop)
        )

    def select(self, index: Tensor) -> Indexed:
        return self._with(self.index[index], self.right[index].double())

    def where(self, kept: Tensor) -> Indexed:
        return self._with(self.index, zero_where_not(kept, self.right))

    def per_unit(self, units: Units) -> Indexed:
        return self._with(units.padded(self.index, -1), units.padded(self.right))

    def square(self) -> Tensor:
        right = _silent(self, 0, self.n)
        square = square_rows(right)
        order, first = runs(self.index)
        repeated = ~(first & torch.cat([first[:, 1:], first.new_ones(self.n, 1)], dim=1))
        place = repeated.nonzero()
        if len(place) == 0:
            return square
        row, at = place[:, 0], order[place[:, 0], place[:, 1]]
        run = first[place[:, 0], place[:, 1]].cumsum(0) - 1
        summed = right.new_zeros(int(run[-1]) + 1, right.shape[2])
        summed.index_add_(0, run, right[row, at])
        owner = row.new_zeros(len(summed)).index_copy_(0, run, row)
        diagonal, own = square.clone(), torch.linalg.vector_norm(right[row, at], dim=1).square_()
        square.index_add_(0, owner, torch.linalg.vector_norm(summed, dim=1).square_())
        square.index_add_(0, row, own, alpha=-1)
        return careful(self, square, diagonal)

    def cross(self, factors: Factors) -> Tensor:
        """<G_i, sum_s left_is right_is^T> = sum_{t,s} left_is[index_it] (right_it . right_is)."""
        places = self.index.clamp_min(0).unsqueeze(1).expand(-1, factors.left.shape[1], -1)
        picked = factors.left.gather(2, places)  # (n, S, T)
        inner = torch.bmm(factors.right, _silent(self, 0, self.n).mT)
        return (picked * inner).sum((1, 2))

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        scatter(self.right, self.index, w, out.zero_())

    def sketch(self, basis: Basis) -> Tensor:
        if isinstance(basis, Kronecker):
            return basis.indexed(self.index, self.right)
        return super().sketch(basis)


def _silent(piece: Indexed, start: int, stop: int) -> Tensor:
    """Right factors, zero where there is no token."""
    index, right = piece.index[start:stop], piece.right[start:stop]
    absent = index < 0
    return right.masked_fill(absent.unsqueeze(2), 0.0) if absent.any() else right


def _token(index: Tensor, right: Tensor) -> Tensor:
    return index.clamp_min(0).unsqueeze(2).expand(-1, -1, right.shape[2])


def runs(index: Tensor) -> tuple[Tensor, Tensor]:
    """Places sorted by token within each row, and which of them start a new token."""
    tokens, order = index.sort(dim=1)
    first = torch.ones_like(tokens, dtype=torch.bool)
    first[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
    return order, first


class EmbeddingLayer(Layer):
    kind = "embedding"
    serves = (nn.Embedding,)

    def __init__(self, site: Site, tape: Tape) -> None:
        super().__init__(site, tape)
        refuse_coupled(self)

    def forward(self, input: Tensor) -> Tensor:
        weight = self.module._parameters["weight"].detach()
        index = self.tape.lift(self.site, input)
        return self.tape.record(self, F.embedding(index, weight), index)

    def pieces(self, call: Call, g: Tensor) -> Named:
        (index,) = call.inputs
        n, (size, d) = len(g), self.module.weight.shape
        tokens = index.reshape(n, -1)
        if self.module.padding_idx is not None:
            tokens = tokens.masked_fill(tokens == self.module.padding_idx, -1)
        assert self.weight is not None
        yield self.weight, Indexed(tokens, as_dtype(g, self.dtype).reshape(n, -1, d), size)


def refuse_coupled(layer: Layer) -> None:
    module = layer.module
    if module.max_norm is not None or module.scale_grad_by_freq:
        raise UnsupportedModel(
            f"{layer} must not use max_norm or scale_grad_by_freq: the first changes the weights "
            "without noise, the second mixes rows. Build it without them."
        )
