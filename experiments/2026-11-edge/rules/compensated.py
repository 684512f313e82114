"""Compensated clipping: what the cut takes from long rows is taken from short ones alike.

    w_i = a + (1 - a) |g_i| / C      for |g_i| <= C,        a = 1 - 1/tail_index
    w_i = C / |g_i|                  for |g_i| > C

Flat clipping shortens long rows and leaves short ones as they are, so that the tail counts too
little in the sum. If lengths beyond C have a Pareto tail of index k, their mean there is
C k/(k - 1) = C/a. This rule lets them have C, a times their mean, and short rows a times their
length: tail and body keep the weights that they have in the plain mean, and the learning rate
takes the common factor a. Rows in between get more than their part, because the weight rises
without a jump: the lengths |h_i| = w_i |g_i| sum to a times the plain sum plus
(1 - a) sum |g_i|^2 / C over rows within C.

    tail_index -> infinity     a = 1: flat clipping
    tail_index -> 1            a = 0: `Power` with p = 2, under which short rows vanish

When to use
-----------
Where long gradients carry what is to be learnt: one-sided tails (claims), rare classes. Unlike
`Power` it never gives the tail more than 1/a times the weight of the body, so it does less harm
where the guess of the index is wrong. Start with 5/3 (a = 0.4). The scale of C is that of flat
clipping, or somewhat less; the learning rate can be longer. Where tails are symmetric (noise of
either sign) there is no bias to compensate, and it is worth nothing.

Cost
----
That of flat clipping: one norm per row and one weighted sum.

Guarantee
---------
|h_i| <= C: within C both factors of w_i |g_i| = |g_i| (a + (1 - a) |g_i| / C) grow with |g_i|, and
at |g_i| = C it is C. w_i depends on row i and public constants only. So one record moves the sum
by at most C when it joins or leaves, and by at most 2C when it is replaced. The guess of the tail
index is a public constant; a wrong one costs accuracy, never privacy.

References
----------
Embrechts, Klueppelberg, Mikosch: Modelling extremal events, 1997 (means beyond a threshold). The
rule is ours. Measured: docs/which-rule.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from winsor.core.checks import positive, refusal
from winsor.gradients.view import View
from winsor.rules.rule import ROUNDING, PerSampleRule, State, clip_weights


@dataclass(frozen=True)
class Compensated(PerSampleRule):
    """Clip to ``max_grad_norm``, with short rows lowered by what a tail of ``tail_index`` loses."""

    max_grad_norm: float
    tail_index: float = 5 / 3
    proof = "w_i depends on row i only and |w_i g_i| = |g_i| (a + (1-a) |g_i|/C) <= C, cut at C"

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)
        if positive("tail_index", self.tail_index) <= 1:
            remedy = "At 1 or below a Pareto tail has no mean that could be kept."
            raise refusal("tail_index", "above 1", self.tail_index, remedy)

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        """min(1, C/|g|) times a weight that rises from a to 1: it is 1 where the first one cuts."""
        least = 1 - 1 / self.tail_index
        relative = (norms / (self.max_grad_norm / (1 + ROUNDING))).clamp(max=1.0)
        return clip_weights(norms, self.max_grad_norm) * (least + (1 - least) * relative)

    def weights(self, view: View, state: State) -> Tensor:
        return self.weight_of_norm(view.norms())

    def clipped_norm(self, state: State) -> float:
        return self.max_grad_norm


EXAMPLES = (Compensated(1.0), Compensated(0.1, 1.1), Compensated(2.0, 4.0))
