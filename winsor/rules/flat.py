"""Flat clipping: every per-sample gradient is scaled to norm at most C.

    w_i = min(1, C / |g_i|),    g = sum_i w_i g_i + N(0, (sigma C)^2 I)

This is the DP-SGD that every other rule is compared with.

When to use
-----------
First, and as the yardstick for everything else. C near the median of the per-sample norms is a
good start; small C with a proportionally larger learning rate behaves like normalised gradients.

Cost
----
Per-sample norms and one weighted contraction per layer.

Guarantee
---------
|w_i g_i| <= C and w_i depends on row i only, so one record moves the sum by at most C when it is
added or removed and by at most 2C when it is replaced.

References
----------
Abadi et al.: Deep Learning with Differential Privacy, 2016, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from winsor.core.checks import positive
from winsor.rules.rule import NormRule, clip_weights


@dataclass(frozen=True)
class Flat(NormRule):
    """Clip each per-sample gradient to L2 norm ``max_grad_norm``."""

    max_grad_norm: float
    proof = "w_i depends on row i only and |w_i g_i| <= C (Abadi et al. 2016, Alg. 1)"

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        """Return min(1, C/|g|) for each norm."""
        return clip_weights(norms, self.max_grad_norm)


EXAMPLES = (Flat(1.0), Flat(0.05))
