"""Difference clipping: rows are clipped around a released estimate of the gradient.

    h_i = min(1, C / |g_i - m_t|) (g_i - m_t)
    grad = sum_i h_i + N(0, (nm C)^2 I) + B m_t,     B the expected batch size
    m_{t+1} = (1 - rate) m_t + rate grad / B,        at most ``longest`` C long

When to use
-----------
When the mean gradient is long against C, or the lengths are skewed: what flat clipping takes from a
long row is then taken from its difference to m_t only. It helps while m_t is a better guess of the
gradient than 0 is, so when batches are large. At a point where m_t has settled at zero it is flat
clipping, bias included.

Cost
----
Per-sample gradients are formed in chunks: no engine has inner products with a given vector.

Guarantee
---------
h_i depends on row i and on m_t, which is made of released gradients and public constants, and
|h_i| <= C. So one record moves the sum by at most C when it joins or leaves, by 2C when it is
replaced. B m_t is added after the noise, and times the *expected* size: times the realised one it
would move with the batch. A row that is not finite contributes nothing, as everywhere.

References
----------
Karimireddy, He, Jaggi: Learning from history for Byzantine robust optimization, ICML 2021 (centred
clipping). Gorbunov et al. and Khirirat et al. 2023 clip differences in federated learning.
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
class Centred(RowwiseRule):
    """Clip differences to the running mean of released gradients, to ``max_grad_norm``."""

    max_grad_norm: float
    rate: float = 0.1
    longest: float = 10.0

    needs = Need.ROWS
    proof = "clip(g_i - m) depends on row i and the released m only; its norm is at most C"

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)
        positive("longest", self.longest)
        probability("rate", self.rate)

    def init(self, parameters: Tree, expected_size: float) -> State:
        centre = {name: torch.zeros_like(p).detach() for name, p in parameters.items()}
        return {"centre": centre, "expected_size": float(expected_size)}

    def clipped_norm(self, state: State) -> float:
        return self.max_grad_norm

    def contributions(self, view: View, state: State) -> Sums:
        centre = state["centre"]

        def differences(rows: dict[str, Tensor]) -> dict[str, Tensor]:
            apart = {name: row - centre[name].to(row) for name, row in rows.items()}
            weights = clip_weights(_lengths(apart), self.max_grad_norm)
            return {
                name: row * weights.to(row.dtype).view(-1, *[1] * (row.dim() - 1))
                for name, row in apart.items()
            }

        return {"grad": view.map_sum(differences)}

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        centre, size = state["centre"], state["expected_size"]
        sums = released.values["grad"]
        grad = {name: noisy + size * centre[name].to(noisy) for name, noisy in sums.items()}
        moved = {
            name: torch.lerp(centre[name].to(total), total / size, self.rate)
            for name, total in grad.items()
        }
        length = float(_lengths({name: m.unsqueeze(0) for name, m in moved.items()})[0])
        shorter = min(1.0, self.longest * self.max_grad_norm / max(length, 1e-30))
        following = {name: m * shorter for name, m in moved.items()}
        return released.with_grad(grad), {**state, "centre": following}


def _lengths(rows: Tree) -> Tensor:
    """(n,) norms over all parameters; float64, so that squares of huge coordinates are finite."""
    parts = [
        torch.linalg.vector_norm(row.unsqueeze(-1).flatten(1), dim=1, dtype=torch.float64)
        for row in rows.values()
    ]
    return torch.stack(parts).norm(dim=0)


EXAMPLES = (Centred(1.0), Centred(0.2, rate=0.5, longest=1.0))
