"""Sums over tables under attack: the adversary of each sees the whole shift that is paid for."""

import math

import numpy as np
import pytest
from selfaudit.ranges import AllColumns, RangeExperiment
from selfaudit.tables import SUMS, TableExperiment

from winsor.audit.curve import ABSENT, PRESENT
from winsor.core.contract import Neighbouring

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
LOOSE = {
    ("gram", REPLACE),  # claims 2, where two positive semi-definite matrices differ by sqrt(2)
    ("moments", REPLACE),  # u moves by 2 while u^2 stays: sqrt(2) of the claimed 2
    ("winsorised", REPLACE),  # sums and sizes cannot both move by as much as each may
}


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("name", SUMS)
def test_the_adversary_sees_all_that_the_ledger_allows_and_no_more(name, relation):
    experiment = TableExperiment(name, 2.0, relation)
    absent, present = (experiment.scores(dataset, 1_000, 0) for dataset in (ABSENT, PRESENT))
    shift = (present.mean() - absent.mean()) / np.sqrt((absent.var() + present.var()) / 2)
    ((event, count),) = experiment.history
    assert count == 1
    if (name, relation) in LOOSE:
        assert 0.4 / event.noise_multiplier < shift < 1 / event.noise_multiplier
    else:
        assert shift == pytest.approx(1 / event.noise_multiplier, abs=0.15)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_two_rounds_show_what_was_paid_for_the_columns_left(relation):
    experiment = RangeExperiment(2.0, relation)
    absent, present = (experiment.scores(dataset, 600, 0) for dataset in (ABSENT, PRESENT))
    shift = (present.mean() - absent.mean()) / np.sqrt((absent.var() + present.var()) / 2)
    paid = math.sqrt(sum(count / event.noise_multiplier**2 for event, count in experiment.history))
    assert sum(count for _, count in experiment.history) == 2
    assert shift == pytest.approx(paid, abs=0.18)


def test_the_second_round_is_of_one_column():
    door, _ = RangeExperiment(2.0)._played(PRESENT, "columns")
    assert [std for _, std in door.rounds] == pytest.approx([2.0 * math.sqrt(8), 2.0])
    assert not RangeExperiment(2.0)._looks_at[:-1].any()


def test_columns_that_nobody_paid_for_are_seen():
    mistaken = RangeExperiment(2.0, ADD, AllColumns(8, rounds=2, indicators=True))
    absent, present = (mistaken.scores(dataset, 600, 0) for dataset in (ABSENT, PRESENT))
    shift = (present.mean() - absent.mean()) / np.sqrt((absent.var() + present.var()) / 2)
    paid = math.sqrt(sum(count / event.noise_multiplier**2 for event, count in mistaken.history))
    assert shift > 1.3 * paid
