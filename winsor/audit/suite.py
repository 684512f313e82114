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
    family_of,
    gaussian_epsilon,
    scaled,
)
from winsor.audit.curve import ALPHA, Experiment, Roc, Verdict, curve_test, invert
from winsor.contract import Neighbouring, UnsupportedEvent

History = list[tuple[dp_event.DpEvent, int]]

VECTORISED = 200_000
"""Runs per world where runs are stacked; a quarter in quick audits, where a ten per cent lie at
epsilon 4 is still caught (how often: `benchmarks/results/audit_power.json`)."""
MORE_NOISE = 1.1
"""Thresholds that measure the noise of a known law are those that tell it from so much more."""
MOST_NOISE = 4.0
"""Inversion looks for noise up to so many times what the history says."""


@dataclass(frozen=True)
class Prepared:
    """What a curve test needs.

    ``history`` says of which kind the mechanism is, so that its noise can be measured: what the
    ledger recorded, or for a published mechanism the exact law of the instance under attack.
    ``published`` claims are points; a measured epsilon above the point violates them, too.
    """

    experiment: Experiment
    claim: Claim
    adversary: str
    history: History | None = None
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    delta: float = USUAL_DELTA
    published: bool = False


@dataclass(frozen=True)
class Audit:
    """A named audit; nothing is computed until `run`."""

    name: str
    prepare: Callable[[], Prepared]
    runs: int = VECTORISED
    quick_runs: int | None = None

    def runs_for(self, quick: bool) -> int:
        if not quick:
            return self.runs
        return self.quick_runs if self.quick_runs is not None else self.runs // 4


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
    error: str = ""

    @property
    def verdict(self) -> str:
        if self.error:
            return f"ERROR: {self.error}"
        return "VIOLATED" if self.violated else "not violated"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def run(audit: Audit, quick: bool = False, alpha: float = ALPHA) -> Row:
    """Prepare, test, and state the best lower bound on epsilon that the runs prove."""
    start = time.perf_counter()
    prepared = audit.prepare()
    runs = audit.runs_for(quick)
    delta = prepared.delta
    steer = None
    if prepared.published and prepared.history is not None:
        # Not the law itself: nothing exceeds it but by luck, and thresholds would follow that luck.
        steer = certified_claim(scaled(prepared.history, MORE_NOISE), prepared.relation)
    verdict = curve_test(prepared.experiment, prepared.claim, runs, delta, alpha, steer)
    bound, method = lower_bound(verdict, prepared, quick)
    claimed = prepared.claim.epsilon(delta)
    return Row(
        name=audit.name,
        adversary=prepared.adversary,
        relation=prepared.relation.value,
        claimed_epsilon=claimed,
        lower_bound=bound,
        method=method,
        delta=delta,
        runs=runs,
        violated=verdict.violated or (prepared.published and bound > claimed),
        margin=verdict.margin,
        at_epsilon=verdict.at_epsilon,
        seconds=time.perf_counter() - start,
    )


def run_or_explain(audit: Audit, quick: bool = False) -> Row:
    """`run`, with an audit that cannot be carried out as a row of its own: never a pass."""
    start = time.perf_counter()
    try:
        return run(audit, quick)
    except Exception as error:
        return Row(
            name=audit.name,
            adversary="",
            relation="",
            claimed_epsilon=math.nan,
            lower_bound=math.nan,
            method="",
            delta=USUAL_DELTA,
            runs=0,
            violated=False,
            margin=math.nan,
            at_epsilon=math.nan,
            seconds=time.perf_counter() - start,
            error=f"{type(error).__name__}: {error}",
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
    """The best epsilon at delta: by inversion over the noise where there is a family.

    A family is the recorded history with its noise scaled: if the mechanism is of that kind at
    all, it has at least this epsilon. Without one, the bound that holds for any mechanism.
    """
    delta, relation, history = prepared.delta, prepared.relation, prepared.history
    plain = verdict.roc.epsilon(delta)
    family = None if history is None else family_of(history, relation)
    if history is None or family is None:
        return plain, "Clopper-Pearson"
    if all(isinstance(event, dp_event.GaussianDpEvent) for event, _ in history):
        return max(plain, gaussian_epsilon(verdict.roc.mu(), delta)), "Gaussian DP"
    if quick and not prepared.published:
        return plain, "Clopper-Pearson"
    return max(plain, inverted_epsilon(history, relation, verdict.roc, delta)), "inversion"


def inverted_epsilon(history: History, relation: Neighbouring, roc: Roc, delta: float) -> float:
    """Epsilon of the history at the largest noise scale that the runs do not refute."""
    from winsor.accounting import account

    family = family_of(history, relation)
    if family is None:
        raise UnsupportedEvent(f"the noise of every event must be scalable. Got {history!r}.")
    factor = invert(family, roc, 0.5, MOST_NOISE, tolerance=0.005)
    if factor >= MOST_NOISE:
        return 0.0
    return account(scaled(history, factor), delta, relation).epsilon
