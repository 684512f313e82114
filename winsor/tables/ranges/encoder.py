"""Columns of texts as indicators: categories that were declared, or found inside the budget."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from winsor.core.checks import as_delta, as_relation
from winsor.core.contract import ConfigurationError
from winsor.core.inputs import as_key
from winsor.core.ledger.ledger import Ledger
from winsor.core.ledger.shared_budget import PrivacyBudget
from winsor.core.prepaid import PrepaidDoor
from winsor.tables.ranges.categories import Texts, as_texts, calibrated, one_hot, release
from winsor.tables.surroundings import begin_fit, count_fit

OTHER = "other"


class PrivateEncoder(TransformerMixin, BaseEstimator):
    """Replace every column by indicators of its categories, and one of "none of these".

    Values count as texts. What an encoder learns from rows is a release like any other: a category
    that a single person holds would be that person's.

    Parameters
    ----------
    categories
        Public lists of categories, one for each column, or None for a column whose categories are
        to be found inside the budget; None for all of them. Declared ones cost nothing.
    epsilon, delta
        The budget of one `fit`, on top of whatever the model spends: see `total_guarantee`. Half of
        delta is the chance that a category of one record is seen.
    relation, random_state, allow_large_delta, budget
        As in `PrivateLogisticRegression`.

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
        self.categories = categories
        self.epsilon = epsilon
        self.delta = delta
        self.relation = relation
        self.random_state = random_state
        self.allow_large_delta = allow_large_delta
        self.budget = budget

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the categories that were not declared, in one release for all columns."""
        begin_fit(self)
        table = self._texts(X, reset=True)
        n, k = table.shape
        known = self._declared(k)
        unknown = [number for number, names in enumerate(known) if names is None]
        delta = as_delta(self.delta, n, self.allow_large_delta)
        relation = as_relation(self.relation)
        state = self.random_state
        seed = int(state.randint(2**31 - 1)) if hasattr(state, "randint") else state
        key = as_key(seed, "encoder", self.epsilon, delta, relation, unknown, table)
        door = PrepaidDoor(Ledger({"method": "encoder", "n": n, "d": k}), relation, key)
        if unknown:
            mechanism = calibrated(len(unknown), n, self.epsilon, delta, relation)
            found, _ = release(table[:, unknown], door, mechanism)
            for number, names in zip(unknown, found, strict=True):
                known[number] = names
        self.categories_ = [names for names in known if names is not None]
        self.ledger_ = door.ledger
        self.guarantee_ = door.guarantee(delta, (f"n = {n} is public",))
        self.epsilon_, self.delta_ = self.guarantee_.epsilon, self.guarantee_.delta
        count_fit(self, None)
        return self

    def _declared(self, columns: int) -> list[Texts | None]:
        if self.categories is None:
            return [None] * columns
        given = list(self.categories)
        if len(given) != columns or any(isinstance(names, str) for names in given):
            raise ConfigurationError(
                f"categories must be None, or a list or None for each of {columns} columns. Got "
                f"{self.categories!r} instead."
            )
        return [None if names is None else np.unique(np.asarray(names, str)) for names in given]

    def _texts(self, X: Any, reset: bool) -> Texts:
        return as_texts(validate_data(self, X, dtype=None, ensure_all_finite=False, reset=reset))

    def transform(self, X: Any) -> NDArray[np.float64]:
        """(n, indicators)."""
        check_is_fitted(self)
        return one_hot(self._texts(X, reset=False), self.categories_)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Names of columns with those of their categories."""
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
        tags.input_tags.string = tags.input_tags.categorical = tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = []  # indicators, whatever came
        return tags
