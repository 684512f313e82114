"""Averaged clipping (AClip): clip the mean of the batch once, not every row.

    m = (1 / qn) sum_i g_i,     release  min(1, lambda / |m|) m + N(0, (nm 2 lambda)^2 I)

Jin et al. 2023, eq. (2) and Algorithm 1. In this library's units the sum is released: radius
lambda q n, and training divides by q n.

When to use
-----------
When speed is everything and privacy is cheap (few steps, a large epsilon), or when the clipping
bias of heavy-tailed rows hurts more than noise: outliers average out before they are clipped. For
equal epsilon its noise on the mean is 2qn times that of per-sample clipping at C = lambda, and a
larger batch does not shrink it.

Cost
----
One plain backward pass and one norm: nothing per sample. The cheapest rule there is.

Guarantee
---------
The released mean lies in a ball of radius lambda whatever the rows are, and two points of a ball
are at most 2 lambda apart: that is the shift for a record added, removed or replaced. It is
attained: the others push the mean to -lambda e, one huge record flips it to +lambda e. A mean that
is not finite is replaced by zero, which is in the ball.

References
----------
Jin, Zhou, Han, Cheng, Zeng: Efficient private SCO for heavy-tailed data via averaged clipping.
The paper takes the sensitivity to be lambda; that reading lives in
`papers/winsor_papers/aclip/claim.py`. The authors' code passes a noise variance where a standard
deviation is expected.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from winsor.core.buffers import FlatTree
from winsor.core.checks import positive
from winsor.core.contract import Bounded, Sensitivity, Tree
from winsor.gradients.arithmetic import squares
from winsor.gradients.view import Need, View
from winsor.rules.rule import Rule, State, Sums, clip_weights


@dataclass(frozen=True)
class Averaged(Rule):
    """Clip the batch mean to L2 norm ``max_mean_norm`` (the paper's lambda)."""

    max_mean_norm: float

    needs = Need.MEAN

    def __post_init__(self) -> None:
        positive("max_mean_norm", self.max_mean_norm)

    def init(self, parameters: Tree, expected_size: float) -> State:
        """Return the expected batch size, the only state."""
        return {"expected_size": float(expected_size)}

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        """Return the weight of a batch mean of each of these norms."""
        return clip_weights(norms, self.max_mean_norm)

    def contributions(self, view: View, state: State) -> Sums:
        """Return the plain sum of the rows' gradients."""
        return {"grad": view.total()}

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        """Return the sum, clipped to radius lambda q n."""
        radius = self.max_mean_norm * state["expected_size"]
        proof = "the clipped mean lies in a ball of radius lambda; its diameter is 2 lambda"
        value = clip_to_ball(sums["grad"], radius)
        return {"grad": Bounded(value, Sensitivity.of_range(radius, proof))}


def clip_to_ball(tree: Tree, radius: float) -> Tree:
    """Scale a tree, in place, to norm at most ``radius``; if it is not finite, it becomes zero."""
    leaves = [tree.flat] if isinstance(tree, FlatTree) else list(tree.values())
    norm = torch.stack([squares(leaf[None]) for leaf in leaves]).sum().sqrt()
    weight = clip_weights(norm, radius)
    for leaf in leaves:
        leaf.copy_(torch.where(norm.isfinite(), leaf * weight.to(leaf.dtype), 0.0))
    return tree


EXAMPLES = (Averaged(1.0), Averaged(0.05))
