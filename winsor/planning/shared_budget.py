"""Fits over the same rows, counted together: what a grid search has really spent.

A search clones an estimator and fits every clone; each clone knows its own ledger only. A
`PrivacyBudget` is the one thing that clones share: every fit with ``budget=`` registers in it, and
`total_guarantee` of the search reads it.

Guarantee
---------
Sequential composition of all registered ledgers, right for any overlap of their rows.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any, Self

from winsor.core.contract import ConfigurationError, Guarantee, Neighbouring, ProtocolError
from winsor.core.ledger.guarantee import guarantee
from winsor.core.ledger.ledger import Ledger


class PrivacyBudget:
    """A register of fits. Give the same object to everything that sees the same rows.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import GridSearchCV
    >>> from winsor.tables import PrivateRidge, PrivacyBudget, total_guarantee
    >>> X = np.random.default_rng(0).standard_normal((500, 2))
    >>> model = PrivateRidge(epsilon=0.5, random_state=0, budget=PrivacyBudget())
    >>> search = GridSearchCV(model, {"alpha": [0.1, 1.0]}, cv=2).fit(X, X[:, 0])
    >>> len(search.estimator.budget), bool(total_guarantee(search).epsilon > 1.0)
    (5, True)
    """

    def __init__(self) -> None:
        self._fits: list[tuple[Ledger, Guarantee]] = []
        self._process = os.getpid()

    def __deepcopy__(self, memo: Any) -> Self:
        """Clones register in the one budget that they came from."""
        return self

    def __copy__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._fits)

    def __repr__(self) -> str:
        return f"<PrivacyBudget of {len(self)} fits>"

    def register(self, ledger: Ledger, reached: Guarantee, own_key: bool = False) -> None:
        """Count a fit, once. A fit that was repeated to the letter released the same values: keys
        from seeds belong to the rows and the settings. An ``own_key`` belongs to nothing."""
        if os.getpid() != self._process:
            raise ProtocolError(
                "fits must register in the process of their PrivacyBudget. Got one in another "
                "process, whose spending would be lost. Use n_jobs=1 (or n_jobs=None)."
            )
        known = [each for each, _ in self._fits]
        repeated = any(set(each.runs) & set(ledger.runs) for each in known)
        if any(each is ledger for each in known):
            self._fits = [(each, reached if each is ledger else old) for each, old in self._fits]
        elif repeated and own_key:
            raise ProtocolError(
                "a key of one's own must be used for one fit. Got it for a second one, perhaps of "
                "other rows: the difference of the two has no noise. Use random_state=None, or an "
                "integer seed for experiments."
            )
        elif not repeated:
            self._fits.append((ledger, reached))

    @property
    def fits(self) -> list[tuple[Ledger, Guarantee]]:
        """Ledger and guarantee of every registered fit."""
        return list(self._fits)

    def guarantee(self, delta: float | None = None) -> Guarantee:
        """What all registered fits certify together."""
        if not self._fits:
            raise ConfigurationError(
                "a PrivacyBudget must have fits to certify. Got none instead: fit something with "
                "budget= this object."
            )
        reached = [each for _, each in self._fits]
        relation: Neighbouring = reached[0].relation
        if any(each.relation is not relation for each in reached):
            raise ConfigurationError(
                "all fits of a budget must use one neighbouring relation. Got "
                f"{sorted({each.relation.value for each in reached})} instead."
            )
        return guarantee(
            [ledger for ledger, _ in self._fits],
            min(each.delta for each in reached) if delta is None else delta,
            relation,
            samplers=[each.sampler for each in reached],
            conditions=[condition for each in reached for condition in each.conditions],
        )


def settings_of(estimator: Any) -> dict[str, Any]:
    """The parameters that a key from a seed belongs to: all but the budget, which only counts.

    Estimators and distributions among them are told by their class and their own parameters.
    """
    given = estimator.get_params().items()
    return {name: _told(value) for name, value in given if name.split("__")[-1] != "budget"}


def _told(value: Any) -> Any:
    kind = type(value)
    told = isinstance(value, type) or dataclasses.is_dataclass(value)
    if hasattr(value, "get_params") and not told and kind.__name__ != "FrozenEstimator":
        return kind, settings_of(value)  # of a frozen one, what it was fitted to would be missing
    if kind is dict:
        return {key: _told(each) for key, each in value.items()}
    if kind in (list, tuple):
        return kind(map(_told, value))
    law = getattr(value, "dist", None)  # of a frozen distribution of scipy.stats
    name = str(getattr(law, "name", ""))
    if law is not None and type(getattr(sys.modules.get("scipy.stats"), name, None)) is type(law):
        return name, value.args, value.kwds
    return value
