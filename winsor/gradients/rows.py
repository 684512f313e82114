"""A view over per-sample gradients that are already at hand, as explicit rows.

The audit plants canary gradients with it, closed-form models hand their rows to rules through it,
and the test battery uses it as the plainest possible reading of the `View`. No autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from winsor.core.contract import ConfigurationError, Tree
from winsor.gradients.arithmetic import add_up_chunks, squares, weigh_rows, wide
from winsor.gradients.buffers import Layout
from winsor.gradients.directions import sketch_rows
from winsor.gradients.view import Directions, View


class RowsView(View):
    """The `View` of given rows: {name: (n, *shape)} and, if known, (n,) losses.

    A row with a non-finite coordinate, loss or norm is neutralised, as every view does.
    """

    def __init__(
        self, rows: Mapping[str, Tensor], losses: Tensor | None = None, chunk: int = 256
    ) -> None:
        self.raw = {name: tensor.detach() for name, tensor in rows.items()}
        n = _common_size(self.raw, losses)
        first = next(iter(self.raw.values()))
        self.raw_losses = first.new_zeros(n) if losses is None else losses.detach()
        self._chunk = chunk
        self._squares = {name: squares(tensor) for name, tensor in self.raw.items()}
        square = torch.stack(list(self._squares.values())).sum(0)
        # Each test looks at its own row only, so neutralising keeps every per-sample bound.
        self._kept = self.raw_losses.isfinite() & square.isfinite()

    def select(self, index: Tensor) -> RowsView:
        """Return the view of the rows of ``index`` alone."""
        rows = {name: tensor[index] for name, tensor in self.raw.items()}
        return RowsView(rows, self.raw_losses[index], self._chunk)

    @property
    def neutralised(self) -> int:
        """Rows set to zero because they, their loss or their norm were not finite."""
        return self.size - int(self._kept.sum())

    def norms(self) -> Tensor:
        """Return (n,) norms over all parameters."""
        return self.group_norms([list(self.raw)])[:, 0]

    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        """Return (n, len(groups)) norms."""
        zero = torch.zeros_like(self._kept, dtype=torch.float64)
        sums = [sum((self._squares[name] for name in group), start=zero) for group in groups]
        table = torch.stack(sums, dim=1)
        return torch.where(self._kept[:, None], table.sqrt(), 0.0)

    def sketch(self, directions: Directions) -> Tensor:
        """Return (n, k) inner products of explicit rows."""
        with_axis = {n: t if t.dim() > 1 else t[:, None] for n, t in self._clean().items()}
        return sketch_rows(with_axis, directions)

    def total(self) -> Tree:
        """Return sum_i g_i of the rows as they were given."""
        return {name: tensor.double().sum(0) for name, tensor in self.raw.items()}

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        """Return sum_i w_i g_i; the weight of a neutralised row is ignored."""
        total = self._zeros()
        for name, rows in self._clean().items():
            w = weights if isinstance(weights, Tensor) else weights[name]
            # The weight of a neutralised row may be infinite, and inf * 0 is NaN.
            weigh_rows(torch.where(self._kept, w.double(), 0.0), rows, total[name])
        return total

    def map_sum(self, f: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Tree:
        """Return sum_i f(g)_i over the rows that are kept, a chunk at a time."""
        index = self._kept.nonzero()[:, 0]
        layout = Layout({name: row.new_empty(row.shape[1:]) for name, row in self.raw.items()})
        tree = layout.empty()

        def add(start: int, stop: int, into: Tensor) -> None:
            sums, chosen = layout.over(into), index[start:stop]
            mapped = f({name: wide(tensor[chosen]) for name, tensor in self.raw.items()})
            for name, leaf in sums.items():
                weigh_rows(None, mapped[name], leaf, add=True)

        starts = range(0, len(index), self._chunk)
        chunks = [(start, min(len(index), start + self._chunk)) for start in starts]
        add_up_chunks(chunks, add, tree.flat)
        return dict(tree)

    def _zeros(self) -> Tree:
        rows = self.raw.items()
        return {name: r.new_zeros(r.shape[1:], dtype=torch.float64) for name, r in rows}

    def _clean(self) -> Tree:
        return {
            name: torch.where(self._kept.view(-1, *[1] * (t.dim() - 1)), t, 0.0)
            for name, t in self.raw.items()
        }


def _common_size(rows: Mapping[str, Tensor], losses: Tensor | None) -> int:
    if not rows or any(t.dim() < 1 or not t.is_floating_point() for t in rows.values()):
        raise ConfigurationError(
            "rows must map at least one parameter name to a floating-point (n, *shape) tensor. "
            f"Got { {name: tuple(t.shape) for name, t in rows.items()} } instead."
        )
    sizes = {len(t) for t in rows.values()} | ({len(losses)} if losses is not None else set())
    if len(sizes) != 1:
        raise ConfigurationError(
            f"rows and losses must agree on the number of rows n. Got {sorted(sizes)} instead."
        )
    return sizes.pop()
