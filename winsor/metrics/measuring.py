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
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict, Unpack

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import ArrayLike

from winsor.core.arithmetic.rows import quiet
from winsor.core.checks import as_delta, as_relation, positive, probability, refuse_unknown
from winsor.core.contract import Bounded, ConfigurationError, Guarantee, Neighbouring, Sensitivity
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.randomness import key_for
from winsor.core.sampling.samplers import FullBatch
from winsor.metrics.metric import Array, Columns, Metric, Size
from winsor.planning.budget import Payment
from winsor.planning.shares import noise_of, single_payment


@dataclass(frozen=True)
class Measurement:
    """Estimates by name, and what they cost together."""

    estimates: Mapping[str, Any]
    guarantee: Guarantee
    ledger: Ledger = field(repr=False)
    noise_std: Mapping[str, float] = field(repr=False)
    """Standard deviation of the noise on every entry of each metric's sum."""

    def __getitem__(self, name: str) -> Any:
        """Return the estimate of one metric."""
        return self.estimates[name]


class Terms(TypedDict, total=False):
    """What a measurement may spend, and how it is reported: the same wherever the rows are."""

    epsilon: float | None  # the budget of this release; or give noise_multiplier
    delta: float | None  # default: 1e-5, or 1/(2n) if that is smaller
    noise_multiplier: float | None  # for a score inside a trial, whose budget is the trial's
    shares: Mapping[str, float] | None  # of the budget, by metric, adding up to 1; default: equal
    level: float  # of the confidence intervals; default 0.95
    relation: str | Neighbouring  # "add_or_remove_one" (default) or "replace_one"
    random_state: int | bytes | None  # reproducible, hence not secret; default: a fresh secret key
    ledger: Ledger | None  # where to write; the guarantee is that of all of it. Default: a new one
    allow_large_delta: bool  # accept delta >= 1/n


def measure(
    metrics: Metric | Mapping[str, Metric],
    *,
    targets: ArrayLike | None = None,
    predictions: ArrayLike | None = None,
    scores: ArrayLike | None = None,
    losses: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    **terms: Unpack[Terms],
) -> Measurement:
    """Measure ``metrics`` on private rows.

    Parameters
    ----------
    metrics
        One metric, or several by name.
    targets, predictions, scores, losses, groups
        One value per private row, as the metrics need them.
    **terms
        See `Terms`: ``epsilon`` at ``delta`` or ``noise_multiplier``, and the rest. An unknown name
        is refused.

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
    refuse_unknown(
        "measure", terms, (*(f.name for f in fields(Columns)), *Terms.__annotations__), {}
    )
    columns = Columns.of(
        targets=targets, predictions=predictions, scores=scores, losses=losses, groups=groups
    )
    return measure_sums(metrics, lambda named: (columns.n, totals_of(named, columns)), **terms)


def totals_of(named: Mapping[str, Metric], columns: Columns) -> Array:
    """Return the sums of all metrics, one after the other."""
    return np.concatenate([metric.total(columns) for metric in named.values()])


@quiet
def measure_sums(
    metrics: Metric | Mapping[str, Metric],
    summed: Callable[[Mapping[str, Metric]], tuple[int, Array]],
    **terms: Unpack[Terms],
) -> Measurement:
    """Measure where rows are out of reach: ``summed`` says how many there are, and what
    `totals_of` would of them all."""
    refuse_unknown("measure", terms, Terms.__annotations__, {})
    named = _named(metrics)
    level = probability("level", terms.get("level", 0.95))
    weights = _shares(named, terms.get("shares"))
    book = terms.get("ledger")
    _refuse_units(book)
    n, totals = summed(named)
    certified = as_delta(terms.get("delta"), n, terms.get("allow_large_delta", False))
    related = as_relation(terms.get("relation", Neighbouring.ADD_OR_REMOVE_ONE))
    plan = Payment(FullBatch(n), _sensitivity(named, weights), 1)
    stated = terms.get("epsilon"), terms.get("noise_multiplier")
    multiplier = noise_of(plan, *stated, certified, related)
    factors = {name: math.sqrt(weights[name]) / m.bound for name, m in named.items()}
    value = np.repeat(list(factors.values()), [metric.width for metric in named.values()]) * totals
    book = Ledger({"method": "metrics", "n": n}) if book is None else book
    key = key_for(terms.get("random_state"), None, value, multiplier)
    door, receipt = single_payment(plan, value.shape, multiplier, related, key, book)
    released = receipt.release(value)
    return Measurement(
        estimates=_read(named, factors, released, receipt.std, n, level),
        guarantee=door.guarantee(certified, (f"n = {n} is public",)),
        ledger=book,
        noise_std={name: receipt.std / factor for name, factor in factors.items()},
    )


def _refuse_units(ledger: Ledger | None) -> None:
    if ledger is not None and ledger.about["unit"] != "row":
        raise ConfigurationError(
            "ledger must be one of rows. Got that of a run with unit=... instead: a metric bounds "
            "what one row adds, and a person has several. Measure on public rows."
        )


def event_of(
    metrics: Metric | Mapping[str, Metric],
    noise_multiplier: float,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    shares: Mapping[str, float] | None = None,
) -> DpEvent:
    """Return what a `measure` with this ``noise_multiplier`` will write to its ledger.

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
