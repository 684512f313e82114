"""Planning a private run: give all but one of its numbers, and get the one that is missing.

The numbers are epsilon, delta, the noise multiplier, the length (steps or epochs), the batch size
and the number of records. The missing one is found with the accountant that will certify the run,
for a rule that bounds each record's contribution (`Sensitivity.per_sample`): replacing a record
then moves a sum by up to twice as much as removing one.

Guarantee
---------
`Plan.epsilon` and `Plan.delta` hold for a run of the planned events under `Plan.relation`.

>>> plan = solve(Question(n=60_000, batch_size=600, epochs=10, epsilon=3.0, delta=1e-5))
>>> plan.steps, round(plan.noise_multiplier, 2), plan.accountant
(1000, 0.81, 'pld')
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from dp_accounting.dp_event import DpEvent

from winsor.charts import notebook_html as cards
from winsor.core.accounting import certify, certify_delta, epsilon_curve
from winsor.core.checks import as_delta, choice, positive, probability, whole
from winsor.core.contract import (
    Bounded,
    CalibrationError,
    ConfigurationError,
    Neighbouring,
    Sensitivity,
    UnsupportedRelation,
)
from winsor.core.events.joint import joint_event
from winsor.core.events.registry import History
from winsor.core.sampling.samplers import Sampler
from winsor.planning import calibrate
from winsor.planning.choose import make_sampler, planned_steps

SAMPLINGS = ("poisson", "fixed", "full")
"""Ways of drawing that are paid for step by step; epochs are not planned here yet."""

PARTS = {"grad": Bounded(None, Sensitivity.per_sample(1.0, "a rule that bounds each record"))}
"""What a step of a planned run releases. The bound's size does not matter: noise scales with it."""


@dataclass(frozen=True)
class Question:
    """The numbers of a run; the one to compute is None. Length is ``steps`` or ``epochs``."""

    n: int | None = None
    batch_size: float | None = None
    steps: int | None = None
    epochs: float | None = None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    sampling: str = "poisson"
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "noise_multiplier", "epsilon"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        for name in ("n", "steps"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        if self.delta is not None:
            probability("delta", self.delta)
        choice("sampling", self.sampling, SAMPLINGS)
        _check_together(self)

    @property
    def unknown(self) -> str:
        """The name of the number to compute."""
        length = self.steps if self.steps is not None else self.epochs
        numbers = {
            "epsilon": self.epsilon,
            "noise_multiplier": self.noise_multiplier,
            "steps": length,
            "delta": self.delta,
        }
        if self.sampling != "full":
            numbers |= {"batch_size": self.batch_size, "n": self.n}
        missing = [name for name, value in numbers.items() if value is None]
        if len(missing) != 1:
            wanted = ", ".join("steps (or epochs)" if name == "steps" else name for name in numbers)
            lacking = ", ".join(missing) if missing else "nothing"
            raise ConfigurationError(
                f"all but one of {wanted} must be given. Got {lacking} missing instead. Leave out "
                "exactly the one to compute."
            )
        return missing[0]


@dataclass(frozen=True, repr=False)
class Plan:
    """A complete set of numbers, and what the run will have spent along the way."""

    epsilon: float
    delta: float
    noise_multiplier: float
    sampling_rate: float
    steps: int
    relation: Neighbouring
    accountant: str
    n: int | None
    batch_size: float | None
    epochs: float
    sampling: str
    solved_for: str
    curve: tuple[dict[str, float], ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        data = dataclasses.asdict(self)
        return data | {"relation": self.relation.value, "curve": list(self.curve)}

    def __repr__(self) -> str:
        """Three lines: the promise, the run, the notes."""
        run = ", ".join(f"{name} {value}" for name, value in self._run().items())
        return "\n  ".join([self._promise(), run, *self.notes])

    def _repr_html_(self) -> str:
        points = [(0.0, 0.0), *((point["steps"], point["epsilon"]) for point in self.curve)]
        return cards.card(
            self._promise(),
            cards.line(points, f"epsilon over {self.steps:,} steps, up to {self.epsilon:.4g}"),
            cards.pairs(self._run()),
            *map(cards.sentence, self.notes),
        )

    def _promise(self) -> str:
        relation = self.relation.value.replace("_", " ")
        return (
            f"Plan: epsilon {self.epsilon:.4g} at delta {self.delta:.3g}, {relation}, certified by "
            f"{self.accountant.upper()}"
        )

    def _run(self) -> dict[str, str]:
        """The numbers of the run; the one that was computed says so."""
        values = {
            "noise_multiplier": f"{self.noise_multiplier:.4g}",
            "steps": f"{self.steps:,} ({self.epochs:.4g} epochs)",
            "batch_size": "" if self.batch_size is None else f"{self.batch_size:g}",
            "n": "" if self.n is None else f"{self.n:,}",
            "sampling": self.sampling,
        }
        return {
            name.replace("_", " "): f"{value} (computed)" if name == self.solved_for else value
            for name, value in values.items()
            if value
        }


def solve(question: Question, points: int = 10) -> Plan:
    """Compute the missing number, and epsilon at up to ``points`` moments of the run."""
    unknown = question.unknown
    _check_delta(question)
    complete = _complete(question, unknown)
    if unknown != "delta":  # a delta that was asked about is an answer, with a note
        _check_delta(complete)
    assert complete.delta is not None and complete.noise_multiplier is not None
    event, steps, rate = _event(complete), _steps(complete), _sampler(complete).rate
    spent = certify([(event, steps)], complete.delta, complete.relation)
    target = question.epsilon if unknown != "delta" else None
    if target is not None and spent.epsilon > target * (1 + 1e-9):
        raise CalibrationError(
            f"epsilon must be reachable by changing {unknown}. Got {target!r} instead; the nearest "
            f"setting spends {spent.epsilon:.4g}. Raise epsilon."
        )
    epsilon = question.epsilon if unknown == "delta" else spent.epsilon
    assert epsilon is not None
    return Plan(
        epsilon=epsilon,
        delta=complete.delta,
        noise_multiplier=complete.noise_multiplier,
        sampling_rate=rate,
        steps=steps,
        relation=complete.relation,
        accountant=spent.accountant,
        n=complete.n,
        batch_size=complete.batch_size,
        epochs=steps * rate,
        sampling=complete.sampling,
        solved_for=unknown,
        curve=_curve(event, steps, rate, complete.delta, complete.relation, points, epsilon),
        notes=_notes(complete),
    )


# ------------------------------------------------------------------------------------ the run


def _sampler(q: Question) -> Sampler:
    n = 1 if q.n is None else q.n  # full batches have the same event for every n
    size = n if q.batch_size is None else q.batch_size
    return make_sampler(q.sampling, n, int(size) if q.sampling == "fixed" else size)


def _event(q: Question) -> DpEvent:
    """One step, from the calls that will record it: the mechanism's event, the sampler's share."""
    assert q.noise_multiplier is not None
    return _sampler(q).amplify(joint_event(PARTS, q.noise_multiplier), q.relation)


def _steps(q: Question) -> int:
    return planned_steps(q.epochs, q.steps, _sampler(q))


def _history(q: Question) -> History:
    return [(_event(q), _steps(q))]


# ----------------------------------------------------------------------------- the missing number


def _complete(q: Question, unknown: str) -> Question:
    """The question with its missing number filled in."""

    def filled(value: float) -> Question:
        number: dict[str, Any] = {unknown: value}
        return dataclasses.replace(q, **number)

    def history_with(value: float) -> History:
        return _history(filled(value))

    found: float
    match unknown:
        case "epsilon":
            return q
        case "delta":
            found = _delta(q)
        case "noise_multiplier":
            found = calibrate.noise_multiplier(
                lambda value: _event(filled(value)), _steps(q), *_budget(q)
            )
        case "steps":
            found = calibrate.max_steps(_event(q), *_budget(q))
        case "batch_size":
            assert q.n is not None
            found = float(calibrate.batch_size(history_with, q.n, *_budget(q)))
        case _:
            assert q.batch_size is not None
            least = max(1, math.ceil(q.batch_size))
            found = calibrate.least_records(history_with, *_budget(q), least=least)
    return filled(found)


def _budget(q: Question) -> tuple[float, float, Neighbouring]:
    assert q.epsilon is not None and q.delta is not None
    return q.epsilon, q.delta, q.relation


def _delta(q: Question) -> float:
    assert q.epsilon is not None
    delta = certify_delta(_history(q), q.epsilon, q.relation).delta
    # A delta of 1 promises nothing, and one of 0 cannot be told from rounding.
    if not 0 < delta < 1:
        raise CalibrationError(
            f"epsilon must leave a delta between 0 and 1. Got {q.epsilon!r} instead, which leaves "
            f"{delta:g}. Give delta, and have epsilon computed."
        )
    return delta


# -------------------------------------------------------------------------------------- the curve


def _curve(
    event: DpEvent,
    steps: int,
    rate: float,
    delta: float,
    relation: Neighbouring,
    points: int,
    final: float,
) -> tuple[dict[str, float], ...]:
    """Epsilon at the ends of evenly spaced epochs, or of steps if there is less than one epoch."""
    counts = _moments(steps, rate, points)
    spent = epsilon_curve(event, counts[:-1], delta, relation)
    epsilons = [min(s.epsilon, final) for s in spent] + [final] * bool(counts)
    return tuple(
        {"epoch": count * rate, "steps": count, "epsilon": epsilon}
        for count, epsilon in zip(counts, epsilons, strict=True)
    )


def _moments(steps: int, rate: float, points: int) -> list[int]:
    """At most ``points`` step counts, the last of them ``steps``."""
    if points < 1:
        return []
    epochs = steps * rate
    passes = max(1, math.floor(epochs + 1e-9))
    stride = math.ceil(passes / points) if passes > 1 else epochs / points
    marks = [round(stride * k / rate) for k in range(1, points)]
    return sorted({mark for mark in marks if 0 < mark < steps} | {steps})


def _notes(q: Question) -> tuple[str, ...]:
    assert q.delta is not None
    if q.n is not None and q.delta >= 1 / q.n:
        return (
            f"delta {q.delta:g} is not below 1/n = {1 / q.n:g}: releasing a random record in full "
            "would satisfy it. A run with it must say allow_large_delta.",
        )
    return ()


# ------------------------------------------------------------------------------------- validation


def _check_delta(q: Question) -> None:
    if q.n is not None and q.delta is not None:
        as_delta(q.delta, q.n, q.allow_large_delta)


def _check_together(q: Question) -> None:
    if q.steps is not None and q.epochs is not None:
        raise ConfigurationError(
            f"steps and epochs must not both be given. Got steps={q.steps}, epochs={q.epochs:g} "
            "instead. Give the one that you mean."
        )
    if q.n is not None and q.batch_size is not None and q.batch_size > q.n:
        raise ConfigurationError(
            f"batch_size must be at most n = {q.n}. Got {q.batch_size:g} instead."
        )
    if q.sampling == "full" and q.batch_size is not None and q.batch_size != q.n:
        raise ConfigurationError(
            f"batch_size must be left out with full batches. Got {q.batch_size:g} instead. Use "
            "sampling poisson or fixed for batches."
        )
    if q.sampling == "fixed":
        _check_fixed(q)


def _check_fixed(q: Question) -> None:
    if q.relation is not Neighbouring.REPLACE_ONE:
        raise UnsupportedRelation(
            f"relation must be replace_one with batches of fixed size. Got {q.relation.value} "
            "instead. Add --relation replace_one, or use --sampling poisson."
        )
    if q.batch_size is not None and q.batch_size != int(q.batch_size):
        raise ConfigurationError(
            f"batch_size must be a whole number with sampling fixed. Got {q.batch_size!r} instead."
        )
