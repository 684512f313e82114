"""Paper 2: the rate of the excess risk against n.

Theorems 4 and 7 bound the excess risk by sqrt(d/n) + sqrt(d) (sqrt(d)/(n epsilon))^(1-1/p), up to
logarithms; where privacy dominates, its slope in n is -(1 - 1/p). The bound is a minimax statement:
a fixed smooth problem has a smaller risk. So the risk is measured where the lower bound (Theorem 1)
puts it, on linear losses l(w, z) = -<w, z> over a ball of diameter 1, whose gradient -z has exactly
the tails of z, and as the worst case over the size of the signal |E z|:

    risk(n) = max_s  E[ s/2 - <w, s u> ],      z = s u + heavy-tailed noise with p moments
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.charts import Chart, Series
from winsor.charts.series import points_of
from winsor.contract import ConfigurationError, Neighbouring
from winsor.data import moment_rows
from winsor.grads.glm import Design
from winsor.ledger.ledger import Ledger
from winsor.linear import Iterative, Simple
from winsor.linear.task import LinearTask, Session
from winsor.means.budget import Target
from winsor.randomness import new_key
from winsor.release.prepaid import PrepaidDoor
from winsor.theory import simple_clipping_radius

Array = NDArray[np.float64]


class LinearLoss:
    """-z: the loss of the lower bound. Its gradient is the row itself, at every w."""

    outputs, curvature, slope = 1, 0.0, 1.0

    def value(self, scores: Array, y: Array) -> Array:
        return -scores

    def residual(self, scores: Array, y: Array) -> Array:
        return np.full_like(scores, -1.0)


@dataclass(frozen=True)
class Curve:
    """Worst-case excess risk of one method against n."""

    method: str
    p: float
    sizes: tuple[int, ...]
    risks: tuple[float, ...]

    @property
    def slope(self) -> float:
        return float(np.polyfit(np.log(self.sizes), np.log(self.risks), 1)[0])

    @property
    def theory(self) -> float:
        return -(1 - 1 / self.p)


@dataclass(frozen=True)
class RateExperiment:
    """Which problem, budget and repetitions; the defaults are in the privacy-dominated regime."""

    d: int = 3
    epsilon: float = 0.05
    delta: float = 1e-6
    sizes: tuple[int, ...] = (4000, 16000, 64000)
    steps: int = 20
    groups: int = 10
    seeds: int = 10
    first_seed: int = 0
    """Experiments that differ here by ``seeds`` or more are independent of each other."""
    signals: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    """Sizes of the mean, in units of the noise on the mean gradient."""


def risk_curve(method: str, p: float, experiment: RateExperiment | None = None) -> Curve:
    """The worst-case excess risk of ``"simple"`` or ``"iterative"`` at each n."""
    setting = experiment or RateExperiment()
    if method not in ("simple", "iterative"):
        raise ConfigurationError(f'method must be "simple" or "iterative". Got {method!r} instead.')
    risks = [_worst_risk(method, p, n, setting) for n in setting.sizes]
    return Curve(method, p, setting.sizes, tuple(risks))


def _worst_risk(method: str, p: float, n: int, setting: RateExperiment) -> float:
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    target = Target(setting.epsilon, setting.delta, None, relation)
    direction = np.zeros(setting.d)
    direction[0] = 1.0
    totals = np.zeros(len(setting.signals))
    for seed in range(setting.first_seed, setting.first_seed + setting.seeds):
        # Fresh data and noise at every n: common random numbers would repeat the radius's formula.
        noise, _, moment = moment_rows(n, setting.d, p, slack=0.2, seed=n + seed)
        for position, signal in enumerate(setting.signals):
            key = new_key((n + seed) * len(setting.signals) + position)
            session = Session(PrepaidDoor(Ledger({}), relation, key), target, key)
            mu = session.yardstick(n)
            radius = simple_clipping_radius(p, moment, n, setting.d, 2 * mu**2)
            spread = radius * math.sqrt(setting.d) / (n * mu)
            if method == "iterative":
                spread *= math.sqrt(setting.groups)
            strength = signal * spread
            design = Design(noise + strength * direction, intercept=False)
            task = LinearTask(
                design, np.zeros(n), LinearLoss(), 0.0, np.zeros(setting.d), row_bound=None
            )
            # eta = diameter/(G sqrt T) with G the size of a step's noisy gradient
            rate = 1 / ((strength + spread * math.sqrt(setting.steps)) * math.sqrt(setting.steps))
            solver = Simple(radius, setting.steps, rate, radius=0.5)
            if method == "iterative":
                solver = Iterative(
                    radius,
                    setting.steps,
                    rate,
                    radius=0.5,
                    groups=setting.groups,
                    grouping="partition",
                )
            answer = solver.solve(task, session).theta
            totals[position] += strength * (0.5 - answer @ direction)
    return float(totals.max() / setting.seeds)


def figure(curves: list[Curve]) -> Chart:
    """Log-log plot of the curves, each with a line of the theory's slope through its middle."""
    series = []
    for colour, curve in enumerate(curves):
        sizes, risks = np.array(curve.sizes, dtype=float), np.array(curve.risks)
        middle = np.exp(np.log(risks).mean() - curve.theory * np.log(sizes).mean())
        label = f"{curve.method}, p = {curve.p:g}"
        line = points_of(sizes, middle * sizes**curve.theory)
        series += [
            Series(label, points_of(sizes, risks), colour=colour, markers=True),
            Series(f"slope {curve.theory:.3g}", line, colour=colour, dashed=True),
        ]
    return Chart(
        key="rates",
        title="Worst-case excess risk",
        x_label="n",
        y_label="excess risk",
        series=tuple(series),
        log_x=True,
        log_y=True,
    )
