"""Several metrics of the same rows in one Gaussian release, paid for once.

Metric j is a sum with bound B_j and gets the share w_j of the budget, sum_j w_j = 1. What leaves is
the vector of all (sqrt(w_j) / B_j) sum_j, which one row moves by at most 1, with noise nm on every
entry: metric j carries noise of nm B_j / sqrt(w_j).

Guarantee
---------
One `GaussianDpEvent` in the ledger, written before the noise is drawn. The number of rows is public
(as everywhere in winsor where a mean is divided by n); sizes of groups are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import ArrayLike

from winsor.checks import as_delta, as_relation, positive, probability
from winsor.contract import Bounded, ConfigurationError, Guarantee, Neighbouring, Sensitivity
from winsor.ledger.ledger import Ledger
from winsor.mechanisms.gaussian import Gaussian
from winsor.metrics.metric import Array, Columns, Metric, Size
from winsor.release import budget
from winsor.release.inputs import as_key
from winsor.release.prepaid import PrepaidDoor
from winsor.sampling.samplers import FullBatch

_ROUNDING = 1 + 1e-9  # float64 sums of a million bounded rows err by far less


@dataclass(frozen=True)
class Measurement:
    """Estimates by name, and what they cost together."""

    estimates: Mapping[str, Any]
    guarantee: Guarantee
    ledger: Ledger = field(repr=False)
    noise_std: Mapping[str, float] = field(repr=False)
    """Standard deviation of the noise on every entry of each metric's sum."""

    def __getitem__(self, name: str) -> Any:
        return self.estimates[name]


def measure(
    metrics: Metric | Mapping[str, Metric],
    *,
    targets: ArrayLike | None = None,
    predictions: ArrayLike | None = None,
    scores: ArrayLike | None = None,
    losses: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    shares: Mapping[str, float] | None = None,
    level: float = 0.95,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    random_state: int | bytes | None = None,
    ledger: Ledger | None = None,
    allow_large_delta: bool = False,
) -> Measurement:
    """Measure ``metrics`` on private rows.

    Parameters
    ----------
    metrics
        One metric, or several by name.
    targets, predictions, scores, losses, groups
        One value per private row, as the metrics need them.
    epsilon, delta, noise_multiplier
        The budget of this release: ``epsilon`` at ``delta``, or the noise multiplier itself (for a
        score inside a trial, whose budget is that of the trial).
    shares
        How the budget is divided among the metrics (default: equally). They add up to 1.
    level
        Confidence level of the intervals.
    ledger
        Where to write; the guarantee is that of the whole ledger. A new one by default.

    Examples
    --------
    >>> import numpy as np
    >>> from winsor.metrics import Accuracy
    >>> truth = np.arange(10_000) % 2
    >>> found = measure(
    ...     Accuracy(), targets=truth, predictions=np.zeros(10_000), epsilon=1.0, random_state=0
    ... )
    >>> accuracy = found["Accuracy"]
    >>> bool(accuracy.low < 0.5 < accuracy.high), round(accuracy.high - accuracy.low, 3)
    (True, 0.02)
    """
    columns = Columns.of(
        targets=targets, predictions=predictions, scores=scores, losses=losses, groups=groups
    )
    return measure_sums(
        metrics,
        lambda named: (columns.n, totals_of(named, columns)),
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        shares=shares,
        level=level,
        relation=relation,
        random_state=random_state,
        ledger=ledger,
        allow_large_delta=allow_large_delta,
    )


def totals_of(named: Mapping[str, Metric], columns: Columns) -> Array:
    """The sums of all metrics, one after the other."""
    return np.concatenate([metric.total(columns) for metric in named.values()])


def measure_sums(
    metrics: Metric | Mapping[str, Metric],
    summed: Callable[[Mapping[str, Metric]], tuple[int, Array]],
    *,
    epsilon: float | None,
    delta: float | None,
    noise_multiplier: float | None,
    shares: Mapping[str, float] | None,
    level: float,
    relation: str | Neighbouring,
    random_state: int | bytes | None,
    ledger: Ledger | None,
    allow_large_delta: bool,
) -> Measurement:
    """`measure` where rows are out of reach: ``summed`` says how many there are, and what
    `totals_of` would of them all."""
    named = _named(metrics)
    probability("level", level)
    weights = _shares(named, shares)
    n, totals = summed(named)
    related = as_relation(relation)
    certified = as_delta(delta, n, allow_large_delta)
    sensitivity = _sensitivity(named, weights)
    sampler = FullBatch(n)
    if (epsilon is None) == (noise_multiplier is None):
        raise ConfigurationError(
            f"give either epsilon or noise_multiplier. Got epsilon={epsilon!r}, "
            f"noise_multiplier={noise_multiplier!r} instead."
        )
    if noise_multiplier is None:
        target = budget.Target(epsilon, certified, None, related)
        payment = budget.Payment(sampler, sensitivity, 1)
        noise_multiplier = budget.noise_multiplier([payment], target)
    if ledger is not None and "rows_per_unit" in ledger.config:
        raise ConfigurationError(
            "ledger must be one of rows. Got that of a run with unit=... instead: a metric bounds "
            "what one row adds, and a person has several. Measure on public rows."
        )
    factors = {name: math.sqrt(weights[name]) / (m.bound * _ROUNDING) for name, m in named.items()}
    widths = [metric.width for metric in named.values()]
    value = np.repeat(list(factors.values()), widths) * totals
    book = Ledger({"method": "metrics", "n": n}) if ledger is None else ledger
    door = PrepaidDoor(book, related, as_key(random_state, value, noise_multiplier))
    noise = Gaussian(positive("noise_multiplier", noise_multiplier))
    receipt = door.pay(noise, sampler, sensitivity, 1, value.shape)
    released = receipt.release(value)
    return Measurement(
        estimates=_read(named, factors, released, receipt.std, n, level),
        guarantee=door.guarantee(certified, (f"n = {n} is public",)),
        ledger=book,
        noise_std={name: receipt.std / factor for name, factor in factors.items()},
    )


def event_of(
    metrics: Metric | Mapping[str, Metric],
    noise_multiplier: float,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    shares: Mapping[str, float] | None = None,
) -> DpEvent:
    """What a `measure` with this ``noise_multiplier`` will write to its ledger.

    >>> from winsor.metrics import Accuracy
    >>> event_of(Accuracy(), 20.0)
    GaussianDpEvent(noise_multiplier=20.0)
    """
    named = _named(metrics)
    parts = {"value": Bounded(None, _sensitivity(named, _shares(named, shares)))}
    return FullBatch(1).amplify(Gaussian(noise_multiplier).event(parts), as_relation(relation))


def _named(metrics: Metric | Mapping[str, Metric]) -> dict[str, Metric]:
    return {type(metrics).__name__: metrics} if isinstance(metrics, Metric) else dict(metrics)


def _read(
    named: Mapping[str, Metric],
    factors: Mapping[str, float],
    released: Array,
    std: float,
    n: int,
    level: float,
) -> dict[str, Any]:
    found, start = {}, 0
    for name, metric in named.items():
        part = released[start : start + metric.width] / factors[name]
        start += metric.width
        found[name] = metric.read(part, std / factors[name], Size(float(n)), level)
    return found


def _shares(named: Mapping[str, Metric], shares: Mapping[str, float] | None) -> dict[str, float]:
    for metric in named.values():
        if not isinstance(metric, Metric):
            raise ConfigurationError(
                f"metrics must be metrics of winsor.metrics, by name. Got {metric!r} instead."
            )
    if not named:
        raise ConfigurationError("metrics must name at least one. Got none instead.")
    if shares is None:
        return dict.fromkeys(named, 1 / len(named))
    if set(shares) != set(named):
        raise ConfigurationError(
            f"shares must be given for {sorted(named)}. Got {sorted(shares)} instead."
        )
    weights = {name: positive(f"share of {name}", share) for name, share in shares.items()}
    if not math.isclose(math.fsum(weights.values()), 1.0, rel_tol=1e-9):
        raise ConfigurationError(
            f"shares must add up to 1. Got {math.fsum(weights.values())!r} instead."
        )
    return weights


def _sensitivity(named: Mapping[str, Metric], weights: Mapping[str, float]) -> Sensitivity:
    ratios = [weights[name] * (m.replace / m.bound) ** 2 for name, m in named.items()]
    proof = "; ".join(dict.fromkeys(metric.proof for metric in named.values()))
    return Sensitivity(1.0, math.sqrt(math.fsum(ratios)), proof)
