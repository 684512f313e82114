"""What a fit can see of where it is called from, to warn of what its guarantee does not cover.

scikit-learn's searches fit one clone after the other on the same rows, and its pipelines fit
scalers before us; neither tells the estimator. The call stack does. Nothing here touches data.

* inside `sklearn.model_selection` without a shared budget: the clones' spending is counted nowhere
* inside a `Pipeline` behind a step that learns from the rows without privacy (parts of unions and
  column transformers included; an encoder with declared categories learns nothing)
* an array of an earlier fit under a secret key, without a shared budget. Arrays are told by their
  place in memory: were it by their values, the warning would answer guesses about rows (seeded
  fits are for experiments and protect nobody)
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline

from winsor.core.contract import ConfigurationError, PrivacyLeakWarning
from winsor.planning.total import learns

_SEEN: list[weakref.ref[Any]] = []
_GIVEN: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
_MOST_SEEN = 256
_ON_PURPOSE: ContextVar[bool] = ContextVar("rows are fitted again on purpose", default=False)


@contextmanager
def fitted_on_purpose() -> Iterator[None]:
    """Silence warnings of reuse, for those who fit rows again knowingly: audits and private
    searches."""
    before = _ON_PURPOSE.set(True)
    try:
        yield
    finally:
        _ON_PURPOSE.reset(before)


def begin_fit(estimator: Any) -> None:
    """Warn of where a private estimator is called from, before it touches rows."""
    _warn_of_surroundings(estimator, getattr(estimator, "budget", None) is not None)


def note_given(estimator: Any, X: Any) -> None:
    """Remember the array that the user passed: what is read of it is another one."""
    if isinstance(X, np.ndarray):
        _GIVEN[estimator] = weakref.ref(X if X.base is None else X.base)


def count_fit(estimator: Any, X: Any, resumed: bool = False) -> None:
    """Warn of rows that were fitted before, and register a certified fit in its budget."""
    budget = getattr(estimator, "budget", None)
    given = _GIVEN.pop(estimator, lambda: None)()
    X = X if given is None else given
    _warn_of_reuse(X, estimator.random_state is not None or resumed, budget is not None)
    if budget is not None:
        budget.register(estimator.ledger_, estimator.guarantee_)


def _warn_of_surroundings(estimator: Any, has_budget: bool) -> None:
    """Warn of a search without a budget, and of steps of a pipeline that are not private."""
    frame = sys._getframe(2)
    searched, looked_at = has_budget, set()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("sklearn.model_selection") and not searched:
            searched = True
            _warn(
                f"{type(estimator).__name__} is fitted by a search or a cross-validation, on "
                "rows that other fits see too: epsilon_ counts one fit only. Give "
                "budget=PrivacyBudget() and ask total_guarantee(search)."
            )
        owner = frame.f_locals.get("self")
        if name.startswith("sklearn.ensemble"):
            _refuse_repeated_rows(frame.f_locals.get("ensemble", owner))
        if (
            name == "sklearn.pipeline"
            and isinstance(owner, Pipeline)
            and id(owner) not in looked_at
        ):
            looked_at.add(id(owner))
            for label, step in owner.steps[:-1]:
                _warn_of_step(label, step)
        frame = frame.f_back  # type: ignore[assignment]


def _refuse_repeated_rows(ensemble: Any) -> None:
    """Refuse an ensemble that fits rows several times in one fit: a row is then bounded more than
    once."""
    if getattr(ensemble, "bootstrap", False) or type(ensemble).__name__ == "AdaBoostRegressor":
        raise ConfigurationError(
            "every row must be in a fit once. Got a fit by a "
            f"{type(ensemble).__name__}, which draws rows with replacement, instead. Use "
            "bootstrap=False."
        )


def _warn_of_step(label: str, step: Any) -> None:
    """Warn of a step that learns from rows without privacy, or of such a part of it."""
    if step is None or isinstance(step, str):  # "passthrough", "drop"
        return
    if (parts := _parts_of(step)) is not None:
        for inner, part in parts:
            _warn_of_step(f"{label}: {inner}", part)
    elif learns(step):
        _warn(
            f"step {label!r} ({type(step).__name__}) of the pipeline learns from the rows "
            "without privacy: no guarantee covers what it passes on. Use PrivateScaler or "
            "PrivateBinner, declare categories, or leave it out: the default method learns ranges "
            "by itself."
        )


def _parts_of(step: Any) -> list[tuple[str, Any]] | None:
    """Named parts of a composite that learns nothing by itself; None for anything else."""
    if isinstance(step, Pipeline):
        return list(step.steps)
    if isinstance(step, FeatureUnion):
        return list(step.transformer_list)
    if isinstance(step, ColumnTransformer):
        given = [(name, part) for name, part, _ in step.transformers]
        return [*given, ("remainder", step.remainder)]
    return None


def _warn_of_reuse(X: Any, seeded: bool, has_budget: bool) -> None:
    """Warn if an array was in an earlier fit under a secret key and nothing adds the fits up."""
    if seeded or has_budget or not isinstance(X, np.ndarray) or _ON_PURPOSE.get():
        return
    owner = X if X.base is None else X.base
    if any(seen() is owner for seen in _SEEN):
        _warn(
            "these rows were in an earlier fit: what both reveal adds up, and epsilon_ counts one "
            "fit only. Give both fits one budget=PrivacyBudget(), or add them up with "
            "total_guarantee(one, two)."
        )
    with suppress(TypeError):  # memory of a kind that cannot be watched
        _SEEN.append(weakref.ref(owner))
    del _SEEN[:-_MOST_SEEN]


def _warn(message: str) -> None:
    """Warn at the line of the first caller outside of winsor and scikit-learn."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and _is_library(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, PrivacyLeakWarning, stacklevel=level)


def _is_library(module: str) -> bool:
    return module.split(".")[0] in ("winsor", "sklearn", "numpy")
