"""A mean that needs no radius: quantiles, tails and the winsorised mean under one budget.

    1  zoom      three joint histograms find each column's middle m and scale h      share 0.10
    2  tails     distances |x - m|/h, side by side, in doubling cells                share 0.30
    3  mean      u = (clip(x, low, high) - c)/w, c the middle and w half the width
                 of the cuts that balance the tails against the noise                the rest

The estimate is c + w mean(u), plus a third of what the fitted tails say was cut. Rows are measured
from the centre of the cut range, not from the origin, so noise is half of that of a clipped mean.

``by`` splits the rows into groups with public names: the cuts are common, step 3 releases the sums
and the sizes of all groups together, a row being in one of them.

The interval covers the mean of the population: sampling error from the released histograms, noise
as it was added, and what the tails may weigh.

Guarantee
---------
Every step is a sum over rows of a vector whose norm is at most sqrt(columns) (steps 1, 3) or
sqrt(columns) again (step 2: one cell of one side per column), given what was released before. All
are Gaussian releases, calibrated together. n is public; with ``by`` the sizes of groups are not.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from winsor.core.arithmetic.rows import quiet, sum_rows, sum_weights
from winsor.core.checks import probability
from winsor.core.contract import ConfigurationError, Guarantee, Neighbouring, Sensitivity
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.randomness import key_for
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Target
from winsor.planning.cells import as_keys, read_labels
from winsor.planning.shares import Part, Session, Shares
from winsor.tables.inputs import within
from winsor.tables.means.tail_cut import DOUBLINGS, Tail, distance_edges
from winsor.tables.ranges.distribution import Distribution
from winsor.tables.ranges.zoom import Zoom
from winsor.tables.units import Unit, protected_rows

Array = NDArray[np.float64]

ZOOM, TAILS = 0.10, 0.30
"""Shares of the budget, in units of 1/nm^2; the mean itself has the rest."""

_SIZES = 0.2  # of the last step's share, for the sizes of groups


@dataclass(frozen=True)
class WinsorisedMean:
    """A private mean with its interval; arrays have one entry per column."""

    estimate: Any
    low: Any
    high: Any
    level: float
    cuts: Array
    """(columns, 2): where rows were winsorised."""
    noise_std: Array
    lost: Array
    """(columns, 2): what the fitted tails weigh beyond the lower and the upper cut."""
    distributions: list[Distribution] = field(repr=False)
    guarantee: Guarantee
    ledger: Ledger = field(repr=False)
    groups: dict[Hashable, WinsorisedGroup] | None = None


@dataclass(frozen=True)
class WinsorisedGroup:
    """The mean of one group, its interval, and its noisy size."""

    estimate: Any
    low: Any
    high: Any
    size: float


@quiet
def winsorised_mean(
    x: ArrayLike,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    rho: float | None = None,
    by: ArrayLike | None = None,
    level: float = 0.95,
    unit: Unit | None = None,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    random_state: int | bytes | None = None,
    allow_large_delta: bool = False,
) -> WinsorisedMean:
    """Estimate the mean of heavy-tailed numbers; nothing but the budget has to be given.

    Parameters
    ----------
    x
        (n,) or (n, d) numbers, one record per row.
    epsilon, delta, rho
        The budget: ``epsilon`` at ``delta``, or ``rho`` of zCDP (reported at ``delta``).
    by
        One label per row; the set of labels is public. Means of groups come in ``groups``.
    level
        Confidence level of the intervals.
    unit, relation, random_state, allow_large_delta
        As in `clipped_mean`; not with ``by``, as a person may have rows in several groups.

    Examples
    --------
    >>> import numpy as np
    >>> claims = np.random.default_rng(0).pareto(2.5, size=20_000) * 1000
    >>> found = winsorised_mean(claims, epsilon=1.0, random_state=0)
    >>> bool(found.low < claims.mean() < found.high), bool(abs(found.estimate / 667 - 1) < 0.05)
    (True, True)
    """
    if unit is not None and by is not None:
        raise ConfigurationError(
            "unit must be used without by: a person may have rows in several groups. Got both "
            "instead. Estimate the groups one by one, and add up what they cost."
        )
    rows, column, conditions = protected_rows(x, unit)
    n, d = rows.shape
    probability("level", level)
    target = Target.of(n, epsilon, delta, relation, allow_large_delta, rho)
    labels, codes = as_groups(by, n)
    key = key_for(random_state, None, "winsorised mean", target, rows, codes)
    session = Session.open(target, key, {"method": "winsorised_mean", "n": n, "d": d}, unit=unit)
    plan = HeavyMean(n, d, len(labels))
    last, totals, found = plan.release(rows, session.shares(n, plan.parts()), codes)
    estimate, low, high, groups = read(totals, last, n, level, labels, column)
    if by is not None:
        conditions += ("the labels of groups are public: they were read off by",)
    return WinsorisedMean(
        estimate=estimate,
        low=low,
        high=high,
        level=level,
        cuts=np.stack([last.low, last.high], axis=1),
        noise_std=last.width * totals.std / n,
        lost=last.lost,
        distributions=found,
        guarantee=session.guarantee(*conditions),
        ledger=session.ledger,
        groups=groups,
    )


@dataclass(frozen=True)
class Totals:
    """Noisy sums of u (groups, d), sizes (groups,) and the noise of each."""

    sums: Array
    std: float
    sizes: Array | None = None
    sizes_std: float = 0.0


@dataclass(frozen=True)
class HeavyMean:
    """The three steps as parts of a plan, with ``share`` of its budget together."""

    n: int
    d: int = 1
    groups: int = 0
    share: float = 1.0
    name: str = "level"

    @property
    def zoom(self) -> Zoom:
        """The plan of the histograms."""
        return Zoom(self.d)

    def parts(self) -> dict[str, Part]:
        """Return the parts of the plan, called after ``name``."""
        zoom, rest = self.zoom, 1 - ZOOM - TAILS
        return {
            f"{self.name}, ranges": Part(zoom.sensitivity, zoom.rounds, ZOOM * self.share),
            f"{self.name}, tails": Part(self._cells(), 1, TAILS * self.share),
            f"{self.name}, sums": Part(self._bounded(), 1, rest * self.share),
        }

    def release(
        self, rows: Array, shares: Shares, codes: NDArray[np.int64] | None = None
    ) -> tuple[Cuts, Totals, list[Distribution]]:
        """Return cuts, noisy sums inside them, and the released distributions."""
        at_ranges, at_tails, at_sums = (shares[name] for name in self.parts())
        found = self.zoom.release(rows, *at_ranges, n=self.n)
        middle, scale = _units(found)
        sides = self.tails(rows, middle, scale, *at_tails)
        cuts = Cuts.of(sides, middle, scale, at_sums[1].noise_multiplier * math.sqrt(self.d))
        return cuts, self.totals(rows, cuts, codes, *at_sums), found

    def _cells(self) -> Sensitivity:
        proof = "distances in cells: a record adds 1 to one cell of each column"
        return Sensitivity(math.sqrt(self.d), math.sqrt(2 * self.d), proof)

    def _bounded(self) -> Sensitivity:
        proof = "winsorised columns: |u| <= sqrt(columns), sizes of groups within the same norm"
        return Sensitivity.per_sample(math.sqrt(self.d), proof)

    def tails(
        self, rows: Array, middle: Array, scale: Array, door: PrepaidDoor, mechanism: Gaussian
    ) -> list[tuple[Tail, Tail]]:
        """Release the lower and the upper tail of every column."""
        cells = DOUBLINGS + 1
        receipt = door.pay(mechanism, FullBatch(self.n), self._cells(), 1, (self.d, 2, cells))
        counts = np.zeros((self.d, 2, cells))
        for j in range(self.d):
            z = (rows[:, j] - middle[j]) / scale[j]
            places = np.searchsorted(distance_edges(), np.abs(z), side="right") - 1
            places = np.minimum(places, cells - 1)
            for side, chosen in enumerate((z < 0, z >= 0)):
                counts[j, side] = np.bincount(places[chosen], minlength=cells)
        released = receipt.release(counts)
        return [
            (Tail(low, receipt.std, self.n), Tail(high, receipt.std, self.n))
            for low, high in released
        ]

    def totals(
        self,
        rows: Array,
        cuts: Cuts,
        codes: NDArray[np.int64] | None,
        door: PrepaidDoor,
        mechanism: Gaussian,
    ) -> Totals:
        """Release sums of u, with sizes if there are groups: |(sqrt(1-s) u, sqrt(s d))| <=
        sqrt(d)."""
        u = within((np.clip(rows, cuts.low, cuts.high) - cuts.centre) / cuts.width)
        sampler, bound = FullBatch(self.n), self._bounded()
        if codes is None:
            receipt = door.pay(mechanism, sampler, bound, 1, (1, self.d))
            return Totals(receipt.release(sum_rows(u)[None]), receipt.std)
        values, sizes = math.sqrt(1 - _SIZES), math.sqrt(_SIZES * self.d)
        table = np.zeros((self.groups, self.d + 1))
        for j in range(self.d):
            table[:, j] = values * sum_weights(codes, u[:, j], self.groups)
        table[:, -1] = sizes * np.bincount(codes, minlength=self.groups)
        receipt = door.pay(mechanism, sampler, bound, 1, table.shape)
        released = receipt.release(table)
        return Totals(
            released[:, :-1] / values,
            receipt.std / values,
            released[:, -1] / sizes,
            receipt.std / sizes,
        )


@dataclass(frozen=True)
class Cuts:
    """Cuts of winsorised columns, what is lost by them, and the variance of rows inside."""

    low: Array
    high: Array
    lost: Array
    variance: Array

    @staticmethod
    def of(tails: list[tuple[Tail, Tail]], middle: Array, scale: Array, noise: float) -> Cuts:
        # A side that is cut at t makes the range longer by t, and the noise by t/2.
        """Balance the loss of each tail against the ``noise`` of the sum."""
        found = [[side.cut(noise / 2) for side in sides] for sides in tails]
        at = np.array([[cut.at for cut in cuts] for cuts in found])
        lost = np.array([[cut.lost for cut in cuts] for cuts in found]) * scale[:, None]
        moments = np.array(
            [
                [side.moments(cut.at) for side, cut in zip(sides, cuts, strict=True)]
                for sides, cuts in zip(tails, found, strict=True)
            ]
        )
        mass = np.maximum(moments[:, :, 0].sum(axis=1), 1e-9)  # noise may leave nothing
        first = (moments[:, 1, 1] - moments[:, 0, 1]) / mass
        second = moments[:, :, 2].sum(axis=1) / mass
        return Cuts(
            low=middle - at[:, 0] * scale,
            high=middle + at[:, 1] * scale,
            lost=lost,
            variance=np.maximum(second - first**2, 1e-12) * scale**2,
        )

    @property
    def centre(self) -> Array:
        """Middle of the cut range."""
        return (self.low + self.high) / 2

    @property
    def width(self) -> Array:
        """Half the width of the cut range."""
        return (self.high - self.low) / 2

    def mean(self, u: Array) -> Array:
        """Return the estimate for a mean of u."""
        return self.centre + self.width * u + self.given_back

    @property
    def given_back(self) -> Array:
        """What is added for the tails beyond the cuts."""
        return (self.lost[:, 1] - self.lost[:, 0]) / 3

    @property
    def tail_variance(self) -> Array:
        """What a cut loses may be nothing or twice what the fit says: uniform."""
        return (self.lost**2).sum(axis=1) / 3


def _units(found: list[Distribution]) -> tuple[Array, Array]:
    """The middle of each column and half the width of its middle half, never zero."""
    quartiles = np.array([each.quantile([0.25, 0.5, 0.75]) for each in found])
    middle = quartiles[:, 1]
    reach = np.array([each.high - each.low for each in found])
    scale = np.maximum((quartiles[:, 2] - quartiles[:, 0]) / 2, reach / 256)
    return middle, np.maximum(scale, 1e-12 * np.maximum(np.abs(middle), 1e-12))


def as_groups(by: ArrayLike | None, n: int) -> tuple[list[Hashable], NDArray[np.int64] | None]:
    """Return the labels of groups, and the number of each row's group: the first if it has none."""
    if by is None:
        return [], None
    given = as_keys(by)
    if given.shape != (n,):
        raise ConfigurationError(
            f"by must hold one label per row, {n} of them. Got shape {given.shape} instead."
        )
    labels, codes = read_labels(given)
    if not len(labels):
        raise ConfigurationError(
            "by must name groups of rows. Got none (None or NaN) instead. Leave it out."
        )
    return labels.tolist(), codes


def read(
    totals: Totals, cuts: Cuts, n: int, level: float, labels: list[Hashable], column: bool
) -> tuple[Any, Any, Any, dict[Hashable, WinsorisedGroup] | None]:
    """Return the mean, its interval, and the same for groups."""
    z = float(ndtri(0.5 + level / 2))

    def interval(u: Array, size: float, noise: Array) -> tuple[Any, Any, Any]:
        estimate = cuts.mean(u)
        reach = z * np.sqrt(cuts.variance / size + noise**2 + cuts.tail_variance)
        ends = estimate, estimate - reach, estimate + reach
        return tuple(float(end[0]) if column else end for end in ends)  # type: ignore[return-value]

    noise = cuts.width * totals.std / n * math.sqrt(max(1, len(labels)))
    whole = interval(totals.sums.sum(axis=0) / n, n, noise)
    if not labels:
        return *whole, None
    assert totals.sizes is not None
    groups: dict[Hashable, WinsorisedGroup] = {}
    for label, sums, size in zip(labels, totals.sums, totals.sizes.tolist(), strict=True):
        rows = max(size, 2 * totals.sizes_std, 1.0)
        u = np.clip(sums / rows, -1.0, 1.0)
        spread = cuts.width * np.hypot(totals.std, u * totals.sizes_std) / rows
        groups[label] = WinsorisedGroup(*interval(u, rows, spread), size)
    return *whole, groups
