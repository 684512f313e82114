"""Full-batch descent with the iterative mean of gradients: paper 2's second method.

    Q_j(theta)   noisy means of k groups of clipped gradients,   g_t = combine(Q_1..Q_k)
    theta <- Proj(theta - eta g_t),     the answer is the average of the T iterates

Paper 2 (Zhao et al. 2025), Algorithms 1 and 3, with R, T and eta from Theorem 7 (R, T and eta have
the form of Theorem 4's at this noise) or by hand.

Guarantee
---------
T rounds of `winsor.means.groups`: with ``grouping="partition"`` one Gaussian release per round
over groups that stay the same; with ``"poisson"`` k sampled releases per round, every group of
every round drawn afresh. Theorem 6 of the paper is not used: it does not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.checks import choice
from winsor.grads.glm import clip_residuals
from winsor.linear.descent import Schedule, descend
from winsor.linear.simple import Simple
from winsor.linear.task import LinearTask, Session, Solution
from winsor.means.groups import Groups
from winsor.means.iterative import COMBINATIONS, combined
from winsor.mechanisms.gaussian import Gaussian
from winsor.release.prepaid import Receipt

Array = NDArray[np.float64]


@dataclass
class Iterative(Simple):
    """Options of the iterative method: those of `Simple`, and how gradients are grouped."""

    groups: int = 20
    grouping: str = "poisson"
    combine: str = "iterative"

    def solve(self, task: LinearTask, session: Session) -> Solution:
        choice("combine", self.combine, COMBINATIONS)
        parts = Groups(task.n, self.groups, self.grouping, session.target.relation)
        advice = self._settled(task, session)
        steps = int(advice.steps)
        multiplier = session.multiplier([parts.payment(advice.radius, steps)])
        mechanism = Gaussian(multiplier)
        size = task.parameters
        receipt = parts.pay(session.door, mechanism, advice.radius, size, steps)
        means = group_gradients(task, parts, advice.radius, receipt, session.key)

        def gradient(theta: Array) -> Array:
            return combined(means(theta), self.combine).reshape(theta.shape)

        schedule = Schedule(steps, advice.step_size, task.alpha, self.radius, before=True)
        theta = descend(task.start, gradient, schedule, task.design.intercept)
        return Solution(theta, steps)


def group_gradients(
    task: LinearTask, parts: Groups, bound: float, receipt: Receipt, key: bytes
) -> Callable[[Array], Array]:
    """Each call releases the (k, p) noisy group means of the next round."""
    limits = task.design.limits(bound)
    fixed = None if parts.poisson else parts.members(key, receipt.first)
    rounds = iter(range(receipt.first, receipt.first + receipt.left))

    def means(theta: Array) -> Array:
        members = parts.members(key, next(rounds)) if fixed is None else fixed
        sums = np.empty((parts.k, theta.size))
        for row, who in zip(sums, members, strict=True):
            rows = task.design.rows(who)
            residual = task.loss.residual(rows.scores(theta), task.y.take(who))
            row[:] = rows.pull(clip_residuals(residual, limits.take(who))).ravel()
        return parts.released_means(sums, receipt)

    return means
