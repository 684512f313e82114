"""Statistics of a table in partitions: bounded sums of each, one release on the driver.

    clipped_mean     sum_i min(1, R/|x_i - c|) (x_i - c), divided by the public n
    quantiles        counts between the edges of a round, column by column, then the next round
    second_moments   a_i = (x_i - c, b) cut to length B: the triangle of (1/n) sum_i a_i a_i', with
                     off-diagonal entries times sqrt(2); b, the public ``reach``, makes ones count
    measure          every metric of `winsor.metrics`

Guarantee
---------
Every release is a sum over rows, so it does not matter who adds them up, and the guarantees are
those of `winsor.tables.clipped_mean`, `winsor.tables.ranges.zoom` and `winsor.metrics`. Moments:
a_i depends on row i and public values only; the triangle of a a' has length |a|^2 <= B^2, so a row
moves the mean over the public n by at most B^2/n. One Gaussian release. What partitions send to the
driver is not noised: they must be as private as the driver is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.arithmetic.rows import blocks, clip_rows, summed
from winsor.core.checks import fraction, positive, whole
from winsor.core.contract import ConfigurationError, Guarantee, Neighbouring, Sensitivity
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.randomness import key_for
from winsor.core.sampling.samplers import FullBatch
from winsor.metrics.measuring import Measurement, Terms, measure_sums, totals_of
from winsor.metrics.metric import Columns, Metric
from winsor.planning.budget import Payment, Target
from winsor.planning.shares import Session
from winsor.tables.inputs import as_bounds, as_centre
from winsor.tables.linear.metric import packed_triangle, unpacked_triangle
from winsor.tables.means.clipped import clipped_sum, mean_sensitivity
from winsor.tables.means.result import MeanEstimate
from winsor.tables.partitions.source import Partitions, Passes
from winsor.tables.ranges.bins import Bins
from winsor.tables.ranges.distribution import Distribution

Array = NDArray[np.float64]
Judged = Callable[[Array], Mapping[str, ArrayLike]]

_PROOF = "rows (x - c, b) cut to length B: the triangle of a a' has length at most B^2"


@dataclass(frozen=True)
class ClippedSum:
    """sum_i min(1, R/|x_i - c|) (x_i - c) of some rows."""

    point: Array
    radius: float

    def __call__(self, rows: Array) -> Array:
        return clipped_sum(rows, self.point, self.radius)


def clipped_mean(
    partitions: Partitions,
    *,
    radius: float,
    epsilon: float | None = None,
    delta: float | None = None,
    rho: float | None = None,
    centre: ArrayLike | None = None,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    random_state: int | bytes | None = None,
    allow_large_delta: bool = False,
) -> MeanEstimate:
    """Estimate the mean of rows in partitions, clipped to ``radius`` about ``centre``.

    Parameters are those of `winsor.tables.clipped_mean`; the radius is public. One pass over the
    rows, one partition in memory at a time on each worker.

    Examples
    --------
    >>> import functools, numpy as np
    >>> load = lambda seed: np.random.default_rng(seed).standard_t(3, size=(5_000, 2)) + 1.0
    >>> parts = Partitions.of_loaders([functools.partial(load, s) for s in range(4)], columns=2)
    >>> result = clipped_mean(parts, radius=8.0, epsilon=1.0, random_state=0)
    >>> bool(np.linalg.norm(result.estimate - 1.0) < 0.1), round(result.guarantee.epsilon, 3)
    (True, 0.999)
    """
    d, reach = partitions.columns, positive("radius", radius)
    point = np.array(as_centre(centre, d))
    n, total = partitions.sum(ClippedSum(point, reach))
    target = Target.of(n, epsilon, delta, relation, allow_large_delta, rho)
    key = key_for(random_state, None, "clipped mean of partitions", target, reach, point, total)
    session = Session.open(target, key, {"method": "clipped_mean", "n": n, "d": d})
    main, sensitivity = mean_sensitivity(1.0, n), mean_sensitivity(reach, n)
    mechanism = Gaussian(session.multiplier([Payment(FullBatch(n), main, 1)]))
    receipt = session.door.pay(mechanism, FullBatch(n), sensitivity, 1, d)
    return MeanEstimate(
        estimate=receipt.release(total / n) + point,
        guarantee=session.guarantee(),
        error_bound=None,
        radius=reach,
        noise_std=receipt.std,
        rho=(receipt.sensitivity.under(target.relation) / receipt.std) ** 2 / 2,
        ledger=session.ledger,
    )


@dataclass(frozen=True)
class ColumnQuantiles:
    """Quantiles of every column, and the distributions that they were read from."""

    levels: Array
    values: Array
    """(columns, levels)."""
    distributions: list[Distribution] = field(repr=False)
    """Further quantiles and edges of bins are free: `Distribution.quantile`, `.cells`."""
    guarantee: Guarantee
    ledger: Ledger = field(repr=False)


def quantiles(
    partitions: Partitions,
    levels: Sequence[float],
    *,
    bins: int = 32,
    bounds: Any = None,
    epsilon: float,
    delta: float | None = None,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    random_state: int | bytes | None = None,
    allow_large_delta: bool = False,
) -> ColumnQuantiles:
    """Estimate quantiles at ``levels`` of all columns, in any units.

    Parameters are those of `winsor.tables.private_bins`. One pass that counts rows, then one for
    each of three rounds; with public ``bounds`` of all columns, one round is enough.

    Examples
    --------
    >>> load = lambda: np.random.default_rng(0).lognormal(7, 2, size=(20_000, 1))
    >>> found = quantiles(
    ...     Partitions.of_loaders([load], columns=1), [0.5], epsilon=1.0, random_state=0
    ... )
    >>> bool(abs(np.log(found.values[0, 0]) - 7) < 0.1)
    True
    """
    wanted = np.array([fraction("levels", level) for level in levels])
    passes, k = Passes(partitions), partitions.columns
    n = passes.n
    plan = Bins(k, whole("bins", bins, 2), as_bounds(bounds, k))
    target = Target.of(n, epsilon, delta, relation, allow_large_delta)
    key = key_for(
        random_state, None, "quantiles of partitions", bins, bounds, target, passes.digest
    )
    session = Session.open(target, key, {"method": "quantiles", "n": n, "d": k})
    mechanism = Gaussian(session.multiplier([plan.zoom.payment(n)]))
    found = plan.zoom.release_counts(passes.counted, n, session.door, mechanism, plan.start)
    return ColumnQuantiles(
        levels=wanted,
        values=np.array([each.quantile(wanted) for each in found]),
        distributions=found,
        guarantee=session.guarantee(f"n = {n} is public"),
        ledger=session.ledger,
    )


@dataclass(frozen=True)
class Moments:
    """Released moments of rows about a public centre, and what follows from them."""

    matrix: Array
    """(1/n) sum of (x - c, b)(x - c, b)', with noise."""
    centre: Array
    reach: float
    noise_std: float
    """Noise of a diagonal entry; an off-diagonal one has 1/sqrt(2) of it."""
    guarantee: Guarantee
    ledger: Ledger = field(repr=False)

    @property
    def mean(self) -> Array:
        """Means of the columns."""
        return np.asarray(self.centre + self.matrix[:-1, -1] / self.reach)

    @property
    def covariance(self) -> Array:
        """Covariance of the columns; noise may leave it indefinite."""
        shift = self.matrix[:-1, -1] / self.reach
        return np.asarray(self.matrix[:-1, :-1] - np.outer(shift, shift))

    def least_squares(
        self, target: int, columns: Sequence[int], alpha: float = 0.0
    ) -> tuple[Array, float]:
        """Return weights of ``columns`` and the level, for column ``target``, with a penalty
        alpha/2 |w|^2. Directions that the noise hides are held back."""
        chosen = list(columns)
        if target in chosen or not chosen:
            raise ConfigurationError(
                f"columns must be others than the target, at least one. Got {chosen} for {target}."
            )
        covariance, mean = self.covariance, self.mean
        values, vectors = np.linalg.eigh(covariance[np.ix_(chosen, chosen)])
        floor = 2 * math.sqrt(2 * len(chosen)) * self.noise_std / math.sqrt(2)
        system = (vectors * np.maximum(values, floor)) @ vectors.T + alpha * np.eye(len(chosen))
        weights = np.linalg.solve(system, covariance[chosen, target])
        return np.asarray(weights), float(mean[target] - mean[chosen] @ weights)


@dataclass(frozen=True)
class Triangle:
    """The triangle of sum_i a_i a_i' of some rows."""

    point: Array
    bound: float
    reach: float

    def __call__(self, rows: Array) -> Array:
        table = np.column_stack([rows - self.point, np.full(len(rows), self.reach)])
        pieces = (clip_rows(table[own], self.bound) for own in blocks(len(rows)))
        return packed_triangle(summed(piece.T @ piece for piece in pieces))


def second_moments(
    partitions: Partitions,
    *,
    bound: float,
    reach: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    rho: float | None = None,
    centre: ArrayLike | None = None,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    random_state: int | bytes | None = None,
    allow_large_delta: bool = False,
) -> Moments:
    """Estimate means and second moments of rows in partitions.

    Parameters
    ----------
    partitions
        Where the rows are.
    bound
        Rows (x - centre, reach) are cut to this length: public. Scale columns alike before.
    reach
        The constant beside the row; default ``bound / 2``. Larger favours means, smaller second
        moments.
    epsilon, delta, rho, centre, relation, random_state, allow_large_delta
        As in `winsor.tables.clipped_mean`.
    """
    d, bound = partitions.columns, positive("bound", bound)
    beside = positive("reach", bound / 2 if reach is None else reach)
    if beside >= bound:
        raise ConfigurationError(
            f"reach must be below bound = {bound}: it is part of what is cut. Got {beside} instead."
        )
    point = np.array(as_centre(centre, d))
    n, total = partitions.sum(Triangle(point, bound, beside))
    target = Target.of(n, epsilon, delta, relation, allow_large_delta, rho)
    key = key_for(random_state, None, "moments of partitions", target, bound, beside, point, total)
    session = Session.open(target, key, {"method": "second_moments", "n": n, "d": d})
    unit = Payment(FullBatch(n), Sensitivity.per_sample(1.0, _PROOF), 1)
    mechanism = Gaussian(session.multiplier([unit]))
    sensitivity = Sensitivity.per_sample(bound**2 / n, _PROOF)
    receipt = session.door.pay(mechanism, FullBatch(n), sensitivity, 1, len(total))
    return Moments(
        matrix=unpacked_triangle(receipt.release(total / n), d + 1),
        centre=point,
        reach=beside,
        noise_std=receipt.std,
        guarantee=session.guarantee(),
        ledger=session.ledger,
    )


@dataclass(frozen=True)
class Totals:
    """The sums of all metrics over some rows."""

    metrics: Mapping[str, Metric]
    judged: Judged

    def __call__(self, rows: Array) -> Array:
        return totals_of(self.metrics, Columns.of(**self.judged(rows)))


def measure(
    metrics: Metric | Mapping[str, Metric],
    partitions: Partitions,
    judged: Judged,
    **terms: Unpack[Terms],
) -> Measurement:
    """Measure ``metrics`` on rows in partitions, as `winsor.metrics.measure` does.

    ``judged`` gets the rows of a partition and returns their ``targets``, ``predictions``,
    ``scores``, ``losses`` or ``groups`` by name, each row by itself: with a model, it predicts
    where the rows are. ``terms`` are those of `winsor.metrics.measure`. One pass.

    Examples
    --------
    >>> from winsor.metrics import Accuracy
    >>> rows = Partitions.of_loaders([lambda: np.arange(10_000.0)[:, None] % 2], columns=1)
    >>> judged = lambda rows: {"targets": rows[:, 0], "predictions": np.zeros(len(rows))}
    >>> found = measure(Accuracy(), rows, judged, epsilon=1.0, random_state=0)
    >>> bool(abs(float(found["Accuracy"]) - 0.5) < 0.02)
    True
    """
    return measure_sums(metrics, lambda named: partitions.sum(Totals(named, judged)), **terms)
