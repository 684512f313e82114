"""Fits over the same rows, counted together: what a grid search has really spent.

A search clones an estimator and fits every clone; each clone knows its own ledger only. A
`PrivacyBudget` is the one thing that clones share: every fit with ``budget=`` registers in it, and
`total_guarantee` of the search reads it.

Guarantee
---------
Sequential composition of all registered ledgers, right for any overlap of their rows. With a
ceiling, a fit whose plan would pass it is refused before its first release.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Self

from winsor.core.checks import positive, probability
from winsor.core.contract import BudgetExceeded, ConfigurationError, Guarantee, ProtocolError
from winsor.core.events.registry import History
from winsor.core.ledger.guarantee import about_of, guarantee, spent_by, together
from winsor.core.ledger.ledger import Ledger, agree
from winsor.core.prepaid import PrepaidDoor

_ONE_AT_A_TIME = threading.Lock()


class PrivacyBudget:
    """A register of fits. Give the same object to everything that sees the same rows.

    Parameters
    ----------
    epsilon, delta
        The ceiling of all fits together; None for no ceiling. ``delta=None`` certifies at the
        smallest delta of the fits. A fit that was admitted and failed stays counted.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import GridSearchCV
    >>> from winsor.tables import PrivateRidge, PrivacyBudget, total_guarantee
    >>> X = np.random.default_rng(0).standard_normal((500, 2))
    >>> model = PrivateRidge(epsilon=0.5, random_state=0, budget=PrivacyBudget(epsilon=3.0))
    >>> search = GridSearchCV(model, {"alpha": [0.1, 1.0]}, cv=2).fit(X, X[:, 0])
    >>> len(search.estimator.budget), bool(total_guarantee(search).epsilon > 1.0)
    (5, True)
    """

    def __init__(self, epsilon: float | None = None, delta: float | None = None) -> None:
        self.epsilon = None if epsilon is None else positive("epsilon", epsilon)
        self.delta = None if delta is None else probability("delta", delta)
        self._fits: list[tuple[Ledger, Guarantee]] = []
        self._planned: dict[str, tuple[History, float]] = {}
        self._process = os.getpid()

    def __deepcopy__(self, memo: Any) -> Self:
        """Clones register in the one budget that they came from."""
        return self

    def __copy__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._fits)

    def __repr__(self) -> str:
        ceiling = "" if self.epsilon is None else f", at most epsilon={self.epsilon:g}"
        return f"<PrivacyBudget of {len(self)} fits{ceiling}>"

    def opened_by(
        self, door: PrepaidDoor, delta: float, own_key: bool = False
    ) -> Callable[[History], None]:
        """Return what admits or refuses the plan of a fit that is to be certified at ``delta``.

        A fit that was repeated to the letter releases the same values and costs nothing: keys from
        seeds belong to the rows and the settings. An ``own_key`` belongs to nothing.
        """
        if os.getpid() != self._process:
            raise ProtocolError(
                "fits must register in the process of their PrivacyBudget. Got one in another "
                "process, whose spending would be lost. Use n_jobs=1 (or n_jobs=None)."
            )
        others = [ledger for ledger, _ in self._fits if ledger is not door.ledger]
        about_of(others, **door.ledger.about)
        repeated = any(door.run in ledger.runs for ledger in others)
        if repeated and own_key:
            raise ProtocolError(
                "a key of one's own must be used for one fit. Got it for a second one, perhaps of "
                "other rows: the difference of the two has no noise. Use random_state=None, or an "
                "integer seed for experiments."
            )
        before = door.ledger.history()

        def admit(plan: History) -> None:
            if self.epsilon is not None and not repeated:
                with _ONE_AT_A_TIME:
                    self._refuse_beyond(door, [*before, *plan], delta)
                    self._planned[door.run] = [*before, *plan], delta

        return admit

    def _refuse_beyond(self, door: PrepaidDoor, history: History, delta: float) -> None:
        """Raise `BudgetExceeded` if ``history`` on top of all other fits passes the ceiling."""
        known = [(ledger, reached) for ledger, reached in self._fits if ledger is not door.ledger]
        planned = [each for run, each in self._planned.items() if run != door.run]
        whole = [*together(ledger for ledger, _ in known), *history]
        whole += [event for events, _ in planned for event in events]
        deltas = [delta, *(reached.delta for _, reached in known), *(own for _, own in planned)]
        level = min(deltas) if self.delta is None else self.delta
        spent = spent_by(whole, level, door.relation).epsilon
        assert self.epsilon is not None
        if spent > self.epsilon:
            raise BudgetExceeded(
                f"all fits of a PrivacyBudget must stay within epsilon={self.epsilon:g} at "
                f"delta={level:.3g}. Got one that would bring them to {spent:.4g} instead. Nothing "
                "of it was released. Fit with a smaller epsilon, or fewer settings and folds."
            )

    def register(self, ledger: Ledger, reached: Guarantee) -> None:
        """Count a fit that was opened here, once."""
        known = [each for each, _ in self._fits]
        if any(each is ledger for each in known):
            self._fits = [(each, reached if each is ledger else old) for each, old in self._fits]
        elif not any(set(each.runs) & set(ledger.runs) for each in known):
            if self.epsilon is not None and ledger.runs and not self._planned.keys() & ledger.runs:
                raise ProtocolError(
                    "fits under a ceiling must be admitted before they release. Got one that was "
                    "not. Give it budget= of an estimator of winsor."
                )
            self._fits.append((ledger, reached))
        for run in ledger.runs:
            self._planned.pop(run, None)

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
        return added_up(self._fits, self.delta if delta is None else delta)


def added_up(
    parts: list[tuple[Ledger, Guarantee]], delta: float | None, conditions: tuple[str, ...] = ()
) -> Guarantee:
    """Compose ledgers with the guarantees of each; ``delta=None`` is the smallest of theirs."""
    reached = [each for _, each in parts]
    ledgers = [ledger for ledger, _ in parts]
    own = [condition for each in reached for condition in each.conditions]
    about = about_of(ledgers)
    for each in reached:  # ledgers of older versions do not say their relation
        about = agree(about, {"relation": each.relation.value})
    if len(ledgers) > 1 and about["unit"] != "row":
        own.append(SAME_UNIT)
    return guarantee(
        ledgers,
        min(each.delta for each in reached) if delta is None else delta,
        reached[0].relation,
        samplers=[each.sampler for each in reached],
        conditions=[*own, *conditions],
    )


SAME_UNIT = "the identifiers of all parts name the same units"


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
