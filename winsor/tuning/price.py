"""What a tuning spends: the noise of one trial, the event in the ledger, the guarantee.

A trial's price is its training's, its score's and its looks'. A random number of trials of which
the best is released costs a selection (`winsor.core.events.selection`); a fixed number of which all
are released, their composition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dp_accounting.dp_event import ComposedDpEvent, DpEvent, SelfComposedDpEvent

from winsor.core.accounting import certify, flatten
from winsor.core.accounting.lattice import MOST_VALUES
from winsor.core.checks import positive, whole
from winsor.core.contract import BudgetExceeded, ConfigurationError, Guarantee, Neighbouring
from winsor.core.events.registry import History
from winsor.core.events.selection import SelectionDpEvent
from winsor.core.events.trial_counts import PoissonTrials, TrialCounts, TruncatedNegativeBinomial
from winsor.core.ledger.guarantee import guarantee
from winsor.core.ledger.ledger import Ledger
from winsor.planning import calibrate
from winsor.tuning.pruning import PrivateScore, Pruning

Trial = History | Callable[[float], History]
"""What one training spends: a history, or a function from the noise multiplier to it."""


@dataclass(frozen=True)
class Total:
    """The budget of a whole tuning; no epsilon means that nothing is refused for its price."""

    epsilon: float | None
    delta: float
    relation: Neighbouring


def law_of(trials: float | TrialCounts, release: str) -> TrialCounts | int:
    """How many trials: a number if all are released, else a law."""
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
    """What a tuning spends: a selection for a random number of trials, else their composition."""
    if isinstance(law, int):
        parts = [SelfComposedDpEvent(event, count * law) for event, count in flatten(trial)]
        return ComposedDpEvent(parts)
    return SelectionDpEvent.of_history(trial, law)


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
        """Calibrate the noise of a trial, if that is left open."""
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
        multiplier = calibrate.noise_multiplier(
            lambda nm: whole_event([*trial(nm), *extra], law),
            1,
            total.epsilon,
            total.delta,
            total.relation,
        )
        return Price(law, [*trial(multiplier), *extra], multiplier, total, score, pruning)

    @property
    def releases_all(self) -> bool:
        return isinstance(self.law, int)

    def pay(self, ledger: Ledger, run: str) -> None:
        """Write the tuning down, unless it would exceed the budget or is there already."""
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
        """What the ledger spends, and what that rests on."""
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
