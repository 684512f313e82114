"""Flat clipping: every per-sample gradient is scaled to norm at most C.

    w_i = min(1, C / |g_i|),    g = sum_i w_i g_i + N(0, (sigma C)^2 I)

Abadi et al. 2016, Algorithm 1. This is the DP-SGD that every other rule is compared with.

Guarantee
---------
|w_i g_i| <= C and w_i depends on row i only, so one record moves the sum by at most C when it is
added or removed and by at most 2C when it is replaced.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from winsor.grads.view import View
from winsor.rules.clip import clip_weights, positive
from winsor.rules.rule import PerSampleRule, State


@dataclass(frozen=True)
class Flat(PerSampleRule):
    """Clip each per-sample gradient to L2 norm ``max_grad_norm``."""

    max_grad_norm: float
    proof = "w_i depends on row i only and |w_i g_i| <= C (Abadi et al. 2016, Alg. 1)"

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)

    def weights(self, view: View, state: State) -> Tensor:
        return clip_weights(view.norms(), self.max_grad_norm)

    def clipped_norm(self, state: State) -> float:
        return self.max_grad_norm


EXAMPLES = (Flat(1.0), Flat(0.05))
