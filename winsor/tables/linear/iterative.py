"""Full-batch descent with the iterative mean of gradients: paper 2's second method.

    Q_j(theta)   noisy means of k groups of clipped gradients,   g_t = combine(Q_1..Q_k)
    theta <- Proj(theta - eta g_t),     the answer is the average of the T iterates

Paper 2 (Zhao et al. 2025), Algorithms 1 and 3, with R, T and eta from Theorem 7 or by hand.

c_1 of Algorithm 3 is the origin here (``start="centre"``): the gradient at a minimum, and outside
the bulk of the group means as long as a gradient is larger than its noise. The corner of
`winsor.tables.iterative_mean` is a start too, but the walk ends at the edge of the bulk on the side
of its start, the same side in every step, and such errors add up; errors towards zero do not.

Guarantee
---------
T rounds of `winsor.tables.means.groups`: with ``grouping="partition"`` one Gaussian release per
round over groups that stay the same; with ``"poisson"`` k sampled releases per round, every group
of every round drawn afresh. What is done with the group means is post-processing. With ``rho`` a
partition under replace-one has T times the noise variance of (19) at rho. Theorem 6 of the paper is
not used: it does not hold (`winsor_papers.sco`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import Receipt
from winsor.tables.glm_losses import clip_residuals
from winsor.tables.linear.descent import Schedule, descend
from winsor.tables.linear.simple import Simple, assumed_moment, budget_of
from winsor.tables.linear.task import LinearTask, Session, Solution
from winsor.tables.means.groups import Groups
from winsor.tables.means.updating import checked_updating, combined
from winsor.tails.theorems import ScoParameters, iterative_updating, zcdp_to_dp

Array = NDArray[np.float64]


@dataclass
class Iterative(Simple):
    """Options of the iterative method: those of `Simple`, with Theorem 7 in place of Theorem 4, and
    how gradients are grouped and combined; ``start`` is c_1 and ``updates`` is t_c."""

    groups: int = 20
    grouping: str = "poisson"
    combine: str = "iterative"
    start: str | ArrayLike = "centre"
    updates: int | None = None

    def solve(self, task: LinearTask, session: Session) -> Solution:
        session = budget_of(self.rho, session)
        start = checked_updating(self.combine, self.start, self.updates, task.parameters)
        parts = Groups(task.n, self.groups, self.grouping, session.target.relation)
        advice = self._settled(task, session)
        steps = int(advice.steps)
        multiplier = session.multiplier([parts.payment(advice.radius, steps)])
        mechanism = Gaussian(multiplier)
        size = task.parameters
        receipt = parts.pay(session.door, mechanism, advice.radius, size, steps)
        means = group_gradients(task, parts, advice.radius, receipt, session.key)
        made: list[int | None] = []

        def gradient(theta: Array) -> Array:
            found = combined(means(theta), self.combine, start, self.updates)
            made.append(found.updates)
            return found.point.reshape(theta.shape)

        schedule = Schedule(steps, advice.step_size, task.alpha, self.radius, before=True)
        theta = descend(task.start, gradient, schedule, task.design.intercept)
        counted = [count for count in made if count is not None]
        return Solution(theta, steps, sum(counted) if counted else None)

    def _advice(self, task: LinearTask, session: Session) -> ScoParameters:
        """R, T and eta of Theorem 7."""
        return iterative_updating(
            *assumed_moment(self, task),
            task.n,
            task.parameters,
            _epsilon(session, task.n),
            smoothness=self.smoothness or task.smoothness(),
        )


def _epsilon(session: Session, n: int) -> float:
    """The epsilon of Theorem 7: the target's, or by Lemma 1(4) what a budget in rho or a noise
    multiplier given by hand amounts to."""
    target = session.target
    if session.noise_multiplier is None and target.epsilon is not None:
        return target.epsilon
    return zcdp_to_dp(2 * session.yardstick(n) ** 2, target.delta).epsilon


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
