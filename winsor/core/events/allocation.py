"""Random allocation: in every epoch each row goes to one of t steps, by a coin of its own.

Seen from one row, an epoch of t releases with Gaussian noise of multiplier s is dominated by

    P = (1/t) sum_i N(e_i, s^2 I_t)    against    Q = N(0, s^2 I_t),

in both directions, however each step adapts to the ones before: given the other rows' coins, the
release of step i is made from the i-th coordinate, without knowing where the row went, by scaling
it and by adding what is missing of the noise. The density ratio is a mean of t log-normals; its
law comes from `lognormal`. Epochs compose like any events.

One `AllocationDpEvent` is a **whole epoch**. The same event with t = 1 is plain Gaussian noise:
what a loader that shows each row once in an order fixed beforehand costs (`winsor.core.sampling`).

Guarantee
---------
The loss distributions dominate the pair above under add/remove. Replace-one is refused: the two
rows may go to different steps, and no dominating pair is proven here.

References
----------
Feldman & Shenfeld 2025 (arXiv 2502.08202), Chua et al. 2024 (arXiv 2412.16802): the pair.
"""

from __future__ import annotations

import math

import attr
import numpy as np
from dp_accounting.dp_event import DpEvent, GaussianDpEvent
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray

from winsor.core.accounting import privacy_losses as losses
from winsor.core.accounting import rdp
from winsor.core.contract import Neighbouring
from winsor.core.events.declared import event, only, positive, whole
from winsor.core.events.lognormal import mean_of
from winsor.core.events.registry import Grid, Orders

Array = NDArray[np.float64]

SMALLEST_NOISE, LARGEST_NOISE = 0.05, 1e5
"""Outside, an epoch is accounted for as one Gaussian release, which dominates it: there the
density ratios leave the range of floating point, or differ from 1 by little more than rounding."""

_UNIT = 2.0**-53


def _pld(epoch: AllocationDpEvent, relation: Neighbouring, grid: Grid) -> PrivacyLossDistribution:
    only(relation, Neighbouring.ADD_OR_REMOVE_ONE, "random allocation")
    noise = epoch.noise_multiplier
    if epoch.steps == 1 or not SMALLEST_NOISE <= noise <= LARGEST_NOISE:
        return losses.sampled_gaussian(1.0, noise, grid, replace=False)
    mean = mean_of(epoch.steps, noise, grid.tail)
    removed = _on_grid(mean.logs, mean.tilted(), mean.lost, mean.error, grid.interval)
    added = _on_grid(-mean.logs[::-1], mean.masses[::-1], mean.zero, mean.error, grid.interval)
    return PrivacyLossDistribution(removed, added)


def _on_grid(
    points: Array, masses: Array, infinite: float, error: float, interval: float
) -> DensePLDPmf:
    """Losses at ascending ``points``, each split between two grid points (connect the dots).

    Masses are first made certain: with all of them (1 + error) times larger, the probability of
    any loss *or more* is not understated; what then exceeds 1 is taken from the smallest losses.
    """
    factor = 1 + 2 * error + 8 * points.size * _UNIT
    infinite = min(1.0, infinite * factor)
    above = np.minimum(1.0, infinite + factor * np.cumsum(masses[::-1])[::-1])
    full = above < 1.0
    certain = np.where(full, factor * masses, 0.0)
    if not full.all():
        last = int(np.flatnonzero(~full)[-1])
        certain[last] = 1.0 - (above[last + 1] if last + 1 < points.size else infinite)
    else:  # impossible if ``error`` is what it says; then the rest may be anywhere
        infinite += 1.0 - float(above[0])
    points = points + 8 * _UNIT * np.abs(points)  # so that rounding cannot place a loss too low
    first, last = math.floor(points[0] / interval), math.floor(points[-1] / interval) + 1
    if last - first >= losses.MOST_POINTS:
        raise losses.TooFine(f"{last - first} grid points at interval {interval}")
    cells = np.floor(points / interval).astype(np.int64)
    share = np.expm1(cells * interval - points) / math.expm1(-interval)
    share += 16 * _UNIT * (1 + np.abs(points) / interval)
    share = np.clip(share, 0.0, 1.0)
    size = last - first + 1
    probabilities = np.bincount(cells - first, certain * (1 - share), size)
    probabilities += np.bincount(cells - first + 1, certain * share, size)
    return DensePLDPmf(interval, first, probabilities, infinite, pessimistic_estimate=True)


def _rdp(epoch: AllocationDpEvent, relation: Neighbouring, orders: Orders) -> Orders:
    """Renyi divergences of the one release that the row was in, as if it were known which."""
    only(relation, Neighbouring.ADD_OR_REMOVE_ONE, "random allocation")
    return rdp.gaussian(GaussianDpEvent(epoch.noise_multiplier), relation, orders)


@event("allocation", pld=_pld, rdp=_rdp)
@attr.s(frozen=True, slots=True, auto_attribs=True)
class AllocationDpEvent(DpEvent):
    """One epoch in which each row takes part in one of ``steps`` Gaussian releases.

    ``noise_multiplier`` is noise scale over add/remove sensitivity, the same at every step.
    """

    steps: int = whole(1)
    noise_multiplier: float = positive()
