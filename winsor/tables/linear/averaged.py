"""AClipped-dpSGD: clip the average of the batch once, then add noise.

    a_t = (1/(q n)) sum_{i in B_t} g_i,    g_t = min(1, lambda/|a_t|) a_t + N(0, (2 nm lambda)^2 I)
    theta <- Proj(theta - gamma g_t),      the answer is the average of x^0 .. x^{N-1}

Paper 4 (Jin et al. 2024), Algorithm 1; lambda, m, gamma and N from Theorem 3 (constrained: a ball
of radius R about the origin), Theorem 4 (unconstrained) or Theorem 7 (Hoelder exponent below 1; 0
for losses with a kink, hinge and absolute), or by hand.

Guarantee
---------
The clipped average lies in a ball of radius lambda, and one record can carry it from any point of
that ball to any other: sensitivity 2 lambda, under both relations, and it does not shrink with the
batch. The paper accounts for lambda; its epsilon is published, not certified. Noise here is 2 q n
times that of per-sample clipping at C = lambda for equal epsilon: the method needs large budgets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import positive
from winsor.core.contract import Sensitivity
from winsor.core.prepaid import Receipt
from winsor.core.sampling.samplers import Sampler
from winsor.planning.budget import Payment
from winsor.planning.choose import planned_steps
from winsor.tables.linear.batches import batch_sums, sampler_of
from winsor.tables.linear.descent import Schedule, Trail, descend
from winsor.tables.linear.options import Method
from winsor.tables.linear.task import LinearTask, Session, Solution
from winsor.tails.theorems import (
    AclipParameters,
    AclipProblem,
    aclip_constrained,
    aclip_holder,
    aclip_unconstrained,
)

Array = NDArray[np.float64]

PROOF = "the clipped batch average lies in a ball of radius lambda: one record moves it by 2 lambda"


@dataclass
class AveragedDescent(Method):
    """Options of AClipped-dpSGD. What is None comes from the theorem.

    ``radius`` is R, a public bound on the distance from the start to the optimum; ``deviation`` is
    sigma; ``exponent`` below 1 selects Theorem 7, whose accuracy alpha is ``accuracy``; None is 1
    for a smooth loss, 0 for one with a kink. ``smoothness`` is L, or M_nu for Theorem 7.
    ``record`` keeps the answer every so many steps, in the estimator's ``trajectory_``.
    """

    clip: float | None = None
    batch_size: float | None = None
    learning_rate: float | None = None
    steps: int | None = None
    epochs: float | None = None
    radius: float = 1.0
    deviation: float | None = None
    smoothness: float | None = None
    constrained: bool = True
    exponent: float | None = None
    accuracy: float = 0.1
    beta: float = 0.05
    record: int | None = None

    continues = True

    def solve(self, task: LinearTask, session: Session) -> Solution:
        self._check("clip", "batch_size", "learning_rate", "radius", "deviation", "smoothness")
        clip, batch_size, rate, default = self._settled(task, session)
        trail = Trail(self.record)
        sampler = sampler_of(task.n, batch_size)
        steps = planned_steps(self.epochs, self.steps, sampler, default)
        sensitivity = Sensitivity.of_range(clip, PROOF)
        receipt = session.pay(Payment(sampler, sensitivity, steps), task.start.shape)
        gradient = averaged_gradients(task, sampler, clip, receipt, session.key)
        ball = self.radius if self.constrained and self.smooth(task) == 1 else None
        schedule = Schedule(steps, rate, task.alpha, ball, before=True)
        theta = descend(task.start, gradient, schedule, task.design.intercept, trail)
        return Solution(theta, steps, trajectory=tuple(trail.points))

    def smooth(self, task: LinearTask) -> float:
        """nu: as given, else 1 for a smooth loss and 0 for one with a kink."""
        if self.exponent is not None:
            return self.exponent
        return 1.0 if math.isfinite(task.loss.curvature) else 0.0

    def _settled(self, task: LinearTask, session: Session) -> AclipParameters:
        """By hand where given, else from the theorem, which is asked only if it is needed."""
        by_hand = (self.clip, self.batch_size, self.learning_rate)
        long_enough = self.steps is not None or self.epochs is not None
        if all(by_hand) and long_enough:
            clip, batch_size, rate = (float(value or 0.0) for value in by_hand)
            return AclipParameters(clip, batch_size, rate, 0)
        advice = self.advice(task, session)
        return AclipParameters(
            self.clip or advice.clip,
            self.batch_size or advice.batch_size,
            self.learning_rate or advice.step_size,
            advice.steps,
        )

    def advice(self, task: LinearTask, session: Session) -> AclipParameters:
        """lambda, m, gamma and N from the theorem that applies."""
        problem = aclip_problem(self, task, session)
        nu = self.smooth(task)
        if nu != 1:
            return aclip_holder(problem, nu, accuracy=self.accuracy, steps=self.steps)
        theorem = aclip_constrained if self.constrained else aclip_unconstrained
        return theorem(problem, self.steps)


def aclip_problem(options: AveragedDescent, task: LinearTask, session: Session) -> AclipProblem:
    """What the theorems ask about the problem: given, or from the public row bound."""
    epsilon = session.target.epsilon
    radius = positive("radius", options.radius)
    return AclipProblem(
        smoothness=options.smoothness or task.hoelder(options.smooth(task), radius),
        radius=radius,
        deviation=options.deviation or task.deviation(),
        n=task.n,
        d=task.parameters,
        epsilon=1.0 if epsilon is None else epsilon,
        delta=session.target.delta,
        beta=options.beta,
    )


def averaged_gradients(
    task: LinearTask, sampler: Sampler, clip: float, receipt: Receipt, key: bytes
) -> Callable[[Array], Array]:
    """Each call releases the next step's noisy clipped batch average."""
    total = batch_sums(task, sampler, receipt, key)
    return lambda theta: receipt.release(into_ball(total(theta), sampler.expected_size, clip))


def into_ball(total: Array, divisor: float, clip: float) -> Array:
    """total/divisor scaled to norm at most ``clip``; anything that is not a number becomes 0."""
    length = math.sqrt(np.vdot(total, total)) / divisor
    if not math.isfinite(length):
        return np.zeros_like(total)
    total *= min(1.0, clip / (length * (1 + 1e-12)) if length > 0 else 1.0) / divisor
    return total
