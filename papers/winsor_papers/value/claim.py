"""What value clipping claims when Algorithm 3 is read as printed: one scale for all rows.

    g_i / max(1, sqrt(beta_1 (f(w) - f_lb) + beta_2) / C)         f(w) = mean loss, line 4

    published   T steps of SG(q, s): "the norm of the clipped gradient is bounded by C"
    certified   nothing: a row whose own loss exceeds f(w) is not bounded by C, or by anything

With f_i in place of f(w), as in the text above the algorithm, the claim is true wherever the growth
condition is: that is `winsor.rules.Value`, and `ValueRun.rule` gives it. The same noise multiplier
then certifies the very epsilon that was published, so nothing is lost by reading f_i.

The printed reading can be tried on public data through `as_printed`, which no `make_private` run
accepts: it has no sensitivity to state.

References
----------
Fang, Li, Fan, Li: Improved convergence of differential private SGD with gradient clipping, ICLR
2023, Algorithm 3 and Corollary 5.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from winsor.contrib.value.value import Value
from winsor.contrib.value.wgc import WeakGrowth
from winsor.core.contract import Tree
from winsor.gradients.view import View
from winsor_papers.published import PublishedClaim
from winsor_papers.sampled import SampledRun

_DOUBTS = (
    "line 4 scales row i by f(w), not f_i: a row with a larger loss keeps a norm above C",
    "f(w) couples all rows, so even bounded rows would not move the sum by C only",
    "Corollary 5.1 leaves its constants c_1 and c_2 open; the experiments use an accountant",
)


@dataclass(frozen=True)
class ValueRun(SampledRun):
    """A run whose noise was chosen so that the paper would call it (epsilon, delta)-private.

    The noise over C is the same for the published and the certified reading.
    """

    max_grad_norm: float = 1.0

    def claim(self) -> PublishedClaim:
        statement = "Corollary 5.1 with Algorithm 3's f(w), accounted by PLD"
        return PublishedClaim(
            self.published_epsilon, self.delta, "Value clipping", statement, _DOUBTS
        )

    def rule(self, form: str = "outputs") -> Value:
        """The certified rule with the same threshold."""
        return Value(self.max_grad_norm, form=form)


def printed_scale(
    losses: Tensor, growth: WeakGrowth, max_grad_norm: float, lower: float = 0.0
) -> Tensor:
    """Line 4 as printed: the scale that all rows share. ``growth`` must be one pair of numbers."""
    size = growth.bound(losses.mean(), lower) / max_grad_norm
    return 1 / size.clamp_min(1.0)


def as_printed(view: View, growth: WeakGrowth, max_grad_norm: float, lower: float = 0.0) -> Tree:
    """Lines 4-5 before the noise: the sum of the rows, scaled as printed. Never private."""
    scale = printed_scale(view.losses(), growth, max_grad_norm, lower)
    return view.weighted_sum(torch.ones_like(view.losses()) * scale)
