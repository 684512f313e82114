"""Clip after a map that released gradients have drawn: less where they are small, more where large.

    h_i = clip(g_i / b_t, C)                        b_t > 0, one factor per coordinate
    grad = b_t (sum_i h_i + N(0, (nm C)^2 I))
    b_{t+1} ~ v^(power / 4),  rms 1,                v a running mean of (grad / B)^2 less its noise

Coordinate j has noise of variance b_j^2 (nm C)^2, and the mean of b_j^2 is 1: all in all, the noise
of flat clipping at C. Rows are measured in the map's units, so that those along directions in which
gradients use to be long are cut less. ``power`` 1: least noise for given deviations (AdaCliP);
0 would be flat clipping.

When to use
-----------
When gradients of different coordinates have different sizes for long, and batches are large enough
for released gradients to show them. It is worth nothing while v is all noise: then b stays near 1.

Cost
----
Per-sample gradients are formed in chunks. v of a matrix is kept by rows and columns (as the product
of their means), which averages the noise of single coordinates away.

Guarantee
---------
b_t is made of released gradients and public constants, so h_i depends on row i and public values,
and |h_i| <= C: one record moves the sum by at most C when it joins or leaves, by 2C when it is
replaced. Multiplying by b_t comes after the noise. A row that is not finite contributes nothing.

References
----------
Pichapati, Suresh, Yu, Reddi, Kumar: AdaCliP: adaptive clipping for private SGD, 2019, section 3;
Li, Zaheer, Liu, Smith, Kumar, McMahan: Differentially private adaptive optimization with delayed
preconditioners, ICLR 2023 (scale, then privatise); Shazeer, Stern: Adafactor, ICML 2018 (rows and
columns). AdaCliP estimates deviations of single rows; released sums show those of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from winsor.core.checks import positive, probability
from winsor.core.contract import Released, Tree
from winsor.gradients.view import Need, View
from winsor.rules.rule import RowwiseRule, State, Sums, clip_weights


@dataclass(frozen=True)
class Scaled(RowwiseRule):
    """Clip to ``max_grad_norm`` in the units of a diagonal map from released gradients.

    ``rate`` is that of the running means, ``widest`` bounds the factors from both sides.
    """

    max_grad_norm: float
    power: float = 1.0
    rate: float = 0.05
    widest: float = 10.0

    needs = Need.ROWS
    proof = "clip(g_i / b) depends on row i and the released b only; its norm is at most C"

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)
        positive("power", self.power)
        positive("widest", self.widest)
        probability("rate", self.rate)

    def init(self, parameters: Tree, expected_size: float) -> State:
        like = {name: torch.zeros_like(p).detach() for name, p in parameters.items()}
        return {
            "factors": {name: torch.ones_like(p) for name, p in like.items()},
            "squares": like,
            "expected_size": float(expected_size),
        }

    def clipped_norm(self, state: State) -> float:
        return self.max_grad_norm

    def contributions(self, view: View, state: State) -> Sums:
        factors = state["factors"]

        def mapped(rows: dict[str, Tensor]) -> dict[str, Tensor]:
            # float64: neither squares nor quotients of huge coordinates may overflow
            inside = {
                name: row.double() / factors[name].to(row.device) for name, row in rows.items()
            }
            lengths = [
                torch.linalg.vector_norm(t.unsqueeze(-1).flatten(1), dim=1) for t in inside.values()
            ]
            weights = clip_weights(torch.stack(lengths).norm(dim=0), self.max_grad_norm)
            return {
                name: (t * weights.view(-1, *[1] * (t.dim() - 1))).to(rows[name].dtype)
                for name, t in inside.items()
            }

        return {"grad": view.map_sum(mapped)}

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        factors, size = state["factors"], state["expected_size"]
        sums, std = released.values["grad"], released.std["grad"]
        grad = {name: noisy * factors[name].to(noisy) for name, noisy in sums.items()}
        squares = {
            name: torch.lerp(
                state["squares"][name],
                (total / size).square() - (std / size * factors[name].to(total)).square(),
                self.rate,
            )
            for name, total in grad.items()
        }
        following = {**state, "factors": self._factors(squares), "squares": squares}
        return released.with_grad(grad), following

    def _factors(self, squares: Tree) -> Tree:
        """Of mean square 1 over all coordinates, up to the bounds on them."""
        smooth = {name: _by_rows_and_columns(square) for name, square in squares.items()}
        count = sum(square.numel() for square in smooth.values())
        typical = sum(float(square.sum()) for square in smooth.values()) / max(count, 1)
        if not typical > 0:  # nothing but noise has been seen
            return {name: torch.ones_like(square) for name, square in smooth.items()}
        raw = {
            name: (square / typical).pow(self.power / 4).clamp(1 / self.widest, self.widest)
            for name, square in smooth.items()
        }
        total = sum(float(factor.square().sum()) for factor in raw.values())
        return {name: factor * (count / total) ** 0.5 for name, factor in raw.items()}


def _by_rows_and_columns(square: Tensor) -> Tensor:
    """Estimates of second moments that single coordinates have in common, at least 0.

    Means of what is left of squares after their noise is taken away may be negative by chance.
    """
    if square.dim() < 2:
        return square.clamp_min(0)
    matrix = square.flatten(1)
    rows, columns = matrix.mean(1).clamp_min(0), matrix.mean(0).clamp_min(0)
    mean = rows.mean()
    if not float(mean) > 0:
        return torch.zeros_like(square)
    return (rows[:, None] * columns / mean).view_as(square)


EXAMPLES = (Scaled(1.0), Scaled(0.2, power=2.0, rate=0.5, widest=3.0))
