"""Transformers: columns scaled by private moments, cut into bins, or encoded as indicators.

Scaling by statistics of the data is a release like any other; leaving it outside the account is a
common mistake. Where public ranges are enough, scale by them (`feature_bound`), at no cost.

    u = clip((x - c)/h, -1, 1) from the public range [low, high] of each column, c its middle
    release   sum_i (u_i, u_i^2) + N(0, s^2 I)        one Gaussian release of 2d numbers
    scale to  (x - mean)/deviation from the released moments

Guarantee
---------
Learnt ranges, bins: that of `winsor.tables.ranges.zoom`; categories: that of
`winsor.tables.ranges.categories`. Moments: every |u| <= 1, so a record's vector (u, u^2) has norm
at most sqrt(2d): sensitivity sqrt(2d) under add/remove, twice that under replace-one (u alone moves
by 2, u^2 by 1; the bound is not tight).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from winsor.core.arithmetic.rows import squares, sum_rows
from winsor.core.checks import whole
from winsor.core.contract import ConfigurationError, Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.randomness import key_for
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Target
from winsor.planning.shared_budget import PrivacyBudget
from winsor.planning.shares import Part
from winsor.tables.estimator import PrivateEstimator
from winsor.tables.inputs import as_bounds, within
from winsor.tables.linear.scaled import learnt_range
from winsor.tables.ranges.bins import Bins, codes
from winsor.tables.ranges.categories import Texts, as_texts, calibrated, one_hot, release, texts_of
from winsor.tables.ranges.zoom import Zoom
from winsor.tables.refused_tables import known_table, read_table
from winsor.tables.rows import Rows, TableRows

Array = NDArray[np.float64]

OTHER = "other"
"""The last indicator of an encoded column."""
FLOOR = 0.02
"""Smallest deviation, as a share of half the public range: noise must not blow up a column that is
nearly constant."""


class PrivateScaler(OneToOneFeatureMixin, TransformerMixin, PrivateEstimator):
    """Standardise columns by privately released means and deviations.

    Parameters
    ----------
    low, high
        Public range of each column (numbers, or one per column); values beyond it are cut when
        moments are taken. The default -1..1 suits features that were scaled by public bounds. None
        for both has ranges learnt with half of the budget (`winsor.tables.ranges`).
    epsilon, delta, relation, random_state, allow_large_delta, budget
        As in `PrivateLogisticRegression`, on top of what the model spends: see `total_guarantee`.
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
        self._store(locals())

    def fit(self, X: Any, y: Any = None) -> Self:
        """Release the moments of the columns of ``X``."""
        X = read_table(self, X)
        return self._fit_rows(TableRows(X), X)

    def _fit_rows(self, rows: Rows, table: Array | None) -> Self:
        """Release the moments of ``rows``, all of them in ``table`` if they are in one."""
        n, d = rows.n, rows.columns
        learnt = self.low is None and self.high is None
        centre, half = (np.zeros(d), np.ones(d)) if learnt else self._units(d)
        config = {"method": "PrivateScaler", "n": n, "d": d}
        session, zoom = self._open(n, config, rows.digest), Zoom(d, indicators=True)
        parts = {"moments": Part(moment_sensitivity(d), 1, 0.5 if learnt else 1.0)}
        if learnt:
            parts["ranges"] = Part(zoom.sensitivity, zoom.rounds, 0.5)
        shares = session.shares(n, parts)
        if learnt:
            found = zoom.release_counts(rows.counted, n, *shares["ranges"])
            low, high, _ = np.array([learnt_range(each) for each in found]).T
            centre, half = (low + high) / 2, (high - low) / 2
        sums = rows.sum(CutMoments(centre, half))
        first, second = release_moments(sums, n, *shares["moments"]) / n
        first = np.clip(first, -1.0, 1.0)
        spread = np.sqrt(np.maximum(second - first**2, FLOOR**2))
        self.mean_ = centre + half * first
        self.scale_ = half * np.minimum(spread, 1.0)
        return self._close(session, n, table)

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
        """Return (X - mean_) / scale_."""
        check_is_fitted(self)
        table: Array = known_table(self, X)
        return (table - self.mean_) / self.scale_


@dataclass(frozen=True)
class CutMoments:
    """(2, d) sums of u and u^2 of some rows, u = clip((x - centre)/half, -1, 1)."""

    centre: Array
    half: Array

    def __call__(self, rows: Array) -> Array:
        """Return the sums."""
        u = within((rows - self.centre) / self.half)
        return np.stack([sum_rows(u), sum_rows(squares(u))])


def moment_sensitivity(columns: int) -> Sensitivity:
    """Return how far a row moves `CutMoments`."""
    proof = "columns cut to a public range: |(u, u^2)| <= sqrt(2d)"
    return Sensitivity.per_sample(math.sqrt(2 * columns), proof)


def release_moments(sums: Array, n: int, door: PrepaidDoor, mechanism: Gaussian) -> Array:
    """Add noise to the `CutMoments` of ``n`` rows."""
    sensitivity = moment_sensitivity(sums.shape[1])
    return door.pay(mechanism, FullBatch(n), sensitivity, 1, sums.shape).release(sums)


class PrivateBinner(OneToOneFeatureMixin, TransformerMixin, PrivateEstimator):
    """Replace every value by the number of its bin; the edges are learnt within a budget.

    Parameters
    ----------
    bins
        About how many cells of equal mass a column gets.
    bounds
        Public bounds: None, one pair (low, high), or one pair or None per column.
    epsilon, delta, relation, random_state, allow_large_delta, budget
        As in `PrivateLogisticRegression`, on top of what the model spends: see `total_guarantee`.
    """

    def __init__(
        self,
        bins: int = 32,
        bounds: Any = None,
        epsilon: float = 0.1,
        delta: float | None = None,
        relation: str = "add_or_remove_one",
        random_state: Any = None,
        allow_large_delta: bool = False,
        budget: PrivacyBudget | None = None,
    ) -> None:
        self._store(locals())

    def fit(self, X: Any, y: Any = None) -> Self:
        """Release the histograms of the columns of ``X`` and keep their edges."""
        X = read_table(self, X)
        n, d = X.shape
        plan = Bins(d, whole("bins", self.bins, 2), as_bounds(self.bounds, d))

        def key_of(target: Target) -> bytes:
            return key_for(self.random_state, None, "bins", self.bins, self.bounds, target, X)

        session = self._open(n, {"method": "bins", "n": n, "d": d}, key_of=key_of)
        mechanism = Gaussian(session.multiplier([plan.zoom.payment(n)]))
        self.edges_, _ = plan.release(X, session.door, mechanism)
        return self._close(session, n, X)

    def transform(self, X: Any) -> NDArray[np.int64]:
        """Return (n, columns) numbers of cells, 0 for what is below the first edge."""
        check_is_fitted(self)
        table: Array = known_table(self, X)
        return codes(table, self.edges_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # cells are whole numbers
        return tags


class PrivateEncoder(TransformerMixin, PrivateEstimator):
    """Replace every column by indicators of its categories, and one of "none of these".

    Values count as texts. What an encoder learns from rows is a release like any other: a category
    that a single person holds would be that person's.

    Parameters
    ----------
    categories
        Public lists of categories, one for each column, or None for a column whose categories are
        to be found inside the budget; None for all of them. Declared ones cost nothing.
    epsilon, delta, relation, random_state, allow_large_delta, budget
        As in `PrivateLogisticRegression`, on top of what the model spends: see `total_guarantee`.
        Half of delta is the chance that a category of one record is seen.

    Examples
    --------
    >>> import numpy as np
    >>> towns = np.array([["Bern"], ["Genf"]] * 2_000 + [["Zug"]], dtype=object)
    >>> encoder = PrivateEncoder(epsilon=0.5, random_state=0).fit(towns)
    >>> encoder.get_feature_names_out().tolist()
    ['x0_Bern', 'x0_Genf', 'x0_other']
    >>> encoder.transform([["Genf"], ["Zug"]]).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """

    def __init__(
        self,
        categories: Any = None,
        epsilon: float = 0.1,
        delta: float | None = None,
        relation: str = "add_or_remove_one",
        random_state: Any = None,
        allow_large_delta: bool = False,
        budget: PrivacyBudget | None = None,
    ) -> None:
        self._store(locals())

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the categories that were not declared, in one release for all columns."""
        table = self._texts(X, reset=True)
        n, k = table.shape
        known = self._declared(k)
        unknown = [number for number, names in enumerate(known) if names is None]

        def key_of(target: Target) -> bytes:
            terms = self.epsilon, target.delta, target.relation
            return key_for(self.random_state, None, "encoder", *terms, unknown, table.tolist())

        session = self._open(n, {"method": "encoder", "n": n, "d": k}, key_of=key_of)
        target = session.target
        if unknown:
            terms = n, self.epsilon, target.delta, target.relation
            mechanism = calibrated(len(unknown), *terms, admit=session.admit)
            found, _ = release(table[:, unknown], session.door, mechanism)
            for number, names in zip(unknown, found, strict=True):
                known[number] = names
        self.categories_ = [names for names in known if names is not None]
        return self._close(session, n)

    def _declared(self, columns: int) -> list[Texts | None]:
        if self.categories is None:
            return [None] * columns
        given = list(self.categories)
        if len(given) != columns or any(isinstance(names, str) for names in given):
            raise ConfigurationError(
                f"categories must be None, or a list or None for each of {columns} columns. Got "
                f"{self.categories!r} instead."
            )
        return [None if each is None else np.unique(texts_of(each).astype(str)) for each in given]

    def _texts(self, X: Any, reset: bool) -> Texts:
        table: Texts = read_table(self, X, reset=reset, read=as_texts)
        return table

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return (n, indicators)."""
        check_is_fitted(self)
        return one_hot(self._texts(X, reset=False), self.categories_)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return names of columns with those of their categories."""
        check_is_fitted(self)
        own = getattr(self, "feature_names_in_", None)
        named = own if input_features is None else input_features
        columns = [f"x{i}" for i in range(self.n_features_in_)] if named is None else list(named)
        return np.array(
            [
                f"{column}_{name}"
                for column, names in zip(columns, self.categories_, strict=True)
                for name in (*names, OTHER)
            ],
            dtype=object,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = []  # indicators, whatever came
        return tags
