"""What a tuning spends: the noise of one trial, the event in the ledger, the guarantee.

A trial's price is its training's, its score's and its looks'. A random number of trials of which
the best is released costs a selection (`winsor.tuning.selection`); a fixed number of which all
are released, their composition.

Each trial needs more noise than a single run within the same budget would. For the same rows, steps
and batch, noise that is r times larger is what a single run on n/r rows would have per row: that is
what tuning costs, and `compare` knows it before any trial. What tuning gains is not known before;
the advice only says when there is nothing to gain.

>>> offer = compare(Question(n=60_000, batch_size=600, epochs=10, epsilon=3.0, delta=1e-5), [10])
>>> print(f"{offer.untuned:.2f} {offer.options[0].noise_multiplier:.2f}")
0.81 1.01
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dp_accounting.dp_event import ComposedDpEvent, DpEvent, GaussianDpEvent, SelfComposedDpEvent
from scipy import integrate

from winsor.core.accounting import certify, flatten
from winsor.core.accounting.lattice import MOST_VALUES
from winsor.core.checks import positive, whole
from winsor.core.contract import (
    BudgetExceeded,
    CalibrationError,
    ConfigurationError,
    Guarantee,
    Neighbouring,
)
from winsor.core.events.registry import History
from winsor.core.ledger.guarantee import guarantee
from winsor.core.ledger.ledger import Ledger
from winsor.planning import calibrate
from winsor.planning.calibrate import Budget
from winsor.planning.plan import Question
from winsor.planning.run import PlannedRun
from winsor.tuning.selection import SelectionDpEvent
from winsor.tuning.trial_counts import (
    PoissonTrials,
    TrialCounts,
    TruncatedNegativeBinomial,
    quantile,
)

if TYPE_CHECKING:
    from winsor.tuning.pruning import PrivateScore, Pruning

WORTH_IT = 1.15
"""Up to this ratio of noise, tuning costs what 13 % of the rows would: little, if settings matter.
Beyond 2, the untuned recipe is the better bet unless it is known to be far off."""
OFTEN = 0.15
"""A chance of one trial only that is worth a warning."""

Trial = History | Callable[[float], History]
"""What one training spends: a history, or a function from the noise multiplier to it."""


@dataclass(frozen=True)
class Total:
    """The budget of a whole tuning. Without epsilon no tuning is refused for its price."""

    epsilon: float | None
    delta: float
    relation: Neighbouring


def law_of(trials: float | TrialCounts, release: str) -> TrialCounts | int:
    """Return how many trials there are: a number if all are released, else a law."""
    if release == "all":
        if isinstance(trials, TruncatedNegativeBinomial | PoissonTrials):
            raise ConfigurationError(
                'trials must be a whole number with release="all": every trial is charged for. Got '
                f"{trials!r} instead."
            )
        return whole("trials", trials)
    if isinstance(trials, TruncatedNegativeBinomial | PoissonTrials):
        return trials
    return TruncatedNegativeBinomial.of_mean(positive("trials", trials))


def whole_event(trial: History, law: TrialCounts | int) -> DpEvent:
    """Return a tuning's event: a selection for a random number of trials, else a composition."""
    if isinstance(law, int):
        parts = [SelfComposedDpEvent(event, count * law) for event, count in flatten(trial)]
        return ComposedDpEvent(parts)
    return SelectionDpEvent.of_history(trial, law)


def trial_noise(
    trial: Callable[[float], History],
    law: TrialCounts | int,
    budget: Budget,
    extra: History = (),
) -> float:
    """Return the noise multiplier of a trial at which the whole tuning spends ``budget``.

    ``extra`` is what a trial spends whatever its noise: its score and its looks.
    """

    def tuning(multiplier: float) -> History:
        return [(whole_event([*trial(multiplier), *extra], law), 1)]

    return calibrate.noise_multiplier(tuning, budget)


@dataclass(frozen=True)
class Price:
    """What a tuning spends, known before its first trial."""

    law: TrialCounts | int
    declared: History
    """What one trial spends, its score and its looks included."""
    noise_multiplier: float | None
    total: Total
    score: PrivateScore | None
    pruning: Pruning | None

    @staticmethod
    def of(
        trial: Trial,
        law: TrialCounts | int,
        total: Total,
        score: PrivateScore | None,
        pruning: Pruning | None,
    ) -> Price:
        """Return the price of a tuning; the noise of a trial is calibrated if it is left open."""
        measured = [] if score is None else [(score.event(total.relation), 1)]
        looks = [] if pruning is None else [*pruning.history(total.relation)]
        extra = [*measured, *looks]
        if not callable(trial):
            return Price(law, [*trial, *extra], None, total, score, pruning)
        if total.epsilon is None:
            raise ConfigurationError(
                "epsilon must be given when trial is a function of the noise multiplier. Got None "
                "instead. Give the budget of the whole tuning, or the history of a trial."
            )
        budget = Budget(total.epsilon, total.delta, total.relation)
        multiplier = trial_noise(trial, law, budget, extra)
        return Price(law, [*trial(multiplier), *extra], multiplier, total, score, pruning)

    @property
    def releases_all(self) -> bool:
        """Return whether every trial is released and charged for."""
        return isinstance(self.law, int)

    def pay(self, ledger: Ledger, run: str) -> None:
        """Write the tuning to the ledger; refuse one that would exceed the budget."""
        event, epsilon = whole_event(self.declared, self.law), self.total.epsilon
        if epsilon is not None and ledger.steps(run) == 0:
            history = [*ledger.history(), (event, 1)]
            spent = certify(history, self.total.delta, self.total.relation).epsilon
            if spent > positive("epsilon", epsilon) * (1 + 1e-9):
                raise BudgetExceeded(
                    f"the tuning must stay within epsilon = {epsilon!r}. Got {spent:.4g} instead, "
                    "with all that its ledger holds already. Add noise, run fewer trials, or raise "
                    "epsilon."
                )
        ledger.pay_once(run, event)

    def guarantee(self, ledger: Ledger, known_seed: bool) -> Guarantee:
        """Return what the ledger spends, and what that rests on."""
        sampler = "best of a random number of trials"
        conditions = [
            f"{self.law}, the number kept secret",
            "settings drawn from a public law",
            "the time it took is unseen",
        ]
        if self.releases_all:
            sampler, conditions = "composition of trials", [f"{self.law} trials, all released"]
        conditions.append(f"at most {MOST_VALUES:.0e} noise values in all trials together")
        conditions.append(self._how_scored())
        if self.pruning is not None:
            conditions.append(self.pruning.condition)
        if known_seed:
            conditions.append(
                "noise and number of trials from a known seed: whoever knows it sees all"
            )
        return guarantee([ledger], self.total.delta, self.total.relation, [sampler], conditions)

    def _how_scored(self) -> str:
        if self.score is None:
            return "scores computed on public rows"
        alone, one = (
            certify(history, self.total.delta, self.total.relation).epsilon
            for history in ([(self.score.event(self.total.relation), 1)], self.declared)
        )
        return f"scores measured in each trial: epsilon {alone:.3g} alone, a trial {one:.3g}"


# ------------------------------------------------------------------------ compared with no tuning


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
        """Return the comparison as plain values."""
        return dataclasses.asdict(self)


def compare(
    question: Question,
    trials: Sequence[float] = (5, 10, 20, 50),
    eta: float = 0.0,
    score_noise_multiplier: float | None = None,
) -> TuningComparison:
    """Compare the noise of a single run within the question's budget with that of tuned ones.

    ``trials`` are mean numbers of trials, by the law of shape ``eta``. ``score_noise_multiplier``
    is that of a score on private rows, a part of every trial; None means public rows.
    """
    budget, run = question.asks_for_noise(), question.run()
    untuned = run.noise_for(budget.epsilon)
    score: History = []
    if score_noise_multiplier is not None:
        score = [(GaussianDpEvent(score_noise_multiplier), 1)]
    options = tuple(_option(run, budget, float(mean), eta, score, untuned) for mean in trials)
    return TuningComparison(
        budget.epsilon, budget.delta, run.steps, untuned, options, _advice(options)
    )


def _option(
    run: PlannedRun, budget: Budget, mean: float, eta: float, score: History, untuned: float
) -> TuningOption:
    law = TruncatedNegativeBinomial.of_mean(positive("trials", mean), eta)
    multiplier = trial_noise(run.history, law, budget, score)
    ratio = multiplier / untuned
    spent = certify([*run.history(multiplier), *score], run.delta, run.relation)
    composed: float | None = None
    with suppress(CalibrationError):  # without scores: it is there to be compared with only
        composed = trial_noise(run.history, max(1, round(mean)), budget)
    return TuningOption(
        trials=mean,
        eta=eta,
        noise_multiplier=multiplier,
        noise_ratio=ratio,
        rows_left=run.sampler.n / ratio,
        trial_epsilon=spent.epsilon,
        composed_multiplier=composed,
        most_trials=quantile(law, 0.99),
        only_one=float(next(law.probabilities())[1]),
        rank=expected_rank(law),
    )


def expected_rank(law: TrialCounts) -> float:
    """E[1/(K+1)]: the share of all settings that beat the best of K, on average, where no score is
    wrong. The integral of the generating function.

    >>> few, many = (TruncatedNegativeBinomial.of_mean(m, eta) for m, eta in ((5, 4.0), (10, 0.0)))
    >>> print(f"{expected_rank(few):.2f} {expected_rank(many):.2f}")
    0.22 0.25
    """
    return float(integrate.quad(law.generating, 0.0, 1.0)[0])


def _advice(options: Sequence[TuningOption]) -> str:
    """Say when the recipe is better; docs/tuning-and-metrics.md has three measured cases."""
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
