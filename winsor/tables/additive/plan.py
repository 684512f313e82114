"""How one budget pays for everything a fit releases: shares in units of 1/multiplier^2.

All releases are Gaussian and of all rows, so that shares add up exactly: a part with the share w
and T releases has the multiplier nm sqrt(T / w), where nm is that of one release alone. The
accountant certifies the whole list, and the ledger records it line by line.

Where rows are so few that shapes would be noise (a decision made on n, the budget and the number of
columns alone), every shape is a line between the ends of a range: no masses, no pairs. The range is
looked for inside bounds too, which may be wide: in one round of a few cells, where all columns have
bounds. If rows are too few for histograms, a blunt look takes three times the share
(`winsor/tables/ranges/coarse.py`); where even that would show nothing, bounds are used as they are,
columns without are taken for standardised ones, and the look is at the values of the loss alone (a
target), unless their bounds are stated; a regression then learns its level alone, if lines would be
noise, and a classifier looks at a few of the columns and leaves out the others
(`winsor/tables/linear/looks.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from winsor.core.contract import Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment, Target, noise_multiplier
from winsor.tables.additive import knot_counts as masses
from winsor.tables.additive import pairs
from winsor.tables.linear import residual_cut
from winsor.tables.linear.looks import spread, visibility
from winsor.tables.ranges.binner import Bins
from winsor.tables.ranges.coarse import (
    affordable,
    enough,
    share_alone,
    share_of_one_round,
    share_of_ranges,
)

RANGES, MASSES, FIRST, THRESHOLD, PAIRS, LEVEL = 0.10, 0.02, 0.12, 0.01, 0.07, 0.02
"""Shares of the distributions of all columns, the masses of knots, the first descent (main effects
under a generous cut), the histogram of residuals, the choice of pairs, and the overall level. The
last descent gets the rest."""
FIRST_STEPS, LAST_STEPS = 60, 150
LEVEL_SEEN = 20.0
"""Rows over the noise of their number at which the overall level is looked at: with fewer, the
descent knows it better."""
MOST_ALONE = 0.5
"""Of the share of a look at the values of the loss alone."""
KNOT_BUDGET = 0.02
"""Noise of a prediction, over the spread of the target, that knots may cost if features are not
correlated: less than a thousandth of the variance."""
LINES = 0.5
"""With room for fewer knots per feature than this, shapes are lines: six knots, the fewest of a
shape that bends, would take twelve times that budget."""

_GRADIENT = Sensitivity.per_sample(1.0, "yardstick of a descent")


@dataclass(frozen=True)
class Part:
    """A line of the plan: so many releases with this share of the budget."""

    sensitivity: Sensitivity
    steps: int
    share: float


@dataclass(frozen=True)
class Plan:
    """The parts of a fit by name, and the multiplier of one release with the whole budget."""

    parts: dict[str, Part]
    multiplier: float
    bins: Bins
    lines: bool = False
    """Whether shapes are lines, for want of rows."""
    flat: bool = False
    """Whether there are none: a regression of so few rows that lines would be noise too."""
    used: tuple[int, ...] | None = None
    """The features that have lines, where rows are too few for all of them."""

    @staticmethod
    def of(bins: Bins, values: int, looks_for_pairs: bool, n: int, target: Target) -> Plan:
        """The last columns of ``bins`` are so many ``values`` of the loss, whose residuals then
        need a cut that is learnt."""
        mu = 1 / noise_multiplier([Payment(FullBatch(n), _GRADIENT, 1)], target)
        lines = KNOT_BUDGET * n * mu < LINES * bins.columns
        bins, share = _looks(bins, values, n, mu) if lines else (bins, RANGES)
        parts = {"first": Part(_GRADIENT, FIRST_STEPS, FIRST)}
        if share:
            ranges = bins.payment(n)
            parts["ranges"] = Part(ranges.sensitivity, ranges.steps, share)
        if not lines:
            parts["masses"] = Part(masses.sensitivity(1), 1, MASSES)
        if values:
            parts["threshold"] = Part(residual_cut.SENSITIVITY, 1, THRESHOLD)
        if values and math.sqrt(LEVEL) * n * mu > LEVEL_SEEN:
            parts["level"] = Part(_GRADIENT, 1, LEVEL)
        if looks_for_pairs and not lines:
            parts["pairs"] = Part(pairs.sensitivity(1, 1.0), 1, PAIRS)
        rest = 1.0 - math.fsum(part.share for part in parts.values())
        parts["last"] = Part(_GRADIENT, LAST_STEPS, rest)
        payments = [
            Payment(FullBatch(n), part.sensitivity, part.steps, math.sqrt(part.steps / part.share))
            for part in parts.values()
        ]
        unseen = bins.looked_at is not None and visibility(bins.columns, n, mu) < 1
        flat, used = (unseen, None) if values else (False, bins.looked_at)
        return Plan(parts, noise_multiplier(payments, target), bins, lines, flat, used)

    def mechanism(self, name: str) -> Gaussian:
        part = self.parts[name]
        return Gaussian(self.multiplier * math.sqrt(part.steps / part.share))

    def spent_on(self, name: str) -> float:
        """The multiplier of a part as if it were one release."""
        return self.multiplier / math.sqrt(self.parts[name].share)


def _looks(bins: Bins, values: int, n: int, mu: float) -> tuple[Bins, float]:
    """What is looked at for lines, and its share; zero if nothing is."""
    seen = visibility(bins.columns, n, mu) >= 1 or not values
    once = share_of_one_round(RANGES, n, bins.columns, mu) if bins.known and seen else None
    if once is not None:
        return replace(bins, inside=True), once
    if share_of_ranges(RANGES, n, bins.columns, mu) is not None:
        return replace(bins, inside=True), RANGES
    if enough(n, bins.columns, 3 * RANGES, mu):
        return replace(bins, coarse=True), 3 * RANGES
    if not values:
        some = _a_few(bins.columns, n, mu)
        return replace(bins, coarse=True, looked_at=some), 3 * RANGES if some else 0.0
    bins = replace(bins, looked_at=tuple(range(bins.columns - values, bins.columns)))
    share = share_of_ranges(RANGES, n, values, mu)
    if share is not None:
        return bins, share
    needed = bool(bins.unknown[bins.columns - values :].any())
    bins = replace(bins, coarse=True)
    return bins, min(share_alone(n, values, mu), MOST_ALONE) if needed else 0.0


def _a_few(features: int, n: int, mu: float) -> tuple[int, ...] | None:
    """The features of a classifier that get lines, if all of them would be noise."""
    most = affordable(n, 3 * RANGES, mu)
    few = visibility(features + 1, n, mu) < 2 and most > 0
    return tuple(spread(features, most).tolist()) if few else None
