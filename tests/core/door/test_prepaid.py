"""The prepaid door: paid before drawn, never more than paid, noise as accounted."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting import dp_event
from scipy import stats

from winsor.core.contract import (
    BudgetExceeded,
    LedgerError,
    Neighbouring,
    Sensitivity,
    UnsoundRelease,
)
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.randomness import new_key
from winsor.core.sampling.samplers import FullBatch, Poisson

ADD = Neighbouring.ADD_OR_REMOVE_ONE
REPLACE = Neighbouring.REPLACE_ONE
UNIT = Sensitivity.per_sample(2.0, "test")


def door(relation: Neighbouring = ADD, seed: int = 0, path=None) -> PrepaidDoor:
    return PrepaidDoor(Ledger({"test": 1}, path), relation, new_key(seed))


def test_everything_is_in_the_ledger_before_the_first_draw(tmp_path):
    prepaid = door(path=tmp_path / "run.ledger")
    prepaid.pay(Gaussian(1.5), Poisson(100, 0.1), UNIT, 1000, 3)
    event = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.5))
    assert prepaid.ledger.history() == [(event, 1000)]
    lines = (tmp_path / "run.ledger").read_text().splitlines()
    assert lines[-1].split(" ")[4] == "1000"


@pytest.mark.parametrize(("relation", "multiplier"), [(ADD, 1.5), (REPLACE, 0.75)])
def test_the_event_uses_the_relations_sensitivity(relation, multiplier):
    prepaid = door(relation)
    receipt = prepaid.pay(Gaussian(1.5), FullBatch(10), UNIT, 1, 1)
    assert receipt.std == pytest.approx(3.0, rel=5e-4)
    ((event, count),) = prepaid.ledger.history()
    assert count == 1
    assert event == dp_event.GaussianDpEvent(multiplier)


def test_noise_has_the_standard_deviation_that_was_paid_for():
    receipt = door().pay(Gaussian(1.5), FullBatch(10), UNIT, 400, 500)
    draws = np.stack([receipt.release(np.zeros(500)) for _ in range(400)])
    # 200,000 draws: the sample deviation is within 0.5 % of the true one with 3.1 sigma
    assert abs(draws.std() / 3.0 - 1) < 0.005
    assert stats.kstest(draws.ravel() / 3.0, "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.01


def test_noise_is_a_function_of_key_and_step_whatever_the_blocks(monkeypatch):
    many = door().pay(Gaussian(1.0), FullBatch(10), UNIT, 50, 4)
    first = [many.release(np.zeros(4)) for _ in range(50)]
    again = door().pay(Gaussian(1.0), FullBatch(10), UNIT, 50, 4)
    assert np.array_equal(first, [again.release(np.zeros(4)) for _ in range(50)])
    other = door(seed=1).pay(Gaussian(1.0), FullBatch(10), UNIT, 50, 4)
    assert not np.array_equal(first[0], other.release(np.zeros(4)))


def test_a_second_payment_draws_fresh_noise():
    prepaid = door()
    one = prepaid.pay(Gaussian(1.0), FullBatch(10), UNIT, 1, 4).release(np.zeros(4))
    two = prepaid.pay(Gaussian(1.0), FullBatch(10), UNIT, 1, 4).release(np.zeros(4))
    assert not np.array_equal(one, two)
    assert len(prepaid.ledger) == 2


def test_no_release_without_payment():
    receipt = door().pay(Gaussian(1.0), FullBatch(10), UNIT, 2, 1)
    receipt.release(np.zeros(1))
    receipt.release(np.zeros(1))
    assert receipt.left == 0
    with pytest.raises(BudgetExceeded, match="paid for"):
        receipt.release(np.zeros(1))


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(4),
        np.zeros((2, 3)),
        np.zeros(3, dtype=np.float32),
        np.array([0.0, np.nan, 0.0]),
        np.array([0.0, np.inf, 0.0]),
    ],
)
def test_a_value_of_another_shape_or_not_finite_stays_inside(value):
    receipt = door().pay(Gaussian(1.0), FullBatch(10), UNIT, 2, 3)
    with pytest.raises(UnsoundRelease):
        receipt.release(value)
    assert receipt.left == 2


def test_guarantee_reports_the_whole_ledger():
    prepaid = door()
    prepaid.pay(Gaussian(4.0), FullBatch(10), UNIT, 16, 1)
    guarantee = prepaid.guarantee(1e-5, ("condition",))
    assert guarantee.steps == 16
    rounding = "noise covers rounding in sums over rows: at most 9.1e-12 of a bound"
    assert guarantee.conditions == ("test", rounding, "condition")
    single = door()
    single.pay(Gaussian(1.0), FullBatch(10), UNIT, 1, 1)
    assert guarantee.epsilon == pytest.approx(single.guarantee(1e-5).epsilon, rel=1e-9)


# ------------------------------------------------------------------------- Ledger.record_many


def test_record_many_is_many_records_and_survives_reopening(tmp_path):
    event = dp_event.GaussianDpEvent(1.0)
    path = tmp_path / "many.ledger"
    ledger = Ledger({"a": 1}, path)
    assert ledger.record_many("run", event, 5) == 0
    assert ledger.record("run", 5, event) == 5
    assert ledger.record_many("run", event, 2) == 6
    ledger.close()
    again = Ledger({"a": 1}, path)
    assert again.history() == [(event, 8)]
    assert again.steps("run") == 8
    one_by_one = Ledger({"a": 1})
    for step in range(8):
        one_by_one.record("run", step, event)
    assert again.digest() == one_by_one.digest()


def test_a_torn_payment_is_dropped(tmp_path):
    path = tmp_path / "torn.ledger"
    ledger = Ledger({"a": 1}, path)
    ledger.record_many("run", dp_event.GaussianDpEvent(1.0), 5)
    ledger.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert len(Ledger({"a": 1}, path)) == 0


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_record_many_refuses_odd_counts(count):
    with pytest.raises(LedgerError, match="positive whole number"):
        Ledger({}).record_many("run", dp_event.GaussianDpEvent(1.0), count)


def test_a_damaged_count_is_refused(tmp_path):
    path = tmp_path / "bad.ledger"
    ledger = Ledger({"a": 1}, path)
    ledger.record_many("run", dp_event.GaussianDpEvent(1.0), 5)
    ledger.close()
    path.write_text(path.read_text().replace(" 0 0 5 ", " 0 0 -5 "))
    with pytest.raises(LedgerError, match="changed or damaged"):
        Ledger({"a": 1}, path)
