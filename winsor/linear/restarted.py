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

from dataclasses import dataclass

from winsor.checks import whole
from winsor.contract import ConfigurationError, Sensitivity
from winsor.linear.averaged import PROOF, AveragedDescent, aclip_problem, averaged_gradients
from winsor.linear.batches import sampler_of
from winsor.linear.descent import Schedule, descend
from winsor.linear.options import Method
from winsor.linear.task import LinearTask, Session, Solution
from winsor.means.budget import Payment
from winsor.mechanisms.gaussian import Gaussian
from winsor.theory import RestartSchedule, aclip_restarts

MOST_STEPS = 200_000


@dataclass
class Restarted(Method):
    """Options of R-AClipped-dpSGD: ``runs`` runs of ``steps`` steps.

    ``clip`` is lambda_0. With ``clip``, ``batch_size``, ``learning_rate`` and ``steps`` all given
    nothing is taken from Theorem 6; otherwise all of it is, and ``alpha`` of the estimator must be
    positive, for it is the strong convexity. The theorem's N0 is at least 768 L/mu ln N0: tens of
    thousands of steps.
    """

    runs: int | None = None
    clip: float | None = None
    batch_size: float | None = None
    learning_rate: float | None = None
    steps: int | None = None
    radius: float = 1.0
    deviation: float | None = None
    smoothness: float | None = None
    beta: float = 0.05

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
        theta = task.start
        for line, clip, receipt in zip(lines, plan.clips, receipts, strict=True):
            gradient = averaged_gradients(task, line.sampler, clip, receipt, session.key)
            theta = descend(theta, gradient, schedule, task.design.intercept)
        return Solution(theta, plan.steps * len(lines))

    def _plan(self, task: LinearTask, session: Session) -> RestartSchedule:
        self._check("clip", "batch_size", "learning_rate", "radius", "deviation", "smoothness")
        runs = None if self.runs is None else whole("runs", self.runs)
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
            beta=self.beta,
        )
        problem = aclip_problem(options, task, session)
        problem = problem._replace(smoothness=problem.smoothness + task.alpha)
        plan = aclip_restarts(problem, task.alpha, runs)
        if plan.runs * plan.steps > MOST_STEPS:
            raise ConfigurationError(
                f"alpha must be large enough for a practical Theorem 6. Got alpha={task.alpha!r}, "
                f"which asks for {plan.runs} runs of {plan.steps} steps. Raise alpha, or give "
                "clip, batch_size, learning_rate and steps by hand."
            )
        return plan
