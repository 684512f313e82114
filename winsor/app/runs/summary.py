"""Numbers over several runs: means with Student's 95 % interval, differences, the total epsilon.

And numbers as they are shown: a printed bound is rounded up, so that it is still a bound.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winsor.core.ledger.ledger import Ledger


@dataclass(frozen=True)
class Interval:
    """A mean over ``count`` runs; ``half`` is half the width of its 95 % interval, if any."""

    mean: float
    half: float | None
    count: int

    def __str__(self) -> str:
        if self.half is None:
            return f"{self.mean:.4g}"
        if self.half < 1e-9 * abs(self.mean):
            return f"{self.mean:.4g} ± 0"
        return f"{self.mean:.4g} ± {self.half:.2g}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def interval(values: Sequence[float]) -> Interval:
    """Student's 95 % interval of the mean of independent runs. One run has no interval.

    >>> print(interval([0.90, 0.92, 0.91]))
    0.91 ± 0.025
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, None, len(values))
    from scipy.special import stdtrit  # here: a list of tables needs no scipy

    quantile = float(stdtrit(len(values) - 1, 0.975))
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, half, len(values))


def share_interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of ``count`` independent rows.

    >>> low, high = share_interval(0.9, 100)
    >>> round(low, 3), round(high, 3)
    (0.826, 0.945)
    """
    z = statistics.NormalDist().inv_cdf(0.975)
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    spread = math.sqrt(max(0.0, share * (1 - share)) / count + z * z / (4 * count**2))
    half = z * spread / (1 + z * z / count)
    return max(0.0, centre - half), min(1.0, centre + half)


def paired_difference(ours: dict[int, float], theirs: dict[int, float]) -> Interval | None:
    """Mean difference over the seeds that both have: the same start, so less spread."""
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    return interval([ours[seed] - theirs[seed] for seed in common])


def rounded_up(value: float, digits: int = 3) -> str:
    """Print the smallest number of ``digits`` significant digits that is not below ``value``.

    >>> rounded_up(3.5849), rounded_up(3.0), rounded_up(0.00012341), rounded_up(1234.5)
    ('3.59', '3.00', '0.000124', '1240')
    """
    if not math.isfinite(value):
        return "infinite"
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(value))
    if rounded == 0:
        return "0"
    places = max(0, digits - 1 - rounded.adjusted())
    return f"{rounded:.{places}f}"


# ------------------------------------------------------------------------------------ several runs

Metrics = Sequence[tuple[int, Mapping[str, float]]]
"""(seed, held-out metrics) of each run of a variant."""


def compared(
    runs: Metrics, baseline: Metrics | None
) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """Each metric's mean over the seeds, and its difference from the baseline, seed by seed."""
    metrics, differences = {}, {}
    for name in dict.fromkeys(name for _, found in runs for name in found):
        metrics[name] = interval([found[name] for _, found in runs if name in found])
        difference = paired_difference(_by_seed(runs, name), _by_seed(baseline or (), name))
        if difference is not None:
            differences[name] = difference
    return metrics, differences


def _by_seed(runs: Metrics, name: str) -> dict[int, float]:
    return {seed: found[name] for seed, found in runs if name in found}


def summarise(results: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Mean and interval of every metric for each variant, and differences from the first."""
    held_out = {
        label: [(seed, run["held_out"]) for seed, run in runs.items()]
        for label, runs in results.items()
    }
    first = next(iter(results))
    summary: dict[str, Any] = {"baseline": first, "variants": {}}
    for label, runs in results.items():
        baseline = None if label == first else held_out[first]
        metrics, differences = compared(held_out[label], baseline)
        summary["variants"][label] = {
            "seeds": list(runs),
            "epsilon": max(run["epsilon"] for run in runs.values()),
            "delta": max(run["delta"] for run in runs.values()),
            "main_metric": next(iter(runs.values()))["main_metric"],
            "metrics": {name: found.to_json() for name, found in metrics.items()},
            "difference": {name: found.to_json() for name, found in differences.items()},
            "seconds": interval([run["seconds"] for run in runs.values()]).to_json(),
        }
    return summary


def total(
    ledgers: Sequence[Ledger], deltas: Sequence[float], relations: Sequence[str]
) -> dict[str, Any] | None:
    """What runs on the same rows have spent together, at the largest of their deltas.

    None if they do not share a relation: there is then no one number.
    """
    if len(set(relations)) != 1:
        return None
    from winsor.core.contract import Neighbouring
    from winsor.core.ledger.guarantee import guarantee  # here: a list of tables needs no accountant

    found = guarantee(ledgers, max(deltas), Neighbouring(relations[0]))
    return {"epsilon": found.epsilon, "delta": found.delta, "runs": len(ledgers)}
