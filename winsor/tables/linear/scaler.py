"""Centre and scale features by private means and deviations.

    u = clip((x - c)/h, -1, 1) from the public range [low, high] of each column, c its middle
    release   sum_i (u_i, u_i^2) + N(0, s^2 I)        one Gaussian release of 2d numbers
    scale to  (x - mean)/deviation from the released moments

Scaling by statistics of the data is a release like any other; leaving it outside the account is a
common mistake. Where public ranges are enough, scale by them (`feature_bound`), at no cost.

Guarantee
---------
Learnt ranges: that of `winsor.tables.ranges.zoom`. Every |u| <= 1, so a record's vector (u, u^2)
has norm at most sqrt(2d): sensitivity sqrt(2d) under add/remove, twice that under replace-one (u
alone moves by 2, u^2 by 1; the bound is not tight).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from winsor.core.checks import as_delta, as_relation
from winsor.core.contract import ConfigurationError, Sensitivity
from winsor.core.ledger.ledger import Ledger
from winsor.core.ledger.shared_budget import PrivacyBudget, settings_of
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.randomness import key_for
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment, Target, noise_multiplier
from winsor.tables.linear.scaled import learnt_range
from winsor.tables.ranges.refused_tables import in_own_words, known_table
from winsor.tables.ranges.zoom import Counted, Zoom, counts_between
from winsor.tables.surroundings import begin_fit, count_fit

Array = NDArray[np.float64]

FLOOR = 0.02
"""Smallest deviation, as a share of half the public range: noise must not blow up a column that is
nearly constant."""


class PrivateScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Standardise columns by privately released means and deviations.

    Parameters
    ----------
    low, high
        Public range of each column (numbers, or one per column); values beyond it are cut when
        moments are taken. The default -1..1 suits features that were scaled by public bounds. None
        for both has ranges learnt with half of the budget (`winsor.tables.ranges`).
    epsilon, delta
        The budget of one `fit`, on top of whatever the model spends: see `total_guarantee`.
    relation, random_state, allow_large_delta, budget
        As in `PrivateLogisticRegression`.
    """

    def __init__(
        self,
        low: ArrayLike | None = -1.0,
        high: ArrayLike | None = 1.0,
        epsilon: float = 0.1,
        delta: float | None = None,
        relation: str = "add_or_remove_one",
        random_state: Any = None,
        allow_large_delta: bool = False,
        budget: PrivacyBudget | None = None,
    ) -> None:
        self.low = low
        self.high = high
        self.epsilon = epsilon
        self.delta = delta
        self.relation = relation
        self.random_state = random_state
        self.allow_large_delta = allow_large_delta
        self.budget = budget

    def fit(self, X: Any, y: Any = None) -> Self:
        """Release the moments of the columns of ``X``."""
        begin_fit(self)
        with in_own_words(X):
            X = validate_data(self, X, dtype=np.float64)

        def counted(edges: Sequence[Array], width: int) -> Array:
            return counts_between(X, edges, width)

        def moments(centre: Array, half: Array) -> Array:
            return moments_of(X, centre, half)

        key = key_for(self.random_state, 0, settings_of(self), X)
        n, d = X.shape
        self.fit_sums(n, d, counted, moments, key)
        count_fit(self, X)
        return self

    def fit_sums(
        self,
        n: int,
        d: int,
        counted: Counted,
        moments: Callable[[Array, Array], Array],
        key: bytes,
    ) -> Self:
        """`fit` where rows are out of reach: ``counted`` is that of `Zoom.release_counts`, and
        ``moments(centre, half)`` says what `moments_of` would of all ``n`` rows. The caller counts
        the fit."""
        learnt = self.low is None and self.high is None
        centre, half = (np.zeros(d), np.ones(d)) if learnt else self._units(d)
        delta = as_delta(self.delta, n, self.allow_large_delta)
        target = Target(self.epsilon, delta, None, as_relation(self.relation))
        door = PrepaidDoor(
            Ledger({"method": "PrivateScaler", "n": n, "d": d}), target.relation, key
        )
        zoom = Zoom(d, indicators=True)
        scale, zoomed = (math.sqrt(2), math.sqrt(2 * zoom.rounds)) if learnt else (1.0, 1.0)
        plan = [Payment(FullBatch(n), moment_sensitivity(d), 1, scale)]
        if learnt:
            plan.append(zoom.payment(n, zoomed))
        multiplier = noise_multiplier(plan, target)
        if learnt:
            found = zoom.release_counts(counted, n, door, Gaussian(multiplier * zoomed))
            low, high, _ = np.array([learnt_range(each) for each in found]).T
            centre, half = (low + high) / 2, (high - low) / 2
        sums = moments(centre, half)
        first, second = release_moments(sums, n, door, Gaussian(multiplier * scale)) / n
        first = np.clip(first, -1.0, 1.0)
        spread = np.sqrt(np.maximum(second - first**2, FLOOR**2))
        self.mean_ = centre + half * first
        self.scale_ = half * np.minimum(spread, 1.0)
        self.ledger_ = door.ledger
        self.guarantee_ = door.guarantee(target.delta, (f"n = {n} is public",))
        self.epsilon_, self.delta_ = self.guarantee_.epsilon, self.guarantee_.delta
        return self

    def _units(self, d: int) -> tuple[Array, Array]:
        """Middle and half width of the public ranges."""
        try:
            low = np.broadcast_to(np.asarray(self.low, dtype=np.float64), (d,))
            high = np.broadcast_to(np.asarray(self.high, dtype=np.float64), (d,))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"low and high must be numbers or one number per column ({d}). Got {self.low!r} "
                f"and {self.high!r} instead."
            ) from error
        wrong = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high) & (low < high)))
        if len(wrong):
            raise ConfigurationError(
                f"low must be below high in every column, both finite. Got low={low[wrong[0]]!r}, "
                f"high={high[wrong[0]]!r} in column {wrong[0]} instead. A constant column cannot "
                "be scaled: drop it."
            )
        return (low + high) / 2, (high - low) / 2

    def transform(self, X: Any) -> Array:
        """(X - mean_) / scale_."""
        check_is_fitted(self)
        table: Array = known_table(self, X)
        return (table - self.mean_) / self.scale_


def moments_of(rows: Array, centre: Array, half: Array) -> Array:
    """(2, d) sums of u and u^2, u = clip((x - centre)/half, -1, 1)."""
    u = np.clip((rows - centre) / half, -1.0, 1.0)
    return np.stack([u.sum(axis=0), (u**2).sum(axis=0)])


def moment_sensitivity(columns: int) -> Sensitivity:
    proof = "columns cut to a public range: |(u, u^2)| <= sqrt(2d)"
    return Sensitivity.per_sample(math.sqrt(2 * columns), proof)


def release_moments(sums: Array, n: int, door: PrepaidDoor, mechanism: Gaussian) -> Array:
    """`moments_of` of ``n`` rows, with noise."""
    sensitivity = moment_sensitivity(sums.shape[1])
    return door.pay(mechanism, FullBatch(n), sensitivity, 1, sums.shape).release(sums)
