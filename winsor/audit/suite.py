"""One audit: a claim, a pair of datasets, a number of runs, and a row of the table."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from dp_accounting import dp_event

from winsor.audit.claims import USUAL_DELTA, Claim, certified_claim, measured_epsilon, scaled
from winsor.audit.curve import ALPHA, CurveVerdict, Experiment, curve_test
from winsor.core.contract import Neighbouring

History = list[tuple[dp_event.DpEvent, int]]

VECTORISED = 200_000
"""Runs per dataset where runs are stacked; a quarter in quick audits, where a ten per cent lie at
epsilon 4 is still caught (how often: `benchmarks/results/audit_power.json`)."""
MORE_NOISE = 1.1
"""Thresholds that measure the noise of a known law are those that tell it from so much more."""


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
        """Return the number of runs on each dataset."""
        if not quick:
            return self.runs
        return self.quick_runs if self.quick_runs is not None else self.runs // 4


@dataclass(frozen=True)
class Row:
    """A line of the table; with an ``error`` one that says nothing else."""

    name: str
    adversary: str = ""
    relation: str = ""
    claimed_epsilon: float = math.nan
    lower_bound: float = math.nan
    method: str = ""
    delta: float = USUAL_DELTA
    runs: int = 0
    violated: bool = False
    margin: float = math.nan
    at_epsilon: float = math.nan
    seconds: float = 0.0
    """Of processor time: audits run beside each other."""
    error: str = ""

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if self.error:
            return f"ERROR: {self.error}"
        return "VIOLATED" if self.violated else "not violated"

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return {**asdict(self), "verdict": self.verdict}


def run(audit: Audit, quick: bool = False, alpha: float = ALPHA) -> Row:
    """Prepare, test, and state the best lower bound on epsilon that the runs prove."""
    start = time.process_time()
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
        seconds=time.process_time() - start,
    )


def run_or_explain(audit: Audit, quick: bool = False) -> Row:
    """Do as `run`, but make an audit that cannot be carried out a row of its own: never a pass."""
    start = time.process_time()
    try:
        return run(audit, quick)
    except Exception as error:
        seconds = time.process_time() - start
        return Row(audit.name, seconds=seconds, error=_in_words(error))


def _in_words(error: Exception) -> str:
    """Never empty: an exception may come without a message."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class Ledgered(Experiment, Protocol):
    """An experiment whose releases are paid for in a ledger."""

    @property
    def history(self) -> History:
        """Events of one run."""

    @property
    def relation(self) -> Neighbouring:
        """Neighbouring relation of the two datasets."""


def certified(experiment: Ledgered, adversary: str, points: int = 40) -> Prepared:
    """Prepare an experiment with a ledger for a test against the curve certified for it."""
    history, relation = experiment.history, experiment.relation
    claim = certified_claim(history, relation, points)
    return Prepared(experiment, claim, adversary, history, relation)


# --------------------------------------------------------------------------------- lower bounds


def lower_bound(verdict: CurveVerdict, prepared: Prepared, quick: bool) -> tuple[float, str]:
    """Return the best epsilon at delta, within the family of the recorded history if it has one.

    Without one, the bound that holds for any mechanism.
    """
    delta, roc, history = prepared.delta, verdict.roc, prepared.history
    plain = roc.epsilon(delta)
    if history is not None and all(isinstance(e, dp_event.GaussianDpEvent) for e, _ in history):
        return max(plain, roc.gaussian_epsilon(delta)), "Gaussian DP"
    if history is None or (quick and not prepared.published):
        return plain, "Clopper-Pearson"
    inverted = measured_epsilon(history, prepared.relation, delta, roc.refutes)
    if inverted is None:
        return plain, "Clopper-Pearson"
    return max(plain, inverted), "inversion"
