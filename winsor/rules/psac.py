"""DP-PSAC: normalise, but do not blow up small gradients.

    w_i = C / (|g_i| + r / (|g_i| + r))

Xia et al. 2023. As |g| -> 0 the weight tends to C, where AUTO-S's tends to C / gamma: a
row whose gradient is almost zero no longer shouts as loudly as one that matters. The weight is
largest near |g| = sqrt(r) - r and falls off on both sides: it is not monotone.

When to use
-----------
As automatic clipping, when training reaches small gradients (long runs, well-fitted rows). r in
0.01 to 0.1 works widely; r close to 1 makes w nearly C / (|g| + 1) at the origin.

Cost
----
That of flat clipping: one norm per row and one weighted sum.

Guarantee
---------
|w_i g_i| = C |g_i| / (|g_i| + r/(|g_i| + r)) < C, and w_i depends on row i only: one record moves
the sum by at most C when added or removed, by at most 2C when replaced.

References
----------
Xia, Shen, Yao, Fu, Xu, Xu, Fu: Differentially private learning with per-sample adaptive clipping,
AAAI 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from winsor.core.checks import positive
from winsor.gradients.sums import exact_or_zero
from winsor.gradients.view import View
from winsor.rules.rule import ROUNDING, PerSampleRule, State


@dataclass(frozen=True)
class PSAC(PerSampleRule):
    """Per-sample adaptive clipping to ``max_grad_norm`` with regulariser ``r``."""

    max_grad_norm: float = 1.0
    r: float = 0.1
    proof = "w_i depends on row i only and |w_i g_i| = C|g_i|/(|g_i|+r/(|g_i|+r)) < C (Xia 2023)"

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)
        positive("r", self.r)

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        return exact_or_zero(
            self.max_grad_norm / ((norms + self.r / (norms + self.r)) * (1 + ROUNDING))
        )

    def weights(self, view: View, state: State) -> Tensor:
        return self.weight_of_norm(view.norms())

    def clipped_norm(self, state: State) -> float:
        return self.max_grad_norm


EXAMPLES = (PSAC(1.0, 0.1), PSAC(0.5, 0.01), PSAC(1.0, 1.0))
