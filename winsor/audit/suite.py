"""One audit: a claim, two worlds, a number of runs, and a row of the table."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from dp_accounting import dp_event

from winsor.audit.claims import (
    USUAL_DELTA,
    Claim,
    certified_claim,
    gaussian_epsilon,
    scaled,
)
from winsor.audit.curve import ALPHA, Experiment, Roc, Verdict, curve_test, invert
from winsor.contract import Neighbouring

History = list[tuple[dp_event.DpEvent, int]]

VECTORISED = 200_000
"""Runs per world where runs are stacked; a tenth in quick audits."""


@dataclass(frozen=True)
class Prepared:
    """What a curve test needs. ``history`` is what the ledger recorded, where there is one."""

    experiment: Experiment
    claim: Claim
    adversary: str
    history: History | None = None
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE


@dataclass(frozen=True)
class Audit:
    """A named audit; nothing is computed until `run`."""

    name: str
    prepare: Callable[[], Prepared]
    runs: int = VECTORISED
    quick_runs: int | None = None
    in_quick: bool = True

    def runs_for(self, quick: bool) -> int:
        if not quick:
            return self.runs
        return self.quick_runs if self.quick_runs is not None else max(2_000, self.runs // 10)


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    adversary: str
    relation: str
    claimed_epsilon: float
    lower_bound: float
    method: str
    delta: float
    runs: int
    violated: bool
    margin: float
    at_epsilon: float
    seconds: float

    @property
    def verdict(self) -> str:
        return "VIOLATED" if self.violated else "not violated"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def run(audit: Audit, quick: bool = False, alpha: float = ALPHA) -> Row:
    """Prepare, test, and state the best lower bound on epsilon that the runs prove."""
    start = time.perf_counter()
    prepared = audit.prepare()
    runs = audit.runs_for(quick)
    verdict = curve_test(prepared.experiment, prepared.claim, runs, USUAL_DELTA, alpha)
    bound, method = lower_bound(verdict, prepared, quick)
    return Row(
        name=audit.name,
        adversary=prepared.adversary,
        relation=prepared.relation.value,
        claimed_epsilon=prepared.claim.epsilon(USUAL_DELTA),
        lower_bound=bound,
        method=method,
        delta=USUAL_DELTA,
        runs=runs,
        violated=verdict.violated,
        margin=verdict.margin,
        at_epsilon=verdict.at_epsilon,
        seconds=time.perf_counter() - start,
    )


def certified(
    experiment: Any, adversary: str, relation: Neighbouring, points: int = 40
) -> Prepared:
    """An experiment with a ledger, tested against the curve certified for that ledger."""
    history = experiment.history
    claim = certified_claim(history, relation, points)
    return Prepared(experiment, claim, adversary, history, relation)


# --------------------------------------------------------------------------------- lower bounds


def lower_bound(verdict: Verdict, prepared: Prepared, quick: bool) -> tuple[float, str]:
    """The best epsilon at the usual delta: by inversion over the noise where there is a family.

    A family is the recorded history with its noise scaled: if the mechanism is of that kind at
    all, it has at least this epsilon. Without one, the bound that holds for any mechanism.
    """
    plain = verdict.roc.epsilon(USUAL_DELTA)
    if prepared.history is None:
        return plain, "Clopper-Pearson"
    mu = _gaussian_mu(prepared.history)
    if mu is not None:
        return max(plain, gaussian_epsilon(verdict.roc.mu(), USUAL_DELTA)), "Gaussian DP"
    if quick or not all(_scalable(event) for event, _ in prepared.history):
        return plain, "Clopper-Pearson"
    inverted = inverted_epsilon(prepared.history, prepared.relation, verdict.roc)
    return max(plain, inverted), "inversion"


def inverted_epsilon(history: History, relation: Neighbouring, roc: Roc, points: int = 16) -> float:
    """Epsilon of the history at the largest noise scale that the runs do not refute."""
    from winsor.accounting import account

    def family(factor: float) -> Claim:
        return certified_claim(scaled(history, factor), relation, points)

    factor = invert(family, roc, 0.5, 4.0, tolerance=0.005)
    if factor >= 4.0:
        return 0.0
    return account(scaled(history, factor), USUAL_DELTA, relation).epsilon


def _gaussian_mu(history: History) -> float | None:
    """mu of a history of unsampled Gaussian releases; None for any other."""
    if not all(isinstance(event, dp_event.GaussianDpEvent) for event, _ in history):
        return None
    return math.sqrt(sum(count / event.noise_multiplier**2 for event, count in history))


def _scalable(event: dp_event.DpEvent) -> bool:
    try:
        scaled([(event, 1)], 1.0)
    except TypeError:
        return False
    return True
