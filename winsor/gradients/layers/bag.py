"""`nn.EmbeddingBag` (sum and mean): one output-gradient per row, shared by its tokens.

    G_i = sum_t c_it onehot(token_it) e_i^T,     |G_i|^2 = |e_i|^2 sum_v (sum of c_it over v)^2

Mode "max" is left to torch.func.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from winsor.gradients.directions import Basis
from winsor.gradients.layers.embedding import Indexed, refuse_coupled, runs
from winsor.gradients.layers.layer import Layer, Named, as_dtype
from winsor.gradients.parameters import Site
from winsor.gradients.pieces import Factors, Piece, careful
from winsor.gradients.sums import zero_where_not
from winsor.gradients.tape import Call, Tape
from winsor.gradients.units import Units


class Bag(Piece):
    """G_i = sum_t coefficient_it onehot(index_it) right_i^T."""

    def __init__(self, index: Tensor, coefficient: Tensor, right: Tensor, size: int) -> None:
        self.index, self.coefficient = index, coefficient  # (n, T); coefficient 0 is no token
        self.right = right  # (n, d)
        self.n, self.shape = len(index), torch.Size((size, right.shape[1]))

    def indexed(self) -> Indexed:
        right = self.coefficient.unsqueeze(2) * self.right.unsqueeze(1)
        return Indexed(self.index, right, self.shape[0])

    @staticmethod
    def joined(parts: Sequence[Piece]) -> Sequence[Piece]:
        if len(parts) == 1:
            return parts
        return Indexed.joined([part.indexed() for part in parts if isinstance(part, Bag)])

    def cross(self, factors: Factors) -> Tensor:
        return self.indexed().cross(factors)

    def rows(self, start: int, stop: int) -> Tensor:
        counts = self.right.new_zeros(stop - start, self.shape[0])
        counts.scatter_add_(1, self.index[start:stop], self.coefficient[start:stop])
        return counts.unsqueeze(2) * self.right[start:stop].unsqueeze(1)

    def select(self, index: Tensor) -> Bag:
        coefficient = self.coefficient[index].double()
        return Bag(self.index[index], coefficient, self.right[index].double(), self.shape[0])

    def where(self, kept: Tensor) -> Bag:
        coefficient = zero_where_not(kept, self.coefficient)
        return Bag(self.index, coefficient, zero_where_not(kept, self.right), self.shape[0])

    def per_unit(self, units: Units) -> Indexed:
        return self.indexed().per_unit(units)

    def square(self) -> Tensor:
        order, first = runs(self.index)
        run = first.flatten().cumsum(0) - 1
        sums = self.right.new_zeros(int(run[-1]) + 1 if len(run) else 0)
        sums.index_add_(0, run, self.coefficient.gather(1, order).flatten())
        owner = torch.arange(self.n, device=run.device).repeat_interleave(first.sum(1))
        counts = self.right.new_zeros(self.n).index_add_(0, owner, sums.square_())
        length = torch.linalg.vector_norm(self.right, dim=1).square_()
        return careful(self, counts * length, self.coefficient.square().sum(1) * length)

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        self.indexed().weighted(w, out)

    def sketch(self, basis: Basis) -> Tensor:
        return self.indexed().sketch(basis)


class EmbeddingBagLayer(Layer):
    kind = "embedding bag"
    serves = (nn.EmbeddingBag,)

    def __init__(self, site: Site, tape: Tape) -> None:
        super().__init__(site, tape)
        refuse_coupled(self)

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        return super().matches(module) and module.mode != "max"

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        m: Any = self.module
        weight = m._parameters["weight"].detach()
        out = F.embedding_bag(
            input,
            weight,
            offsets,
            mode=m.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=m.include_last_offset,
            padding_idx=m.padding_idx,
        )
        with torch.no_grad():
            index, coefficient = self._bags(input, offsets, per_sample_weights)
        return self.tape.record(self, out, index, coefficient)

    def _bags(
        self, index: Tensor, offsets: Tensor | None, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(n, T) tokens and their coefficients, ragged bags filled up with coefficient 0."""
        coefficient = torch.ones_like(index, dtype=self.dtype)
        if weights is not None:
            coefficient = weights.detach().to(self.dtype)
        if self.module.padding_idx is not None:
            coefficient = coefficient.masked_fill(index == self.module.padding_idx, 0.0)
        if index.dim() == 1:
            assert offsets is not None
            ends = offsets[1:] if self.module.include_last_offset else offsets
            starts = offsets[:-1] if self.module.include_last_offset else offsets
            if not self.module.include_last_offset:
                ends = torch.cat([ends[1:], ends.new_tensor([len(index)])])
            longest = int((ends - starts).max()) if len(starts) else 0
            place = starts.unsqueeze(1) + torch.arange(longest, device=index.device)
            present = place < ends.unsqueeze(1)
            place = place.clamp_max(max(len(index) - 1, 0))
            index, coefficient = index[place], coefficient[place] * present
        if self.module.mode == "mean":
            present = (coefficient != 0).sum(1, keepdim=True).clamp_min(1)
            coefficient = coefficient / present
        return index, coefficient

    def pieces(self, call: Call, g: Tensor) -> Named:
        index, coefficient = call.inputs
        assert self.weight is not None
        size = self.module.num_embeddings
        yield self.weight, Bag(index, coefficient, as_dtype(g, self.dtype), size)
