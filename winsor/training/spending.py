"""Upper bounds on epsilon, shown at every step of a run.

Two certified bounds are kept, and the smaller one is shown:

    ahead    the exact account of a moment slightly ahead, which bounds everything before it. It
             takes some hundredths of a second, so there are as many such moments as fit into a
             small share of the run's time
    now      the Renyi account of this very step: a few per cent larger, but quick enough for each

The first is tight and moves in stairs, the second moves at every step.

Guarantee
---------
Every value shown is at least what the ledger's steps have spent, and never falls: privacy loss
grows with steps, and the account ahead serves only while it holds every event of the ledger at
least as often as the ledger does.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from dp_accounting.dp_event import DpEvent, NoOpDpEvent

from winsor.core.accounting.spending import RunningRenyi
from winsor.core.contract import Neighbouring
from winsor.core.ledger.guarantee import spent_by
from winsor.core.ledger.ledger import Ledger

if TYPE_CHECKING:
    from winsor.training.saving.state import StepBudget

FEWEST, MOST = 12, 100
CHEAP_SECONDS = 0.1
ALWAYS_SECONDS = 0.5
"""What the accounts ahead may cost together in a run that is shorter than its share allows."""

History = list[tuple[DpEvent, int]]


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
        self._ahead = math.inf
        self._covered: list[int] = []  # how often the account ahead holds each event
        self._before: list[int] = []  # counts when last asked
        self._running = RunningRenyi(budget.delta, relation)
        self._shown = 0.0
        self._first = len(ledger)
        self._start = time.perf_counter()

    def at_most(self) -> float:
        """Return a certified upper bound on epsilon so far."""
        spent = len(self._ledger)
        paid = [(e, c) for e, c in self._ledger.history() if not isinstance(e, NoOpDpEvent)]
        counts = [count for _, count in paid]
        if not paid or counts == self._before:
            return self._shown
        if len(counts) != len(self._covered) or any(map(int.__gt__, counts, self._covered)):
            self._look_ahead(spent, paid, self._growing(counts))
        self._before = counts
        self._shown = max(self._shown, min(self._ahead, self._running.epsilon(paid)))
        return self._shown

    def _growing(self, counts: list[int]) -> int:
        """Which event the present steps spend: the one that grew, or the newest."""
        pairs = enumerate(zip(self._before, counts, strict=False))
        grown = [i for i, (old, new) in pairs if new > old]
        return len(counts) - 1 if len(counts) > len(self._before) or not grown else grown[-1]

    def _look_ahead(self, spent: int, paid: History, growing: int) -> None:
        """Account for the ledger continued to the next mark."""
        until = self._next_mark(spent)
        event, count = paid[growing]
        ahead = list(paid)
        ahead[growing] = (event, count - (-(until - spent) // self._block))
        self._covered = [count for _, count in ahead]
        final = self._final if spent <= self._budget.planned_steps else None
        if final is not None and until >= self._budget.planned_steps:
            self._ahead = final
            return
        begun = time.process_time()
        epsilon = spent_by(ahead, self._budget.delta, self._relation).epsilon
        if self._ahead < math.inf:  # the first account prepares things that the others use
            self._choose_marks(spent, time.process_time() - begun)
        self._ahead = epsilon if final is None else min(epsilon, final)

    def _next_mark(self, spent: int) -> int:
        """The first of the marks k * planned / marks that is not behind."""
        planned = self._budget.planned_steps
        k = -(-spent * self._marks // planned)
        return max(spent, min(planned, -(-k * planned // self._marks)))

    def _choose_marks(self, spent: int, cost: float) -> None:
        """Choose as many marks as their cost allows."""
        steps = max(1, spent - self._first)
        expected = (time.perf_counter() - self._start) / steps * self._budget.planned_steps
        affordable = int(max(self._share * expected, ALWAYS_SECONDS) / max(cost, 1e-3))
        self._marks = min(MOST, max(FEWEST if cost < CHEAP_SECONDS else 1, affordable))
