"""Epsilon for the eye, while a run goes on.

An exact account takes about a tenth of a second, too long for every step. What is shown instead is
the certified epsilon of a moment slightly ahead: the account of the ledger continued to the next of
a few marks, which bounds everything before it. There are as many marks as fit into a small share of
the run's time.

Guarantee
---------
Every value shown is at least what the ledger's steps have spent: privacy loss grows with steps.
"""

from __future__ import annotations

import time

from dp_accounting.dp_event import NoOpDpEvent

from winsor.contract import Neighbouring
from winsor.ledger.guarantee import spent_by
from winsor.ledger.ledger import Ledger
from winsor.training.loop import StepBudget

FEWEST, MOST = 4, 25
CHEAP_SECONDS = 0.3


class Spending:
    """Upper bounds on what a ledger has spent, for about ``share`` of the run's time."""

    def __init__(
        self,
        ledger: Ledger,
        relation: Neighbouring,
        budget: StepBudget,
        calibrated: bool,
        share: float = 0.01,
        block: int = 1,
    ) -> None:
        self._ledger = ledger
        self._relation = relation
        self._budget = budget
        self._share = share
        self._block = block  # steps that are paid for together, with the first of them
        self._final = budget.epsilon if calibrated else None  # calibration has proven this one
        self._marks = FEWEST
        self._bound, self._until, self._kinds = 0.0, 0, 0
        self._first = len(ledger)
        self._start = time.perf_counter()

    def at_most(self) -> float:
        """A certified upper bound on epsilon so far."""
        spent, kinds = len(self._ledger), len(self._ledger.history())
        if spent == 0:
            return 0.0
        if spent > self._until or kinds != self._kinds:
            self._until = self._next_mark(spent)
            self._kinds = kinds
            self._bound = self._epsilon(spent, self._until)
        return self._bound

    def _next_mark(self, spent: int) -> int:
        """The first of the marks k * planned / marks that is not behind."""
        planned = self._budget.planned_steps
        k = -(-spent * self._marks // planned)
        return max(spent, -(-k * planned // self._marks))

    def _epsilon(self, spent: int, until: int) -> float:
        if self._final is not None and until >= self._budget.planned_steps >= spent:
            return self._final
        begun = time.perf_counter()
        paid = [(e, c) for e, c in self._ledger.history() if not isinstance(e, NoOpDpEvent)]
        *earlier, (event, count) = paid
        history = [*earlier, (event, count - (-(until - spent) // self._block))]
        epsilon = spent_by(history, self._budget.delta, self._relation).epsilon
        self._choose_marks(spent, time.perf_counter() - begun)
        return epsilon if self._final is None else min(epsilon, self._final)

    def _choose_marks(self, spent: int, cost: float) -> None:
        """As many as their cost allows. Later marks lie ahead, so the bound never falls."""
        steps = max(1, spent - self._first)
        expected = (time.perf_counter() - self._start) / steps * self._budget.planned_steps
        affordable = int(self._share * expected / max(cost, 1e-3))
        least = FEWEST if cost < CHEAP_SECONDS else 1
        self._marks = min(MOST, max(least, affordable))
