"""What several fits of the same records have spent together.

Fits inside a composite count where each is found: the composite is known to fit every part once and
to keep it, or a `PrivacyBudget` has counted its fits. Whatever else learns from the rows has no
guarantee, and the composite with it has none: it is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from winsor.core.contract import ConfigurationError, Guarantee
from winsor.core.ledger.ledger import Ledger
from winsor.planning.holders import guarantee_of, ledger_of
from winsor.planning.shared_budget import PrivacyBudget, added_up

SEARCHED = (
    "the scores of a search, and its choice by them, read the rows without privacy: not covered "
    "(winsor.tuning chooses privately)"
)
CLASSES, READ_CLASSES = (
    "the classes are public: they were read off y",
    ("LabelBinarizer", "LabelEncoder"),
)
KEEPS_ALL = {
    "BaggingClassifier", "BaggingRegressor", "ColumnTransformer", "FeatureUnion",
    "FixedThresholdClassifier", "FrozenEstimator", "MultiOutputClassifier", "MultiOutputRegressor",
    "OneVsRestClassifier", "Pipeline", "SelectFromModel", "TransformedTargetRegressor",
    "VotingClassifier", "VotingRegressor",
}  # fmt: skip
"""Composites of scikit-learn that fit every part once, and keep it."""
ONLY_REFITS = (
    "ClassifierChain",
    "RegressorChain",
    "RFE",
    "StackingClassifier",
    "StackingRegressor",
)
"""Those that fit parts several times, and learn nothing from rows but by their parts."""
READS_ROWS = {
    "AdaBoostClassifier": "weights of rows",
    "AdaBoostRegressor": "weights of rows",
    "CalibratedClassifierCV": "calibrators",
    "SelfTrainingClassifier": "choice of rows",
    "TunedThresholdClassifierCV": "threshold",
}
"""Those that learn something from rows themselves, and what."""

Part = tuple[Ledger, Guarantee]


def total_guarantee(*fitted: Any, delta: float | None = None) -> Guarantee:
    """Compose the ledgers of winsor objects into one guarantee; also called `winsor.total`.

    Fitted estimators, `PrivateNorm`, private means, training runs: whatever is found inside a
    pipeline or another composite, and all fits that registered in a budget. A composite that fits
    its parts several times must have one; the scores of a search are named among the conditions,
    for no ledger covers them. Other parts that learned from the rows without privacy are refused,
    as are two ledgers with one key, and ledgers of different units or relations.

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
    if named := sorted({*_learners(inside)}):
        raise ConfigurationError(
            "every part that learns from the rows must be private to be added up. Got "
            f"{', '.join(named)} instead: no guarantee covers them. Use PrivateScaler, "
            "PrivateBinner or PrivateEncoder, leave them out, or fit them on public rows and pass "
            "them in sklearn.frozen.FrozenEstimator."
        )
    conditions = [condition for each in inside for condition in _conditions_of(each)]
    parts = _parts(inside)
    if not parts:
        raise ConfigurationError(
            "give at least one fitted winsor estimator, run or estimate. Got none with a ledger "
            "instead."
        )
    return added_up(parts, delta, tuple(conditions))


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


def is_private(thing: Any) -> bool:
    """Return whether what an estimator learns is a release, which its ledger has paid for."""
    return type(thing).__module__.split(".")[0] == "winsor" or ledger_of(thing) is not None


def learns(step: Any) -> bool:
    """Return whether an estimator learns from rows without privacy, as far as its tags say.

    An encoder whose categories are written down has nothing left to learn.
    """
    options, tags = vars(step), getattr(step, "__sklearn_tags__", None)
    declared = (
        _sklearn_name(step) in ("OneHotEncoder", "OrdinalEncoder")
        and not isinstance(options["categories"], str)
        and options["min_frequency"] is None
        and options["max_categories"] is None
    )
    if is_private(step) or declared or not hasattr(step, "fit"):
        return False
    return tags is None or bool(tags().requires_fit)


def _sklearn_name(thing: Any) -> str:
    """The name of a class of scikit-learn; nothing for a subclass, which may do anything."""
    return type(thing).__name__ if type(thing).__module__.startswith("sklearn.") else ""


def _learners(inside: list[Any]) -> Iterator[str]:
    """Name what learns from rows without privacy, beside or around private estimators."""
    frozen = [each for each in inside if _sklearn_name(each) == "FrozenEstimator"]
    public = {id(each) for one in frozen for each in _within(one)}  # fitted elsewhere
    for each in filter(_is_estimator, inside):
        name = _sklearn_name(each)
        if id(each) in public:
            continue
        if not _is_composite(each):
            if learns(each) and name not in READ_CLASSES:
                yield type(each).__name__
        elif getattr(each, "bootstrap", False):
            yield f"{type(each).__name__}, which repeats rows"
        elif name in READS_ROWS:
            yield f"the {READS_ROWS[name]} of {name}"


def _is_composite(thing: Any) -> bool:
    """Return whether ``thing`` is another's estimator with private estimators inside."""
    return not is_private(thing) and any(
        is_private(each) for each in _within(thing) if _is_estimator(each)
    )


def _conditions_of(composite: Any) -> Iterator[str]:
    """Yield what the total does not cover; refuse a composite whose fits cannot be counted."""
    name = _sklearn_name(composite)
    if name in READ_CLASSES:
        yield CLASSES
    if not _is_estimator(composite) or not _is_composite(composite) or name in KEEPS_ALL:
        return
    _check_counted(composite)
    if hasattr(composite, "cv_results_") or name == "SequentialFeatureSelector":
        yield SEARCHED
    elif name not in ONLY_REFITS:
        yield f"{type(composite).__name__} itself reads no row: winsor cannot see inside"


def _check_counted(composite: Any) -> None:
    """Every private estimator inside must have a budget: the composite keeps some fits of many."""
    for each in filter(_is_estimator, _within(composite)):
        own = each.get_params(deep=False)
        if "epsilon" in own and own.get("budget") is None:
            raise ConfigurationError(
                "every private step must have a budget to be added up where clones are fitted and "
                f"not all are kept. Got a {type(each).__name__} in a {type(composite).__name__} "
                "without instead. Give it budget=PrivacyBudget() (the same object for all steps "
                "will do) and fit again."
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
