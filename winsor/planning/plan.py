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

from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)

from winsor.accounting import account, account_delta, calibrate, epsilon_curve
from winsor.accounting.events import History
from winsor.contract import (
    CalibrationError,
    ConfigurationError,
    Neighbouring,
    UnsupportedRelation,
)

SAMPLINGS = ("poisson", "fixed", "full")


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

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "noise_multiplier", "epsilon"):
            _check_positive(name, getattr(self, name))
        for name in ("n", "steps"):
            _check_whole(name, getattr(self, name))
        _check_choices(self)

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


@dataclass(frozen=True)
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


def solve(question: Question, points: int = 10) -> Plan:
    """Compute the missing number, and epsilon at up to ``points`` moments of the run."""
    unknown = question.unknown
    complete = _SOLVERS[unknown](question)
    event, steps = _run(complete)
    assert complete.delta is not None and complete.noise_multiplier is not None
    spent = account([(event, steps)], complete.delta, complete.relation)
    target = question.epsilon if unknown != "delta" else None
    if target is not None and spent.epsilon > target * (1 + 1e-9):
        raise CalibrationError(
            f"epsilon must be reachable by changing {unknown}. Got {target!r} instead; the nearest "
            f"setting spends {spent.epsilon:.4g}. Raise epsilon."
        )
    epsilon = question.epsilon if unknown == "delta" else spent.epsilon
    assert epsilon is not None
    rate = _rate(complete)
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


def _rate(q: Question) -> float:
    if q.sampling == "full":
        return 1.0
    assert q.n is not None and q.batch_size is not None
    return q.batch_size / q.n


def _event(q: Question) -> DpEvent:
    """One step, as the sampler and the Gaussian mechanism of a per-sample rule will record it."""
    assert q.noise_multiplier is not None
    replace = q.relation is Neighbouring.REPLACE_ONE
    whole = GaussianDpEvent(q.noise_multiplier / 2 if replace else q.noise_multiplier)
    rate = _rate(q)
    if q.sampling == "full" or rate == 1.0:
        return whole
    if q.sampling == "fixed":
        assert q.n is not None and q.batch_size is not None
        return SampledWithoutReplacementDpEvent(q.n, int(q.batch_size), whole)
    return PoissonSampledDpEvent(rate, GaussianDpEvent(q.noise_multiplier))


def _steps(q: Question) -> int:
    if q.steps is not None:
        return q.steps
    assert q.epochs is not None
    return max(1, math.ceil(q.epochs / _rate(q) - 1e-9))


def _run(q: Question) -> tuple[DpEvent, int]:
    return _event(q), _steps(q)


def _history(q: Question) -> History:
    return [_run(q)]


# ----------------------------------------------------------------------------- the missing number


def _solve_epsilon(q: Question) -> Question:
    return q


def _solve_delta(q: Question) -> Question:
    assert q.epsilon is not None
    delta = account_delta(_history(q), q.epsilon, q.relation).delta
    # A delta of 1 promises nothing, and one of 0 cannot be told from rounding.
    if not 0 < delta < 1:
        raise CalibrationError(
            f"epsilon must leave a delta between 0 and 1. Got {q.epsilon!r} instead, which leaves "
            f"{delta:g}. Give delta, and have epsilon computed."
        )
    return dataclasses.replace(q, delta=delta)


def _solve_noise(q: Question) -> Question:
    epsilon, delta = _budget(q)
    found = calibrate.noise_multiplier(
        lambda nm: _event(dataclasses.replace(q, noise_multiplier=nm)),
        _steps(q),
        epsilon,
        delta,
        q.relation,
    )
    return dataclasses.replace(q, noise_multiplier=found)


def _solve_steps(q: Question) -> Question:
    return dataclasses.replace(q, steps=calibrate.max_steps(_event(q), *_budget(q), q.relation))


def _solve_batch_size(q: Question) -> Question:
    assert q.n is not None
    found = calibrate.batch_size(
        lambda size: _history(dataclasses.replace(q, batch_size=size)), q.n, *_budget(q), q.relation
    )
    return dataclasses.replace(q, batch_size=float(found))


def _solve_n(q: Question) -> Question:
    assert q.batch_size is not None
    found = calibrate.least_records(
        lambda n: _history(dataclasses.replace(q, n=n)),
        *_budget(q),
        q.relation,
        least=max(1, math.ceil(q.batch_size)),
    )
    return dataclasses.replace(q, n=found)


def _budget(q: Question) -> tuple[float, float]:
    assert q.epsilon is not None and q.delta is not None
    return q.epsilon, q.delta


_SOLVERS = {
    "epsilon": _solve_epsilon,
    "delta": _solve_delta,
    "noise_multiplier": _solve_noise,
    "steps": _solve_steps,
    "batch_size": _solve_batch_size,
    "n": _solve_n,
}


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
    whole = max(1, math.floor(epochs + 1e-9))
    stride = math.ceil(whole / points) if whole > 1 else epochs / points
    marks = [round(stride * k / rate) for k in range(1, points)]
    return sorted({mark for mark in marks if 0 < mark < steps} | {steps})


def _notes(q: Question) -> tuple[str, ...]:
    assert q.delta is not None
    if q.n is not None and q.delta >= 1 / q.n:
        return (
            f"delta {q.delta:g} is not below 1/n = {1 / q.n:g}: releasing a random record in full "
            "would satisfy it.",
        )
    return ()


# ------------------------------------------------------------------------------------- validation


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise ConfigurationError(f"{name} must be a positive finite number. Got {value!r} instead.")


def _check_whole(name: str, value: int | None) -> None:
    if value is not None and not (isinstance(value, int) and value > 0):
        raise ConfigurationError(f"{name} must be a positive whole number. Got {value!r} instead.")


def _check_choices(q: Question) -> None:
    if q.delta is not None and not 0 < q.delta < 1:
        raise ConfigurationError(
            f"delta must be between 0 and 1, both excluded. Got {q.delta!r} instead."
        )
    if q.steps is not None and q.epochs is not None:
        raise ConfigurationError(
            f"steps and epochs must not both be given. Got steps={q.steps}, epochs={q.epochs:g} "
            "instead. Give the one that you mean."
        )
    if q.sampling not in SAMPLINGS:
        raise ConfigurationError(
            f"sampling must be one of {', '.join(SAMPLINGS)}. Got {q.sampling!r} instead."
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
