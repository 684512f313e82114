"""R-AClipped-dpSGD: run AClipped-dpSGD again and again from its own answer, clipping ever lower.

    x^(t+1) = AClipped-dpSGD(start x^(t), N0 steps, lambda_t, m_t),    t = 0 .. tau-1

Paper 4 (Jin et al. 2024), Algorithm 2 with Theorem 6, for strongly convex objectives (a ridge
penalty makes any of the losses so). By hand, lambda_t = lambda_0 2^(-t/2), the theorem's rate for
the distance to the optimum.

Guarantee
---------
All steps of all runs are composed in one account and paid for before the first draw; the paper
composes runs by advanced composition instead. Sensitivity 2 lambda_t as in `averaged.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from winsor.core.checks import whole
from winsor.core.contract import ConfigurationError, Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.planning.budget import Payment
from winsor.tables.linear.averaged import PROOF, AveragedDescent, aclip_problem, averaged_gradients
from winsor.tables.linear.batches import sampler_of
from winsor.tables.linear.descent import Schedule, Trail, descend
from winsor.tables.linear.options import Method
from winsor.tables.linear.task import LinearTask, Session, Solution
from winsor.tails.theorems import AclipProblem, RestartSchedule, aclip_restarts

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
    """How many of the theorem's runs fit into ``most_steps``: at most the theorem's own number.

    Every run halves the risk, so fewer runs are a shorter walk down the same bound: its first term
    is 2^-runs in place of 1/n.
    """
    plan = aclip_restarts(problem, alpha)
    return max(1, min(plan.runs, most_steps // plan.steps))


def affordable_alpha(problem: AclipProblem, alpha: float, runs: int, most_steps: int) -> float:
    """The smallest alpha, to two digits, at which ``runs`` runs fit into ``most_steps``."""
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
