"""Full-batch descent with the clipped mean of gradients: paper 2's simple method.

    g_t = (1/n) [ sum_i min(1, R/|g_i|) g_i + N(0, (nm R)^2 I) ]
    theta <- Proj(theta - eta g_t),     the answer is the average of the T iterates

Paper 2 (Zhao et al. 2025), Algorithms 1 and 2, with R, T and eta from Theorem 4 or by hand. The
whole run is one Gaussian release with mu = sqrt(T) R / (n s): exact, no composition loss.

Memory stays at the data plus three vectors of length n: gradients are never formed.

Guarantee
---------
As `flat.py` with every record in every step: per-sample bound R. With ``rho`` the run is rho-zCDP;
under replace-one its noise is then exactly that of Theorem 3, s^2 = 2 R^2 T / (rho n^2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from winsor.core.checks import positive, whole
from winsor.core.contract import ConfigurationError, Sensitivity
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment, Target
from winsor.tables.linear.descent import Schedule, descend
from winsor.tables.linear.flat import PROOF, clipped_gradients
from winsor.tables.linear.options import Method
from winsor.tables.linear.task import LinearTask, Session, Solution
from winsor.tables.means.clipped import Moments
from winsor.tails.theorems import ScoParameters, simple_clipping


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
    """(p, M) of Assumption 1(c), checked."""
    moment = options.moment or task.deviation()
    assumed = Moments.of((options.p, moment), task.parameters)
    assert assumed is not None
    return assumed.p, assumed.moment


def budget_of(rho: float | None, session: Session) -> Session:
    """The session with a budget in zCDP, if one is given."""
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
