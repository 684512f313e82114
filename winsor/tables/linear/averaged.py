"""AClipped-dpSGD: clip the average of the batch once, then add noise; and its restarted form.

    a_t = (1/(q n)) sum_{i in B_t} g_i,    g_t = min(1, lambda/|a_t|) a_t + N(0, (2 nm lambda)^2 I)
    theta <- Proj(theta - gamma g_t),      the answer is the average of x^0 .. x^{N-1}

Paper 4 (Jin et al. 2024), Algorithm 1; lambda, m, gamma and N from Theorem 3 (constrained: a ball
of radius R about the origin), Theorem 4 (unconstrained) or Theorem 7 (Hoelder exponent below 1; 0
for losses with a kink), or by hand. `Restarted` is Algorithm 2 with Theorem 6, for strongly convex
objectives (a ridge penalty makes any of the losses so): runs of Algorithm 1, each from the answer
of the one before. By hand, lambda_t = lambda_0 2^(-t/2), the theorem's rate.

Guarantee
---------
The clipped average lies in a ball of radius lambda, and one record can carry it from any point of
that ball to any other: sensitivity 2 lambda, under both relations, and it does not shrink with the
batch. The paper accounts for lambda; its epsilon is published, not certified. Noise here is 2 q n
times that of per-sample clipping at C = lambda for equal epsilon: the method needs large budgets.
All steps of all runs are composed in one account and paid for before the first draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.core.arithmetic.rows import clip_rows
from winsor.core.checks import positive, whole
from winsor.core.contract import ConfigurationError, Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import Receipt
from winsor.core.sampling.samplers import Sampler
from winsor.planning.budget import Payment
from winsor.planning.choose import planned_steps
from winsor.tables.descent import Schedule, Trail, descend
from winsor.tables.linear.batches import batch_sums, sampler_of
from winsor.tables.linear.task import LinearTask, Method, Session, Solution
from winsor.tails.theorems import (
    AclipParameters,
    AclipProblem,
    RestartSchedule,
    aclip_constrained,
    aclip_holder,
    aclip_restarts,
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
        """Descend on clipped batch averages."""
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
        """Return nu: as given, else 1 for a smooth loss and 0 for one with a kink."""
        if self.exponent is not None:
            return self.exponent
        return 1.0 if math.isfinite(task.loss.curvature) else 0.0

    def _settled(self, task: LinearTask, session: Session) -> AclipParameters:
        """Parameters given by hand, the others from the theorem."""
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
        """Return lambda, m, gamma and N from the theorem that applies."""
        problem = aclip_problem(self, task, session)
        nu = self.smooth(task)
        if nu != 1:
            return aclip_holder(problem, nu, accuracy=self.accuracy, steps=self.steps)
        theorem = aclip_constrained if self.constrained else aclip_unconstrained
        return theorem(problem, self.steps)


def aclip_problem(options: AveragedDescent, task: LinearTask, session: Session) -> AclipProblem:
    """Return what the theorems ask about the problem: given, or from the public row bound."""
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
    """Return a function that releases the next step's noisy clipped batch average."""
    total = batch_sums(task, sampler, receipt, key)
    return lambda theta: receipt.release(into_ball(total(theta), sampler.expected_size, clip))


def into_ball(total: Array, divisor: float, clip: float) -> Array:
    """Return total/divisor scaled to norm at most ``clip``; anything that is not a number becomes
    0."""
    return clip_rows((total / divisor).reshape(1, -1), clip).reshape(total.shape)


MOST_STEPS = 200_000
AFFORDABLE = "affordable"


@dataclass
class Restarted(Method):
    """Options of R-AClipped-dpSGD: ``runs`` runs of ``steps`` steps.

    ``clip`` is lambda_0. With ``clip``, ``batch_size``, ``learning_rate`` and ``steps`` all given
    nothing is taken from Theorem 6; otherwise all of it is, and ``alpha`` of the estimator must be
    positive, for it is the strong convexity. The theorem's N0 is at least 768 L/mu ln N0: tens of
    thousands of steps. More than ``most_steps`` in all are refused, with what is affordable;
    ``runs="affordable"`` takes as many of the theorem's runs as fit (each halves the risk).
    ``record`` keeps the answer of the present run every so many steps.
    """

    runs: int | str | None = None
    clip: float | None = None
    batch_size: float | None = None
    learning_rate: float | None = None
    steps: int | None = None
    radius: float = 1.0
    deviation: float | None = None
    smoothness: float | None = None
    beta: float = 0.05
    most_steps: int = MOST_STEPS
    record: int | None = None

    def solve(self, task: LinearTask, session: Session) -> Solution:
        """Descend in runs, each from the answer of the one before."""
        plan = self._plan(task, session)
        lines = [
            Payment(sampler_of(task.n, size), Sensitivity.of_range(clip, PROOF), plan.steps)
            for clip, size in zip(plan.clips, plan.batch_sizes, strict=True)
        ]
        mechanism = Gaussian(session.multiplier(lines))
        receipts = [
            session.door.pay(
                mechanism, line.sampler, line.sensitivity, line.steps, task.start.shape
            )
            for line in lines
        ]
        schedule = Schedule(plan.steps, plan.step_size, task.alpha, before=True)
        theta, trail = task.start, Trail(self.record)
        for line, clip, receipt in zip(lines, plan.clips, receipts, strict=True):
            gradient = averaged_gradients(task, line.sampler, clip, receipt, session.key)
            theta = descend(theta, gradient, schedule, task.design.intercept, trail)
        return Solution(theta, plan.steps * len(lines), trajectory=tuple(trail.points))

    def _plan(self, task: LinearTask, session: Session) -> RestartSchedule:
        self._check("clip", "batch_size", "learning_rate", "radius", "deviation", "smoothness")
        runs = None if self.runs in (None, AFFORDABLE) else whole("runs", self.runs)
        by_hand = (self.clip, self.batch_size, self.learning_rate, self.steps)
        if self.clip and self.batch_size and self.learning_rate and self.steps:
            count = runs or 4
            return RestartSchedule(
                runs=count,
                steps=whole("steps", self.steps),
                step_size=self.learning_rate,
                clips=tuple(self.clip * 2 ** (-t / 2) for t in range(count)),
                batch_sizes=(self.batch_size,) * count,
                epsilon_per_run=float("nan"),
                delta_per_run=float("nan"),
            )
        if any(value is not None for value in by_hand):
            raise ConfigurationError(
                "clip, batch_size, learning_rate and steps must be given together, or none of them "
                f"(then Theorem 6 gives all). Got {by_hand!r} instead."
            )
        if task.alpha <= 0:
            raise ConfigurationError(
                "alpha must be positive for Theorem 6, which needs strong convexity. Got "
                f"{task.alpha!r} instead. Add a ridge penalty, or give the parameters by hand."
            )
        options = AveragedDescent(
            radius=self.radius,
            deviation=self.deviation,
            smoothness=self.smoothness,
            exponent=1.0,
            beta=self.beta,
        )
        problem = aclip_problem(options, task, session)
        problem = problem._replace(smoothness=problem.smoothness + task.alpha)
        most = whole("most_steps", self.most_steps)
        if self.runs == AFFORDABLE:
            runs = affordable_runs(problem, task.alpha, most)
        plan = aclip_restarts(problem, task.alpha, runs)
        if plan.runs * plan.steps > most:
            raise ConfigurationError(_too_long(problem, task.alpha, plan, most))
        return plan


def affordable_runs(problem: AclipProblem, alpha: float, most_steps: int) -> int:
    """Return how many of the theorem's runs fit into ``most_steps``: at most the theorem's own
    number.

    Every run halves the risk, so fewer runs are a shorter walk down the same bound: its first term
    is 2^-runs in place of 1/n.
    """
    plan = aclip_restarts(problem, alpha)
    return max(1, min(plan.runs, most_steps // plan.steps))


def affordable_alpha(problem: AclipProblem, alpha: float, runs: int, most_steps: int) -> float:
    """Return the smallest alpha, to two digits, at which ``runs`` runs fit into ``most_steps``."""
    base = problem.smoothness - alpha
    low, high = alpha, max(1.0, alpha)

    def steps(candidate: float) -> int:
        changed = problem._replace(smoothness=base + candidate)
        return runs * aclip_restarts(changed, candidate, runs).steps

    while steps(high) > most_steps:
        low, high = high, 2 * high
        if high > 1e12:
            return math.inf
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if steps(middle) > most_steps else (low, middle)
    return high


def _too_long(problem: AclipProblem, alpha: float, plan: RestartSchedule, most: int) -> str:
    """What was asked for, and everything that is affordable instead."""
    total = plan.runs * plan.steps
    fitting = most // plan.steps
    offers = [f"most_steps={total} for all of it"]
    if fitting:
        offers.append(f'runs={fitting}, or runs="{AFFORDABLE}", which is what fits')
    enough = affordable_alpha(problem, alpha, plan.runs, most)
    if math.isfinite(enough):
        offers.append(f"alpha={enough:.2g} or more")
    return (
        f"alpha must be large enough for Theorem 6 within {most} steps. Got alpha={alpha!r}, which "
        f"asks for {plan.runs} runs of {plan.steps} steps, {total} in all, instead. Affordable: "
        f"{'; '.join(offers)}; or clip, batch_size, learning_rate and steps by hand."
    )
