"""`nn.Embedding`: never a vocabulary-sized row per sample.

    G_i has row v equal to the sum of e_it over the places t where token v stands

The squared norm is sum_t |e_it|^2 when no token repeats; only repeated tokens of a row need their
gradients added up first.

`nn.EmbeddingBag` (sum and mean): one output-gradient per row, shared by its tokens.

    G_i = sum_t c_it onehot(token_it) e_i^T,     |G_i|^2 = |e_i|^2 sum_v (sum of c_it over v)^2

Mode "max" is left to torch.func.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from winsor.core.contract import UnsupportedModel
from winsor.gradients.arithmetic import form_rows, scatter, squares, sum_of_places, wide
from winsor.gradients.directions import Basis, Kronecker
from winsor.gradients.layers.layer import Layer, Named, as_dtype
from winsor.gradients.parameter_rows import Factors, ParameterRows, zero_where_not
from winsor.gradients.parameters import Site
from winsor.gradients.recorder import Call, Recorder
from winsor.gradients.units import Units


class Indexed(ParameterRows):
    """G_i = sum_t onehot(index_it) right_it^T; a negative index is no token."""

    def __init__(self, index: Tensor, right: Tensor, size: int) -> None:
        self.index = index  # (n, T)
        self.right = right  # (n, T, d)
        self.n, self.shape = len(index), torch.Size((size, right.shape[2]))
        self.places = index.shape[1]

    @staticmethod
    def joined(parts: Sequence[ParameterRows]) -> Sequence[ParameterRows]:
        """Put the tokens of several calls side by side."""
        found = [part for part in parts if isinstance(part, Indexed)]
        index = torch.cat([part.index for part in found], dim=1)
        right = torch.cat([part.right for part in found], dim=1)
        return [Indexed(index, right, found[0].shape[0])]

    def _with(self, index: Tensor, right: Tensor) -> Indexed:
        return Indexed(index, right, self.shape[0])

    def rows(self, start: int, stop: int) -> Tensor:
        """Form rows ``start`` to ``stop`` with the size of the vocabulary."""
        index, right = self.index[start:stop], wide(self._silent()[start:stop])
        rows = right.new_zeros(stop - start, *self.shape)
        return rows.scatter_add_(1, _token(index, right), right)

    def gross(self, order: float) -> Tensor:
        """Return (n,) sums of the lengths of the tokens' output-gradients."""
        return Factors(self.index.new_ones(*self.index.shape, 1).float(), self._silent()).gross(
            order
        )

    def select(self, index: Tensor) -> Indexed:
        """Return tokens of the rows of ``index``."""
        return self._with(self.index[index], self.right[index])

    def where(self, kept: Tensor) -> Indexed:
        """Set output-gradients of rows that are not ``kept`` to zero."""
        return self._with(self.index, zero_where_not(kept, self.right))

    def per_unit(self, units: Units) -> Indexed:
        """Put the tokens of all rows of a unit one after the other."""
        return self._with(units.padded(self.index, -1), units.padded(self.right))

    def net_square(self) -> Tensor:
        """Return (n,) sums of squares: only repeated tokens are added up first."""
        right = wide(self._silent())
        order, first = runs(self.index)
        apart = squares(right.flatten(0, 1)).view(self.index.shape).gather(1, order)
        repeated = ~(first & torch.cat([first[:, 1:], first.new_ones(self.n, 1)], dim=1))
        place = repeated.nonzero()
        row, at = place[:, 0], order[place[:, 0], place[:, 1]]
        run = first[place[:, 0], place[:, 1]].cumsum(0) - 1
        summed = right.new_zeros(int(run[-1]) + 1 if len(run) else 0, right.shape[2])
        summed.index_add_(0, run, right[row, at])
        starts = place[first[place[:, 0], place[:, 1]]]
        # every run of a token at its first place, zeros elsewhere: one sum over places per row
        apart = apart.masked_fill(repeated, 0.0)
        apart[starts[:, 0], starts[:, 1]] = squares(summed)
        return sum_of_places(apart.unsqueeze(2))[:, 0]

    def cross(self, factors: Factors) -> Tensor:
        """Return sum_{t,s} left_is[index_it] (right_it . right_is) for each row."""
        places = self.index.clamp_min(0).unsqueeze(1).expand(-1, factors.left.shape[1], -1)
        picked = wide(factors.left).gather(2, places)  # (n, S, T)
        # row by row, so that its bits do not depend on the others: (d, S) by (d, T)
        inner = form_rows(wide(factors.right).mT, wide(self._silent()).mT)
        return sum_of_places((picked * inner).flatten(1).unsqueeze(2))[:, 0]

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        """Write sum_i w_i G_i, token by token."""
        scatter(w, self.right, self.index, out.zero_())

    def _silent(self) -> Tensor:
        """Return right factors, zero where there is no token."""
        return self.right.masked_fill((self.index < 0).unsqueeze(2), 0.0)

    def sketch(self, basis: Basis) -> Tensor:
        """Return (n, k) inner products, from tokens where ``basis`` has factors."""
        if isinstance(basis, Kronecker):
            return basis.indexed(self.index, self.right)
        return super().sketch(basis)


def _token(index: Tensor, right: Tensor) -> Tensor:
    return index.clamp_min(0).unsqueeze(2).expand(-1, -1, right.shape[2])


def runs(index: Tensor) -> tuple[Tensor, Tensor]:
    """Return places sorted by token within each row, and which of them start a new token."""
    tokens, order = index.sort(dim=1)
    first = torch.ones_like(tokens, dtype=torch.bool)
    first[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
    return order, first


class EmbeddingLayer(Layer):
    """`nn.Embedding` without ``max_norm`` and ``scale_grad_by_freq``."""

    kind = "embedding"
    serves = (nn.Embedding,)

    def __init__(self, site: Site, recorder: Recorder) -> None:
        super().__init__(site, recorder)
        refuse_coupled(self)

    def forward(self, input: Tensor) -> Tensor:
        """Look up tokens in the detached weight and record the call."""
        weight = self.module._parameters["weight"].detach()
        index = self.recorder.lift(self.site, input)
        return self.recorder.record(self, F.embedding(index, weight), index)

    def pieces(self, call: Call, g: Tensor) -> Named:
        """Yield the tokens of each row with their output-gradients."""
        (index,) = call.inputs
        n, (size, d) = len(g), self.module.weight.shape
        tokens = index.reshape(n, -1)
        if self.module.padding_idx is not None:
            tokens = tokens.masked_fill(tokens == self.module.padding_idx, -1)
        assert self.weight is not None
        yield self.weight, Indexed(tokens, as_dtype(g, self.dtype).reshape(n, -1, d), size)


def refuse_coupled(layer: Layer) -> None:
    """Refuse options that change weights without noise or mix rows."""
    module = layer.module
    if module.max_norm is not None or module.scale_grad_by_freq:
        raise UnsupportedModel(
            f"{layer} must not use max_norm or scale_grad_by_freq: the first changes the weights "
            "without noise, the second mixes rows. Build it without them."
        )


class Bag(ParameterRows):
    """G_i = sum_t coefficient_it onehot(index_it) right_i^T."""

    def __init__(self, index: Tensor, coefficient: Tensor, right: Tensor, size: int) -> None:
        self.index, self.coefficient = index, coefficient  # (n, T); coefficient 0 is no token
        self.right = right  # (n, d)
        self.n, self.shape = len(index), torch.Size((size, right.shape[1]))
        self.places = index.shape[1]

    def indexed(self) -> Indexed:
        """Return the same sums with an output-gradient for every token."""
        right = wide(self.coefficient).unsqueeze(2) * wide(self.right).unsqueeze(1)
        return Indexed(self.index, right, self.shape[0])

    @staticmethod
    def joined(parts: Sequence[ParameterRows]) -> Sequence[ParameterRows]:
        """Put the tokens of several calls side by side."""
        if len(parts) == 1:
            return parts
        return Indexed.joined([part.indexed() for part in parts if isinstance(part, Bag)])

    def cross(self, factors: Factors) -> Tensor:
        """Return (n,) inner products with ``factors``."""
        return self.indexed().cross(factors)

    def rows(self, start: int, stop: int) -> Tensor:
        """Form rows ``start`` to ``stop`` with the size of the vocabulary."""
        return self._of(slice(start, stop)).indexed().rows(0, stop - start)

    def gross(self, order: float) -> Tensor:
        """Return (n,) sums of the lengths of the tokens' parts."""
        return self.indexed().gross(order)

    def select(self, index: Tensor) -> Bag:
        """Return bags of the rows of ``index``."""
        return self._of(index)

    def _of(self, rows: Any) -> Bag:
        return Bag(self.index[rows], self.coefficient[rows], self.right[rows], self.shape[0])

    def where(self, kept: Tensor) -> Bag:
        """Set bags that are not ``kept`` to zero."""
        coefficient = zero_where_not(kept, self.coefficient)
        return Bag(self.index, coefficient, zero_where_not(kept, self.right), self.shape[0])

    def per_unit(self, units: Units) -> Indexed:
        """Put the tokens of all bags of a unit one after the other."""
        return self.indexed().per_unit(units)

    def net_square(self) -> Tensor:
        """Return (n,) sums of squares of the rows."""
        return self.indexed().net_square()

    def weighted(self, w: Tensor | None, out: Tensor) -> None:
        """Write sum_i w_i G_i, token by token."""
        self.indexed().weighted(w, out)

    def sketch(self, basis: Basis) -> Tensor:
        """Return (n, k) inner products with the directions of ``basis``."""
        return self.indexed().sketch(basis)


class EmbeddingBagLayer(Layer):
    """`nn.EmbeddingBag` in the modes "sum" and "mean"."""

    kind = "embedding bag"
    serves = (nn.EmbeddingBag,)

    def __init__(self, site: Site, recorder: Recorder) -> None:
        super().__init__(site, recorder)
        refuse_coupled(self)

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Accept every mode but "max"."""
        return super().matches(module) and module.mode != "max"

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Add up bags of the detached weight and record tokens with their coefficients."""
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
        return self.recorder.record(self, out, index, coefficient)

    def _bags(
        self, index: Tensor, offsets: Tensor | None, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return (n, T) tokens and their coefficients, ragged bags filled up with coefficient 0."""
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
        """Yield the bag of each row with its output-gradient."""
        index, coefficient = call.inputs
        assert self.weight is not None
        size = self.module.num_embeddings
        yield self.weight, Bag(index, coefficient, as_dtype(g, self.dtype), size)
