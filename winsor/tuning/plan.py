"""What tuning costs: the noise of a run that is tuned inside the budget, against one that is not.

Tuning spends one budget on a random number of trials and releases the best. Each trial then needs
more noise than a single run would. For the same rows, steps and batch, noise that is r times larger
is what a single run on n/r rows would have per row: that is the price, and it is known before any
trial. What tuning gains is not: the page says only when there is nothing to gain.

>>> offer = compare(Question(n=60_000, batch_size=600, epochs=10, epsilon=3.0, delta=1e-5), [10])
>>> print(f"{offer.untuned:.2f} {offer.options[0].noise_multiplier:.2f}")
0.81 1.01
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dp_accounting.dp_event import DpEvent, GaussianDpEvent

from winsor.core.accounting import certify
from winsor.core.checks import positive
from winsor.core.contract import CalibrationError, ConfigurationError
from winsor.core.events.joint import joint_event
from winsor.core.events.registry import History
from winsor.core.events.selection import SelectionDpEvent
from winsor.core.events.trial_counts import TruncatedNegativeBinomial, expected_rank, quantile
from winsor.planning import calibrate
from winsor.planning.choose import make_sampler, planned_steps
from winsor.planning.plan import PARTS, Question

WORTH_IT = 1.15
"""Up to this ratio of noise, tuning costs what 13 % of the rows would: little, if settings matter.
Beyond 2, the untuned recipe is the better bet unless it is known to be far off."""
OFTEN = 0.15
"""A chance of one trial only that is worth a warning."""


@dataclass(frozen=True)
class TuningOption:
    """A tuning with ``trials`` trials on average, by the law of shape ``eta``."""

    trials: float
    eta: float
    noise_multiplier: float
    noise_ratio: float
    """Noise of a trial over noise of the single run."""
    rows_left: float
    """n / ratio: the rows with which a single run would have as much noise per row."""
    trial_epsilon: float
    composed_multiplier: float | None
    """Noise of a trial if all of them were released: composition of the mean number. None if no
    noise is enough."""
    most_trials: int
    """The number of trials exceeds this one time in a hundred: plan the time for it."""
    only_one: float
    """The chance that there is one trial only, and nothing to choose from."""
    rank: float
    """The share of all settings that beat the winner, on average, if scores are right."""


@dataclass(frozen=True)
class TuningComparison:
    """What the untuned run needs, and what tuned ones would."""

    epsilon: float
    delta: float
    steps: int
    untuned: float
    options: tuple[TuningOption, ...]
    advice: str

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def compare(
    question: Question,
    trials: Sequence[float] = (5, 10, 20, 50),
    eta: float = 0.0,
    score_noise_multiplier: float | None = None,
) -> TuningComparison:
    """The noise of a single run within the question's budget, and of each trial of tuned ones.

    ``score_noise_multiplier`` is that of a score on private rows, a part of every trial; None
    means public rows.
    """
    if question.unknown != "noise_multiplier":
        raise ConfigurationError(
            "noise_multiplier must be the number to compute when tuning is planned. Got "
            f"{question.unknown} missing instead. Give the budget, the batch and the length."
        )
    assert question.epsilon is not None and question.delta is not None
    budget = question.epsilon, question.delta, question.relation
    steps = _steps(question)
    untuned = calibrate.noise_multiplier(lambda nm: _event(question, nm), steps, *budget)
    options = tuple(
        _option(question, float(mean), eta, score_noise_multiplier, untuned) for mean in trials
    )
    return TuningComparison(
        epsilon=question.epsilon,
        delta=question.delta,
        steps=steps,
        untuned=untuned,
        options=options,
        advice=_advice(options),
    )


def _option(
    question: Question, mean: float, eta: float, score: float | None, untuned: float
) -> TuningOption:
    assert question.epsilon is not None and question.delta is not None
    budget = question.epsilon, question.delta, question.relation
    law = TruncatedNegativeBinomial.of_mean(positive("trials", mean), eta)

    def trial(nm: float) -> History:
        scored = [] if score is None else [(GaussianDpEvent(score), 1)]
        return [(_event(question, nm), _steps(question)), *scored]

    def selection(nm: float) -> DpEvent:
        return SelectionDpEvent.of_history(trial(nm), law)

    multiplier = calibrate.noise_multiplier(selection, 1, *budget)
    ratio = multiplier / untuned
    spent = certify(trial(multiplier), question.delta, question.relation).epsilon
    return TuningOption(
        trials=mean,
        eta=eta,
        noise_multiplier=multiplier,
        noise_ratio=ratio,
        rows_left=(question.n or 1) / ratio,
        trial_epsilon=spent,
        composed_multiplier=_composed(question, round(mean), budget),
        most_trials=quantile(law, 0.99),
        only_one=float(next(law.probabilities())[1]),
        rank=expected_rank(law),
    )


def _composed(question: Question, trials: int, budget: tuple[float, float, Any]) -> float | None:
    """Without the price of scores: composition is there to be compared with, not to be chosen."""
    try:
        return calibrate.noise_multiplier(
            lambda nm: _event(question, nm), max(1, trials) * _steps(question), *budget
        )
    except CalibrationError:
        return None


def _advice(options: Sequence[TuningOption]) -> str:
    """Says when the recipe is better. What tuning gains is not known before it is paid for;
    docs/tuning-and-metrics.md has three measured cases."""
    cheapest = min(options, key=lambda option: option.noise_ratio)
    ratio = cheapest.noise_ratio
    cost = (
        f"{cheapest.trials:g} trials cost {ratio:.2f} times the noise of a single run, as if "
        f"{1 - 1 / ratio:.0%} of the rows were missing"
    )
    if ratio <= WORTH_IT:
        return f"{cost}: tune if the settings are not known.{_seldom_one(cheapest)}"
    if ratio < 2:
        return (
            f"{cost}: the untuned recipe (winsor.tuning.recipe) is better unless it is known to be "
            "far off. Tune only what it or a public dataset does not settle, the recipe itself "
            f"among the settings.{_seldom_one(cheapest)}"
        )
    return f"{cost}: the untuned recipe (winsor.tuning.recipe) is the better choice."


def _seldom_one(option: TuningOption) -> str:
    """A narrower law of fewer trials may be as good: it seldom draws one trial only."""
    if option.only_one <= OFTEN:
        return ""
    return (
        f" One time in {1 / option.only_one:.0f} there will be a single trial, and nothing to "
        "choose from: compare with fewer trials of a narrower law (eta 4)."
    )


def _sampler(question: Question) -> Any:
    n = 1 if question.n is None else question.n
    size = n if question.batch_size is None else question.batch_size
    return make_sampler(question.sampling, n, int(size) if question.sampling == "fixed" else size)


def _steps(question: Question) -> int:
    return planned_steps(question.epochs, question.steps, _sampler(question))


def _event(question: Question, multiplier: float) -> DpEvent:
    event: DpEvent = _sampler(question).amplify(joint_event(PARTS, multiplier), question.relation)
    return event
