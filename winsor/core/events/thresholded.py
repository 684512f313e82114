"""Gaussian counts of which only those above a threshold leave: the price of a private set union.

Counts of categories that hold a record of both neighbouring tables are one Gaussian release. A
category that only one of the tables has leaves with probability at most ``delta``, and otherwise
nobody sees that it was there: a mechanism that is (0, delta)-private, independent of the first.
Together they are dominated by the product of the two dominating pairs,

    loss = Gaussian loss + { infinite with probability delta, else 0 }.

Guarantee
---------
An upper bound for both directions and both relations (`winsor/tables/ranges/categories.py` has the
proof that a release is of this kind). Products of dominating pairs dominate adaptive compositions
(Zhu, Dong & Wang 2022, Theorem 10).
"""

from __future__ import annotations

import attr
from dp_accounting.dp_event import DpEvent
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from winsor.core.accounting import privacy_losses as losses
from winsor.core.contract import Neighbouring
from winsor.core.events.declared import event, positive, probability
from winsor.core.events.registry import Grid


def _pld(
    release: ThresholdedGaussianDpEvent, relation: Neighbouring, grid: Grid
) -> PrivacyLossDistribution:
    counts = losses.sampled_gaussian(1.0, release.noise_multiplier, grid, replace=False)
    return counts.compose(_shown(release.delta, grid))


def _shown(delta: float, grid: Grid) -> PrivacyLossDistribution:
    known = {0: 1.0 - delta}
    return PrivacyLossDistribution.create_from_rounded_probability(known, delta, grid.interval)


@event("thresholded gaussian", pld=_pld)
@attr.s(frozen=True, auto_attribs=True)
class ThresholdedGaussianDpEvent(DpEvent):
    """A Gaussian release, and a disclosure with probability ``delta``.

    >>> from winsor.core.accounting.spending import account
    >>> event = ThresholdedGaussianDpEvent(4.0, 5e-6)
    >>> 0.95 < account([(event, 1)], 1e-5).epsilon < 1.05
    True
    """

    noise_multiplier: float = positive()
    delta: float = probability()


@event("overflow", pld=lambda lost, relation, grid: _shown(lost.delta, grid))
@attr.s(frozen=True, auto_attribs=True)
class OverflowDpEvent(DpEvent):
    """Disclosure with probability ``delta``: more rows drawn than there are slots for."""

    delta: float = probability()
