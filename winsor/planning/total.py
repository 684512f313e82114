"""What several fits of the same records have spent together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from winsor.core.contract import ConfigurationError, Guarantee, Neighbouring
from winsor.core.ledger.guarantee import guarantee
from winsor.core.ledger.ledger import Ledger
from winsor.planning.holders import guarantee_of, ledger_of
from winsor.planning.shared_budget import PrivacyBudget

SEARCHED = (
    "the scores of a search, and its choice by them, read the rows without privacy: not covered "
    "(winsor.tuning chooses privately)"
)

Part = tuple[Ledger, Guarantee]


def total_guarantee(*fitted: Any, delta: float | None = None) -> Guarantee:
    """Compose the ledgers of winsor objects into one guarantee; also called `winsor.total`.

    Fitted estimators, `PrivateNorm`, private means, training runs: whatever is found inside a
    pipeline or another composite, and all fits that registered in a budget. A search must have one,
    and its scores are named among the conditions, for no ledger covers them. Two ledgers with one
    key are refused: their noise is the same.

    Sequential composition: right for any overlap of the records. ``delta`` is the one to certify
    at; None takes the smallest of the parts.

    Examples
    --------
    >>> import numpy as np
    >>> from winsor.tables import PrivateLinearRegression, total_guarantee
    >>> X = np.random.default_rng(0).standard_normal((1000, 2))
    >>> one = PrivateLinearRegression(epsilon=0.5, random_state=0).fit(X, X[:, 0])
    >>> two = PrivateLinearRegression(epsilon=0.5, random_state=1).fit(X, X[:, 1])
    >>> 0.5 < total_guarantee(one, two).epsilon < 1.0
    True
    """
    inside = list(_within(fitted))
    searches = [each for each in inside if hasattr(each, "cv_results_")]
    for search in searches:
        _check_counted(search)
    parts = _parts(inside)
    if not parts:
        raise ConfigurationError(
            "give at least one fitted winsor estimator, run or estimate. Got none with a ledger "
            "instead."
        )
    guarantees = [reached for _, reached in parts]
    relation: Neighbouring = guarantees[0].relation
    if any(each.relation is not relation for each in guarantees):
        raise ConfigurationError(
            "all parts must use one neighbouring relation. Got "
            f"{sorted({each.relation.value for each in guarantees})} instead."
        )
    conditions = [condition for each in guarantees for condition in each.conditions]
    return guarantee(
        [ledger for ledger, _ in parts],
        min(each.delta for each in guarantees) if delta is None else delta,
        relation,
        samplers=[each.sampler for each in guarantees],
        conditions=[*conditions, *([SEARCHED] if searches else [])],
    )


def _within(thing: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Every estimator, run, estimate and budget that is reachable from attributes and containers,
    each once."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    if isinstance(thing, PrivacyBudget) or _is_estimator(thing) or ledger_of(thing) is not None:
        seen.add(id(thing))
        yield thing
    if _is_estimator(thing):
        inner: Any = vars(thing).values()
    elif isinstance(thing, Mapping):
        inner = thing.values()
    elif isinstance(thing, list | tuple | set | frozenset):
        inner = thing
    elif isinstance(thing, np.ndarray) and thing.dtype == object:
        inner = np.ma.getdata(thing).ravel().tolist()
    else:
        return
    seen.add(id(thing))
    for each in inner:
        yield from _within(each, seen)


def _is_estimator(thing: Any) -> bool:
    """Return whether ``thing`` is an estimator as in scikit-learn, which the core does not load."""
    return not isinstance(thing, type) and hasattr(thing, "get_params")


def _check_counted(search: Any) -> None:
    """Every private estimator of a search must have a budget: the search keeps one fit of many."""
    for each in _within(search):
        if not _is_estimator(each):
            continue
        own = each.get_params(deep=False)
        if "epsilon" in own and own.get("budget") is None:
            raise ConfigurationError(
                "every private step of a search must have a budget to be added up: many clones "
                f"were fitted, and one was kept. Got a {type(each).__name__} in a "
                f"{type(search).__name__} without instead. Give it budget=PrivacyBudget() (the "
                "same object for all steps will do) and search again."
            )


def _parts(inside: list[Any]) -> list[Part]:
    """Ledgers and guarantees, each once."""
    found: list[Part] = []
    for each in inside:
        more = each.fits if isinstance(each, PrivacyBudget) else []
        ledger = ledger_of(each)
        if ledger is not None:
            more = [(ledger, guarantee_of(each))]
        found += [part for part in more if all(part[0] is not known for known, _ in found)]
    return found


total = total_guarantee
"""Its name at the front door."""
