"""DP-GD with smoothed truncation of every gradient coordinate: the baseline of Wang et al. 2020.

    hat g_j = (s/n) sum_i E_eta[ phi( g_ij (1 + eta)/s ) ],    eta ~ N(0, 1/b)
    phi(u) = u - u^3/6 for |u| <= sqrt 2,  2 sqrt 2/3 sign(u) beyond      (Catoni & Giulini 2017)
    theta <- Proj(theta - eta (hat g + noise)),   every record at every step

Wang, Xiao, Devadas & Xu, "On differentially private stochastic convex optimization with
heavy-tailed data", ICML 2020, with Holland's (2019) estimator. The expectation over eta has a
closed form in the normal distribution function; that correction is what makes the method slow.

Guarantee
---------
|phi| <= 2 sqrt 2/3, so a record moves each of the p coordinates of the sum by at most
2 sqrt 2 s/3, the vector by sqrt(p) times that; twice that when replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from winsor.core.arithmetic.rows import summed
from winsor.core.checks import positive, whole
from winsor.core.contract import Sensitivity
from winsor.core.prepaid import Receipt
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment
from winsor.tables.descent import Schedule, Trail, descend
from winsor.tables.design import DesignRows
from winsor.tables.linear.task import LinearTask, Method, Session, Solution

Array = NDArray[np.float64]

CEILING = 2 * math.sqrt(2) / 3
PROOF = "each of p coordinates is truncated to 2 sqrt 2 s/3 per record (Wang et al. 2020)"
_CHUNK = 1 << 18  # numbers; the correction needs about ten temporaries of this size


@dataclass
class RobustGD(Method):
    """Options of DP-GD. ``scale`` is s; None balances truncation bias v/s against the noise, with v
    the squared ``deviation`` of a coordinate. ``smoothing`` is b. ``record`` keeps the answer every
    so many steps."""

    scale: float | None = None
    smoothing: float = 1.0
    steps: int = 30
    learning_rate: float | None = None
    deviation: float | None = None
    radius: float | None = None
    record: int | None = None

    def solve(self, task: LinearTask, session: Session) -> Solution:
        """Descend on truncated mean gradients."""
        self._check("scale", "learning_rate", "deviation", "radius")
        smoothing = positive("smoothing", self.smoothing)
        steps = whole("steps", self.steps)
        trail = Trail(self.record)
        scale = self.scale or self._balanced(task, session, steps)
        rate = self.learning_rate or 1 / task.smoothness()
        bound = CEILING * scale * math.sqrt(task.parameters)
        sampler, sensitivity = FullBatch(task.n), Sensitivity.per_sample(bound, PROOF)
        receipt = session.pay(Payment(sampler, sensitivity, steps), task.start.shape)
        gradient = truncated_gradients(task, scale, smoothing, receipt)
        schedule = Schedule(steps, rate, task.alpha, self.radius)
        theta = descend(task.start, gradient, schedule, task.design.intercept, trail)
        return Solution(theta, steps, trajectory=tuple(trail.points))

    def _balanced(self, task: LinearTask, session: Session, steps: int) -> float:
        """s with v/s equal to the noise of a coordinate, CEILING sqrt(p T) s/(mu n)."""
        spread = self.deviation or task.deviation() / math.sqrt(task.parameters)
        noise = CEILING * math.sqrt(task.parameters * steps) / session.yardstick(task.n)
        return spread * math.sqrt(task.n / noise)


def truncated_gradients(
    task: LinearTask, scale: float, smoothing: float, receipt: Receipt
) -> Callable[[Array], Array]:
    """Return a function that releases the next noisy coordinate-wise truncated mean gradient."""

    def gradient(theta: Array) -> Array:
        def truncated(piece: slice, rows: DesignRows) -> Array:
            residual = task.loss.residual(rows.scores(theta), task.y[piece])
            return smoothed(rows.gradients(residual) / scale, smoothing).sum(axis=0)

        total = summed(truncated(*chunk) for chunk in task.design.chunks(_CHUNK))
        return receipt.release(total * scale) / task.n

    return gradient


def smoothed(u: Array, smoothing: float) -> Array:
    """Return E phi(u (1 + eta)), eta ~ N(0, 1/smoothing), elementwise; never beyond the ceiling.

    Catoni & Giulini 2017, with a = u and b = |u|/sqrt(smoothing):
    E phi(a + b Z) = a (1 - b^2/2) - a^3/6 + C(a, b), where C gathers the mass outside the cubic.
    """
    answer = np.zeros(u.size)
    picked = np.flatnonzero(u)  # indicators make most gradients of a table zero, and phi(0) = 0
    a = np.nan_to_num(u.ravel()[picked], nan=0.0, posinf=1e150, neginf=-1e150)
    answer[picked] = _smoothed(a, smoothing)
    return answer.reshape(u.shape)


def _smoothed(a: Array, smoothing: float) -> Array:
    """The same of finite numbers."""
    answer = np.sign(a) * CEILING * (2 * ndtr(math.sqrt(smoothing)) - 1)  # the limit |u| -> oo
    inside = (np.abs(a) < 1e3) & (a != 0)  # beyond, cubic and correction would cancel to noise
    answer[inside] = _cubic_mean(a[inside], smoothing)
    return np.clip(answer, -CEILING, CEILING)


def _cubic_mean(a: Array, smoothing: float) -> Array:
    b = np.maximum(np.abs(a) / math.sqrt(smoothing), 1e-150)
    low, high = (math.sqrt(2) - a) / b, (math.sqrt(2) + a) / b
    below, above = ndtr(-low), ndtr(-high)
    e_low, e_high = np.exp(-(low**2) / 2), np.exp(-(high**2) / 2)
    root = math.sqrt(2 * math.pi)
    cube = a * a * a / 6  # a power of three is ten times as slow as two products
    correction = CEILING * (below - above)
    correction -= (a - cube) * (below + above)
    correction += b / root * (1 - a**2 / 2) * (e_high - e_low)
    correction += a * b**2 / 2 * (above + below + (high * e_high + low * e_low) / root)
    correction += b * b * b / (6 * root) * ((2 + low**2) * e_low - (2 + high**2) * e_high)
    return a * (1 - b**2 / 2) - cube + correction
