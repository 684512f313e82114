"""Paper 2: the rate of the excess risk against n.

Theorems 4 and 7 bound the excess risk by sqrt(d/n) + sqrt(d) (sqrt(d)/(n epsilon))^(1-1/p), up to
logarithms; where privacy dominates, its slope in n is -(1 - 1/p). The bound is a minimax statement:
a fixed smooth problem has a smaller risk. So the risk is measured where the lower bound (Theorem 1)
puts it, on linear losses l(w, z) = -<w, z> over a ball of diameter 1, whose gradient -z has exactly
the tails of z, and as the worst case over the size of the signal |E z|:

    risk(n) = max_s  E[ s/2 - <w, s u> ],      z = s u + heavy-tailed noise with p moments

Five methods: simple clipping; one clipped mean with the whole budget and the minimiser of its loss,
which is what a practitioner would do here; iterative updating from a start outside the group means,
and from zero; and the geometric median of the same group means, which updates nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winsor.charts import Chart, Series
from winsor.charts.series import points_of
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.ledger.ledger import Ledger
from winsor.core.prepaid import PrepaidDoor
from winsor.core.randomness import new_key
from winsor.planning.budget import Target
from winsor.planning.shares import Session
from winsor.tables import Iterative, Simple, clipped_mean
from winsor.tables.design import row_norms
from winsor.tables.linear.task import LinearTask
from winsor.tails.datasets import moment_rows
from winsor_papers.reproductions.cells import Values, Wanted, cell
from winsor_papers.reproductions.sco.fixed_gradients import FixedDesign, moved
from winsor_papers.sco import Theorem3, Theorem7
from winsor_papers.theory import simple_clipping_radius

Array = NDArray[np.float64]

GROUPED: dict[str, dict[str, Any]] = {
    "iterative": {"start": "outside"},
    "iterative, from zero": {"start": "centre"},
    "geometric median": {"combine": "geometric_median"},
}
MEAN = "one clipped mean"
"""What a practitioner would do on this loss: the whole budget on one mean, then its minimiser."""
ONE_PASS = ("simple", MEAN)
METHODS = (*ONE_PASS, *GROUPED)


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
    updates: float | None = None
    """Updates per gradient, on average over all runs."""

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
    printed: bool = False
    """The noise of the paper: (12) for simple clipping, (27) with Theorem 6 for the others."""
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    """Of the certified runs; the paper's account is made for the replacement of a record."""

    def theorem(self, method: str) -> Theorem3 | Theorem7:
        """The paper's account of a run."""
        if method == "simple":
            return Theorem3(self.epsilon, self.delta, self.steps)
        return Theorem7(self.epsilon, self.delta, self.steps, self.groups)

    def target(self, method: str) -> Target:
        """epsilon under the relation; or the rho whose noise the paper prints."""
        if not self.printed:
            return Target(self.epsilon, self.delta, None, self.relation)
        account = self.theorem(method)
        rho = account.rho if isinstance(account, Theorem3) else account.steps * account.step_rho
        return Target(None, self.delta, rho, Neighbouring.REPLACE_ONE)


def risk_curve(method: str, p: float, experiment: RateExperiment | None = None) -> Curve:
    """The worst-case excess risk of one of `METHODS` at each n."""
    return risk_curves([(method, experiment or RateExperiment())], p)[0]


def risk_curves(runs: Sequence[tuple[str, RateExperiment]], p: float) -> list[Curve]:
    """The same for several methods and experiments of the same sizes, which share their rows."""
    for method, _ in runs:
        if method not in METHODS:
            raise ConfigurationError(f"method must be one of {METHODS}. Got {method!r} instead.")
    sizes = runs[0][1].sizes
    table = [[_risk_cell(method, p, n, setting) for method, setting in runs] for n in sizes]
    curves = []
    for (method, _), found in zip(runs, zip(*table, strict=True), strict=True):
        counted = [updates for _, updates in found if updates is not None]
        mean = sum(counted) / len(counted) if counted else None
        curves.append(Curve(method, p, sizes, tuple(risk for risk, _ in found), mean))
    return curves


def _risk_cell(
    method: str, p: float, n: int, setting: RateExperiment
) -> tuple[float, float | None]:
    """`_worst_risk` as a cell of the table."""

    def work() -> Values:
        risk, updates = _worst_risk(method, p, n, setting)
        return {"risk": risk, "updates": updates}

    same = {key: value for key, value in asdict(setting).items() if key != "sizes"}
    relation = setting.relation.name.lower()
    wanted = Wanted(
        f"{method}, n = {n:,}, d = {setting.d}, {setting.seeds} data sets, {setting.steps} steps",
        {**same, "relation": relation, "p": p},
        work,
        {"risk": 1.0 / n, "updates": None if method in ONE_PASS else 1.0},
    )
    found = cell(wanted)
    return found["risk"], found["updates"]


def _worst_risk(
    method: str, p: float, n: int, setting: RateExperiment
) -> tuple[float, float | None]:
    """The largest mean risk over the signals, and the updates per gradient."""
    target = setting.target(method)
    totals, updates = np.zeros(len(setting.signals)), []
    for seed in range(setting.first_seed, setting.first_seed + setting.seeds):
        # Fresh data and noise at every n: common random numbers would repeat the radius's formula.
        noise, squares, moment = _rows(n, setting.d, p, n + seed)
        # Both signs in turn: an estimator with a bias to one side must not gain by it.
        sign = 1 if seed % 2 else -1
        for position, signal in enumerate(setting.signals):
            key = new_key((n + seed) * len(setting.signals) + position)
            session = Session(PrepaidDoor(Ledger({}), target.relation, key), target, key)
            mu = session.yardstick(n)
            radius = simple_clipping_radius(p, moment, n, setting.d, 2 * mu**2)
            spread = radius * math.sqrt(setting.d) / (n * mu)
            if method not in ONE_PASS:
                spread *= math.sqrt(setting.groups)
            strength = signal * spread
            with moved(noise, squares, strength * sign) as norms:
                if method == MEAN:
                    theta = _minimiser(noise, p, moment, setting, key)
                else:
                    task = _task(FixedDesign(noise, norms), setting)
                    # eta = diameter/(G sqrt T) with G the size of a step's noisy gradient
                    root = math.sqrt(setting.steps)
                    rate = 1 / ((strength + spread * root) * root)
                    solution = _solver(method, radius, rate, setting).solve(task, session)
                    theta = solution.theta
                    if solution.updates is not None:
                        updates.append(solution.updates / setting.steps)
            totals[position] += strength * (0.5 - sign * theta[0])
    return float(totals.max() / setting.seeds), float(np.mean(updates)) if updates else None


@lru_cache(maxsize=2)
def _rows(n: int, d: int, p: float, seed: int) -> tuple[Array, Array, float]:
    """Rows without a mean, their squared norms, and M: the same for every method."""
    rows, _, moment = moment_rows(n, d, p, slack=0.2, seed=seed)
    return rows, row_norms(rows) ** 2, moment


def _task(design: FixedDesign, setting: RateExperiment) -> LinearTask:
    start = np.zeros(setting.d)
    return LinearTask(design, np.zeros(design.n), LinearLoss(), 0.0, start, row_bound=None)


def _minimiser(rows: Array, p: float, moment: float, setting: RateExperiment, key: bytes) -> Array:
    """Of the linear loss whose gradient is one clipped mean, over the ball."""
    target = setting.target(MEAN)
    mean = clipped_mean(
        rows,
        epsilon=target.epsilon,
        delta=target.delta,
        moments=(p, moment),
        relation=target.relation,
        random_state=key,
    ).estimate
    answer: Array = 0.5 * mean / max(float(np.linalg.norm(mean)), 1e-300)
    return answer


def _solver(method: str, clip: float, rate: float, setting: RateExperiment) -> Simple:
    if method == "simple":
        return Simple(clip, setting.steps, rate, radius=0.5)
    return Iterative(
        clip,
        setting.steps,
        rate,
        radius=0.5,
        groups=setting.groups,
        grouping="partition",
        **GROUPED[method],
    )


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
