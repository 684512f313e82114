"""DP-SGD with per-sample clipping, for linear models.

    g_t = (1/(q n)) [ sum_{i in B_t} min(1, C/|g_i|) g_i + N(0, (nm C)^2 I) ]
    theta <- theta - eta_t g_t,   eta_t falls linearly to zero;  the last quarter is averaged

Abadi et al. 2016; the baseline of Das et al. 2023 in paper 4, which is ``FlatDescent.plain(...)``:
constant steps, and the average of all iterates. For a linear model |g_i| is |r_i| |(x_i, 1)|, so
clipping is a limit on the residual. The defaults take all records at each step up to 65,536 of
them: for a convex problem, large batches give the same signal for less noise. The number of steps
is (n mu)^2 / p, within 10..150: beyond it the noise of a step exceeds its signal.

Guarantee
---------
Per-sample bound C, whatever the features: no feature scaling is needed and none is done. One record
moves the sum by at most C (add/remove), 2C (replace).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import positive
from winsor.core.contract import Sensitivity
from winsor.core.prepaid import Receipt
from winsor.core.sampling.samplers import Sampler
from winsor.planning.budget import Payment
from winsor.planning.choose import planned_steps
from winsor.tables.descent import Schedule, Trail, descend
from winsor.tables.linear.batches import batch_sums, sampler_of
from winsor.tables.linear.task import LinearTask, Method, Session, Solution

Array = NDArray[np.float64]

WHOLE = 1 << 16  # up to this many records every step takes all of them
PROOF = "residuals limited row by row so that |g_i| <= C (Abadi et al. 2016, Alg. 1)"


@dataclass
class FlatDescent(Method):
    """Options of DP-SGD. None means the default described above; ``learning_rate`` then is
    2/(curvature C): 8/C for logistic, 2/C for squared and Huber losses. ``record`` keeps the answer
    every so many steps, in the estimator's ``trajectory_``."""

    max_grad_norm: float = 1.0
    batch_size: float | None = None
    steps: int | None = None
    epochs: float | None = None
    learning_rate: float | None = None
    decay: bool = True
    tail: float = 0.25
    radius: float | None = None
    cautious: bool = True
    record: int | None = None

    continues = True

    @classmethod
    def plain(cls, max_grad_norm: float = 1.0, **options: Any) -> FlatDescent:
        """Return options with constant steps and the average of all iterates: the baseline of the
        tables."""
        return cls(max_grad_norm, decay=False, tail=1.0, cautious=False, **options)

    def solve(self, task: LinearTask, session: Session) -> Solution:
        """Descend on sums of per-sample clipped gradients."""
        bound = positive("max_grad_norm", self.max_grad_norm)
        self._check("batch_size", "learning_rate", "radius")
        positive("tail", self.tail)
        trail = Trail(self.record)
        sampler = sampler_of(task.n, self.batch_size or min(task.n, WHOLE))
        signal = (task.n * session.yardstick(task.n)) ** 2 / task.parameters
        default = int(min(150, max(10, signal)) / sampler.rate)
        steps = planned_steps(self.epochs, self.steps, sampler, default)
        rate = self.learning_rate or 2 / (task.curvature * bound)
        sensitivity = Sensitivity.per_sample(bound, PROOF)
        receipt = session.pay(Payment(sampler, sensitivity, steps), task.start.shape)
        gradient = clipped_gradients(task, sampler, bound, receipt, session.key)
        noise = receipt.std * task.parameters**0.5 / sampler.expected_size
        schedule = Schedule(
            steps,
            rate,
            task.alpha,
            self.radius,
            min(1.0, self.tail),
            self.decay,
            noise=noise if self.cautious else None,
        )
        theta = descend(task.start, gradient, schedule, task.design.intercept, trail)
        return Solution(theta, steps, trajectory=tuple(trail.points))


def clipped_gradients(
    task: LinearTask, sampler: Sampler, bound: float, receipt: Receipt, key: bytes
) -> Callable[[Array], Array]:
    """Return a function that releases the next step's noisy mean of per-sample clipped
    gradients."""
    total = batch_sums(task, sampler, receipt, key, task.design.limits(bound))
    return lambda theta: receipt.release(total(theta)) / sampler.expected_size
