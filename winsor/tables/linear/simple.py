"""Full-batch descent with private means of gradients: the two methods of paper 2.

    simple      g_t = (1/n) [ sum_i min(1, R/|g_i|) g_i + N(0, (nm R)^2 I) ]
    iterative   g_t = combine(Q_1..Q_k), noisy means of k groups of clipped gradients
    both        theta <- Proj(theta - eta g_t),   the answer is the average of the T iterates

Paper 2 (Zhao et al. 2025), Algorithms 1 to 3, with R, T and eta from Theorem 4 (simple), from
Theorem 7 (iterative), or by hand. Gradients are never formed: memory stays at the data plus three
vectors of length n. c_1 of Algorithm 3 is the origin here (``start="centre"``): from the corner
that `winsor.tables.iterative_mean` starts at, the walk ends at the same side of the bulk in every
step, and such errors add up; errors towards zero do not.

Guarantee
---------
Simple: as `flat.py` with every record in every step, per-sample bound R; the whole run is one
Gaussian release. With ``rho`` it is rho-zCDP; under replace-one its noise is then exactly that of
Theorem 3, s^2 = 2 R^2 T / (rho n^2). Iterative: T rounds of `winsor.tables.means.groups`; with
``grouping="partition"`` one Gaussian release per round over groups that stay the same, with
``"poisson"`` k sampled releases per round, every group drawn afresh. What is done with the group
means is post-processing. With ``rho`` a partition under replace-one has T times the noise variance
of (19) at rho. Theorem 6 of the paper is not used: it does not hold (`winsor_papers.sco`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.checks import positive, whole
from winsor.core.contract import ConfigurationError, Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import Receipt
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment, Target
from winsor.tables.descent import Schedule, descend
from winsor.tables.linear.batches import pulled
from winsor.tables.linear.flat import PROOF, clipped_gradients
from winsor.tables.linear.task import LinearTask, Method, Session, Solution
from winsor.tables.means.clipped import Moments
from winsor.tables.means.groups import Groups
from winsor.tables.means.updating import checked_updating, combined
from winsor.tails.theorems import ScoParameters, iterative_updating, simple_clipping, zcdp_to_dp

Array = NDArray[np.float64]


@dataclass
class Simple(Method):
    """Options of simple clipping. What is None comes from Theorem 4.

    ``p`` and ``moment`` are the public assumption E|<u, g>|^p <= moment^p on per-sample gradients
    (None: the largest gradient that the loss and the row bound allow); ``radius`` projects on a
    ball about the origin, the paper's domain W. ``rho`` is a budget in zCDP for the whole run, in
    place of the estimator's epsilon; ``epsilon_`` then says what it costs.
    """

    clip: float | None = None
    steps: int | None = None
    learning_rate: float | None = None
    p: float = 2.0
    moment: float | None = None
    smoothness: float | None = None
    radius: float | None = None
    rho: float | None = None

    def solve(self, task: LinearTask, session: Session) -> Solution:
        """Descend on the clipped mean of all gradients."""
        session = budget_of(self.rho, session)
        advice = self._settled(task, session)
        steps = int(advice.steps)
        sampler, sensitivity = FullBatch(task.n), Sensitivity.per_sample(advice.radius, PROOF)
        receipt = session.pay(Payment(sampler, sensitivity, steps), task.start.shape)
        gradient = clipped_gradients(task, sampler, advice.radius, receipt, session.key)
        schedule = Schedule(steps, advice.step_size, task.alpha, self.radius, before=True)
        return Solution(descend(task.start, gradient, schedule, task.design.intercept), steps)

    def _settled(self, task: LinearTask, session: Session) -> ScoParameters:
        self._check("clip", "learning_rate", "moment", "smoothness", "radius")
        steps = None if self.steps is None else whole("steps", self.steps)
        if self.clip and steps and self.learning_rate:
            return ScoParameters(self.clip, steps, self.learning_rate)
        advice = self._advice(task, session)
        return ScoParameters(
            self.clip or advice.radius,
            steps or max(1, round(advice.steps)),
            self.learning_rate or advice.step_size,
        )

    def _advice(self, task: LinearTask, session: Session) -> ScoParameters:
        """R, T and eta of Theorem 4 at the noise that is really used.

        The paper's noise is sqrt(2/rho) R/n for the whole budget; the certified one is R/(mu n).
        """
        return simple_clipping(
            *assumed_moment(self, task),
            task.n,
            task.parameters,
            2 * session.yardstick(task.n) ** 2,
            smoothness=self.smoothness or task.smoothness(),
        )


def assumed_moment(options: Simple, task: LinearTask) -> tuple[float, float]:
    """Check and return (p, M) of Assumption 1(c)."""
    moment = options.moment or task.deviation()
    assumed = Moments.of((options.p, moment), task.parameters)
    assert assumed is not None
    return assumed.p, assumed.moment


def budget_of(rho: float | None, session: Session) -> Session:
    """Return the session with a budget in zCDP, if one is given."""
    if rho is None:
        return session
    if session.noise_multiplier is not None:
        raise ConfigurationError(
            f"rho must be None where noise_multiplier fixes the noise. Got rho={rho!r} and "
            f"noise_multiplier={session.noise_multiplier!r} instead. Give one of them."
        )
    target = session.target
    budget = Target(None, target.delta, positive("rho", rho), target.relation)
    return replace(session, target=budget)


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
        """Descend on combined group means of gradients."""
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
    """Return a function that releases the (k, p) noisy group means of the next round."""
    limits = task.design.limits(bound)
    fixed = None if parts.poisson else parts.members(key, receipt.first)
    rounds = iter(range(receipt.first, receipt.first + receipt.left))

    def means(theta: Array) -> Array:
        members = parts.members(key, next(rounds)) if fixed is None else fixed
        sums = np.empty((parts.k, theta.size))
        for row, who in zip(sums, members, strict=True):
            row[:] = pulled(task, task.design.rows(who), who, theta, limits).ravel()
        return parts.released_means(sums, receipt)

    return means
