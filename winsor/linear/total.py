"""What several fits of the same records have spent together."""

from __future__ import annotations

from typing import Any

from sklearn.pipeline import Pipeline

from winsor.contract import ConfigurationError, Guarantee, Neighbouring
from winsor.ledger.guarantee import guarantee
from winsor.ledger.ledger import Ledger
from winsor.linear.shared_budget import PrivacyBudget, budget_in


def total_guarantee(*fitted: Any, delta: float | None = None) -> Guarantee:
    """Compose the ledgers of fitted winsor objects (a pipeline counts as its steps, a search as all
    fits that registered in its estimator's budget).

    Sequential composition: right for any overlap of the records. ``delta`` is the one to certify
    at; None takes the smallest of the parts.

    Examples
    --------
    >>> import numpy as np
    >>> from winsor.linear import PrivateLinearRegression, total_guarantee
    >>> X = np.random.default_rng(0).standard_normal((1000, 2))
    >>> one = PrivateLinearRegression(epsilon=0.5, random_state=0).fit(X, X[:, 0])
    >>> two = PrivateLinearRegression(epsilon=0.5, random_state=1).fit(X, X[:, 1])
    >>> 0.5 < total_guarantee(one, two).epsilon < 1.0
    True
    """
    parts = [part for thing in fitted for part in _parts(thing)]
    if not parts:
        raise ConfigurationError(
            "give at least one fitted winsor estimator. Got none with a ledger_ instead."
        )
    guarantees = [reached for _, reached in parts]
    relation: Neighbouring = guarantees[0].relation
    if any(each.relation is not relation for each in guarantees):
        raise ConfigurationError(
            "all parts must use one neighbouring relation. Got "
            f"{sorted({each.relation.value for each in guarantees})} instead."
        )
    at = min(each.delta for each in guarantees) if delta is None else delta
    return guarantee(
        [ledger for ledger, _ in parts],
        at,
        relation,
        samplers=[each.sampler for each in guarantees],
        conditions=[condition for each in guarantees for condition in each.conditions],
    )


def _parts(thing: Any) -> list[tuple[Ledger, Guarantee]]:
    """Ledgers and guarantees of a fitted object, a pipeline, a search or a budget, each once."""
    if isinstance(thing, PrivacyBudget):
        return thing.fits
    if hasattr(thing, "best_estimator_") or hasattr(thing, "cv_results_"):
        budget = budget_in(thing)
        if budget is None:
            raise ConfigurationError(
                "a search must have a budget to be added up: it fitted many clones, and kept one. "
                f"Got a {type(thing).__name__} without instead. Give its estimator "
                "budget=PrivacyBudget() and search again."
            )
        return budget.fits
    steps = [step for _, step in thing.steps] if isinstance(thing, Pipeline) else [thing]
    found: list[tuple[Ledger, Guarantee]] = []
    for step in steps:
        budget = getattr(step, "budget", None)
        more = [(step.ledger_, step.guarantee_)] if hasattr(step, "ledger_") else []
        if isinstance(budget, PrivacyBudget):
            more = [*budget.fits, *more]
        found += [each for each in more if all(each[0] is not known for known, _ in found)]
    return found
