"""Power clipping: a row's length is bent before it is cut, so that the tail counts more, or less.

    |h_i| = C min(1, |g_i| / C)^p         in the direction of g_i;   w_i = |h_i| / |g_i|

    p = 1      flat clipping
    p -> 0     normalised gradients: every row counts the same
    p > 1      rows in the body count less, and the tail is cut at the same C: a smooth form of
               discriminative clipping by norm, as focal losses do it by the loss

When to use
-----------
p above 1 where long gradients carry the signal (rare classes, rows that are not learnt yet) and the
many short ones only repeat what is known; p below 1 where lengths say little. Noise depends on C
alone, so p shapes bias and buys no noise. Tune p with C and the step length, beginning at 2: what
is best at p = 1 lies elsewhere. Measured: docs/which-rule.md, where p of 2 to 3.5 was ahead of
flat clipping with long-tailed classes and on French motor claims (there by the level of what it
predicts alone), and p = 1 was best elsewhere.

Cost
----
That of flat clipping: one norm per row and one weighted sum.

Guarantee
---------
|h_i| <= C, a function of row i: one record moves the sum by at most C when it joins or leaves, and
by at most 2C when it is replaced.

References
----------
Discriminative clipping (`discriminative.py`) is the same with a step; Lin et al.: Focal loss, ICCV
2017, weighs by a power of the error. The family is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from winsor.core.arithmetic.slack import SHORTEST_ROW, bound_with_slack
from winsor.core.checks import positive
from winsor.rules.rule import NormRule, clip_weights


@dataclass(frozen=True)
class Power(NormRule):
    """Bend lengths by the power ``p``, then cut at ``max_grad_norm``."""

    max_grad_norm: float
    p: float = 2.0
    proof = "w_i depends on row i only and |w_i g_i| = C min(1, |g_i|/C)^p <= C"

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)
        positive("p", self.p)

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        """Return min(1, |g|/C)^(p-1) min(1, C/|g|): the first factor is 1 where the second cuts."""
        clip = bound_with_slack(self.max_grad_norm)
        relative = (norms.double().clamp_min(SHORTEST_ROW) / clip).clamp_max(1.0)
        return clip_weights(norms, self.max_grad_norm) * relative ** (self.p - 1)


EXAMPLES = (Power(1.0), Power(0.1, 0.5), Power(2.0, 4.0))
