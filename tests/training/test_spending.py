"""What is shown is never less than what was spent, never falls, and ends at the truth."""

from __future__ import annotations

import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent

from winsor.core.accounting import account, certify
from winsor.core.contract import Neighbouring
from winsor.core.ledger.ledger import Ledger
from winsor.training import spending
from winsor.training.saving.state import StepBudget
from winsor.training.spending import Spending

EVENT = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.2))
RELATION = Neighbouring.ADD_OR_REMOVE_ONE
PLANNED, DELTA = 60, 1e-4


def bounds(calibrated, events=lambda step: EVENT, share=0.01):
    total = certify([(EVENT, PLANNED)], DELTA).epsilon
    ledger = Ledger({})
    shown = Spending(ledger, RELATION, StepBudget(DELTA, PLANNED, total), calibrated, share)
    found = [shown.at_most()]
    for step in range(PLANNED):
        ledger.record("run", step, events(step))
        found.append(shown.at_most())
    return found, ledger


@pytest.mark.parametrize("calibrated", [True, False])
def test_bounds_hold_at_every_step(calibrated):
    found, _ = bounds(calibrated)
    assert found[0] == 0
    assert found == sorted(found)
    for step in (1, 14, 15, 16, 31, 59, 60):
        assert found[step] >= certify([(EVENT, step)], DELTA).epsilon * (1 - 1e-9)
    assert found[-1] == pytest.approx(certify([(EVENT, PLANNED)], DELTA).epsilon)
    assert found[5] < 0.8 * found[-1]


def test_a_change_of_events_is_noticed():
    dearer = PoissonSampledDpEvent(0.1, GaussianDpEvent(0.8))
    found, ledger = bounds(False, lambda step: EVENT if step < 20 else dearer)
    truth = account([(EVENT, 20), (dearer, 1)], DELTA).epsilon
    assert found[21] >= truth * (1 - 1e-9)
    assert found[-1] >= account(ledger.history(), DELTA).epsilon * (1 - 1e-9)


def test_few_accounts(monkeypatch):
    calls = []
    real = spending.spent_by

    def counted(history, delta, relation):
        calls.append(1)
        return real(history, delta, relation)

    monkeypatch.setattr(spending, "spent_by", counted)
    bounds(True, share=0.0)
    assert len(calls) <= spending.MOST
    calls.clear()
    bounds(True, share=1e9)
    assert len(calls) <= spending.MOST


def test_the_bound_moves_between_the_accounts(monkeypatch):
    monkeypatch.setattr(Spending, "_choose_marks", lambda *_: None)  # as few as there may be
    found, _ = bounds(False)
    assert len(set(found)) > spending.FEWEST  # the accounts alone would give so many


@pytest.mark.parametrize("relation", list(Neighbouring))
def test_events_that_take_turns_are_covered(relation):
    """An account ahead that goes on with one event must not serve for the other."""
    dearer = PoissonSampledDpEvent(0.1, GaussianDpEvent(0.8))
    ledger = Ledger({})
    shown = Spending(ledger, relation, StepBudget(DELTA, 12), False)
    for step in range(12):
        ledger.record("run", step, dearer if step % 2 else EVENT)
        spent = certify(ledger.history(), DELTA, relation).epsilon
        assert shown.at_most() >= spent * (1 - 1e-9)


def test_looks_between_the_steps_are_covered():
    ledger = Ledger({})
    shown = Spending(ledger, RELATION, StepBudget(DELTA, 20), False)
    for step in range(20):
        ledger.record("run", step, EVENT)
        if step % 5 == 4:
            ledger.record("looks", step // 5, GaussianDpEvent(5.0))
        assert shown.at_most() >= certify(ledger.history(), DELTA).epsilon * (1 - 1e-9)
