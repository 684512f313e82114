"""How one budget pays for everything a fit releases, in shares (`winsor.planning.shares`).

Where rows are so few that shapes would be noise (a decision made on n, the budget and the number of
columns alone), every shape is a line between the ends of a range: no knots are counted and no pairs
chosen. `winsor.tables.ranges.plan` says what is looked at then: all columns, a few of those of a
classifier, or the target alone. A regression learns its level alone, if lines would be noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from winsor.core.contract import Sensitivity
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment, Target, noise_multiplier
from winsor.planning.shares import Part, Shares
from winsor.tables.additive import pairs
from winsor.tables.additive.terms import knot_sensitivity
from winsor.tables.linear import residual_cut
from winsor.tables.ranges.bins import Bins
from winsor.tables.ranges.plan import look_for_lines, visibility

RANGES, MASSES, FIRST, THRESHOLD, PAIRS, LEVEL = 0.10, 0.02, 0.12, 0.01, 0.07, 0.02
"""Shares of the distributions of all columns, the masses of knots, the first descent (main effects
under a generous cut), the histogram of residuals, the choice of pairs, and the overall level. The
last descent gets the rest."""
FIRST_STEPS, LAST_STEPS = 60, 150
LEVEL_SEEN = 20.0
"""Rows over the noise of their number at which the overall level is looked at: with fewer, the
descent knows it better."""
KNOT_BUDGET = 0.02
"""Noise of a prediction, over the spread of the target, that knots may cost if features are not
correlated: less than a thousandth of the variance."""
LINES = 0.5
"""With room for fewer knots per feature than this, shapes are lines: six knots, the fewest of a
shape that bends, would take twelve times that budget."""

_GRADIENT = Sensitivity.per_sample(1.0, "yardstick of a descent")


@dataclass(frozen=True)
class Plan:
    """What a fit releases: its parts, and what its shapes are."""

    shares: Shares
    bins: Bins
    lines: bool = False
    """Whether shapes are lines, for want of rows."""
    flat: bool = False
    """Whether there are none: a regression of so few rows that lines would be noise too."""
    used: tuple[int, ...] | None = None
    """The features that have lines, where rows are too few for all of them."""

    @staticmethod
    def of(bins: Bins, values: int, looks_for_pairs: bool, n: int, target: Target) -> Plan:
        """Plan a fit of ``n`` rows.

        The last columns of ``bins`` are the ``values`` of the loss; if there are any, the cut of
        residuals is learnt.
        """
        mu = 1 / noise_multiplier([Payment(FullBatch(n), _GRADIENT, 1)], target)
        lines = KNOT_BUDGET * n * mu < LINES * bins.columns
        bins, share = look_for_lines(bins, values, RANGES, n, mu) if lines else (bins, RANGES)
        parts = {"first": Part(_GRADIENT, FIRST_STEPS, FIRST)}
        if share:
            parts["ranges"] = Part(bins.zoom.sensitivity, bins.zoom.rounds, share)
        if not lines:
            parts["masses"] = Part(knot_sensitivity(1), 1, MASSES)
        if values:
            parts["threshold"] = Part(residual_cut.SENSITIVITY, 1, THRESHOLD)
        if values and math.sqrt(LEVEL) * n * mu > LEVEL_SEEN:
            parts["level"] = Part(_GRADIENT, 1, LEVEL)
        if looks_for_pairs and not lines:
            parts["pairs"] = Part(pairs.sensitivity(1, 1.0), 1, PAIRS)
        rest = 1.0 - math.fsum(part.share for part in parts.values())
        parts["last"] = Part(_GRADIENT, LAST_STEPS, rest)
        unseen = bins.looked_at is not None and visibility(bins.columns, n, mu) < 1
        flat, used = (unseen, None) if values else (False, bins.looked_at)
        return Plan(Shares.of(n, parts, target), bins, lines, flat, used)
