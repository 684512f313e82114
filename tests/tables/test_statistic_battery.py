"""Every statistic holds its claim. Statistics are discovered; mistaken ones are caught."""

from __future__ import annotations

import numpy as np
import pytest
import statistic_battery
from statistic_battery import Share

from winsor.core.contract import Bounded, ConfigurationError, Sensitivity, UnsoundRelease
from winsor.tables.statistics import by_name, release


@pytest.mark.parametrize("check, statistic", statistic_battery.cases())
def test_a_statistic_holds_its_claim(check, statistic):
    check(statistic)


class Raw(Share):
    """A plain sum, said to be bounded."""

    def bounded(self, rows):
        return Bounded(rows.sum(0), Sensitivity.per_sample(1.0, "wrong"))


class FromData(Share):
    """Clips to the largest row, and claims that."""

    def bounded(self, rows):
        reach = float(np.abs(rows).max(initial=1.0))
        return Bounded(rows[:, :1].sum(0), Sensitivity.per_sample(reach, "wrong"))


class Centred(Share):
    """Subtracts the mean of the table first."""

    def bounded(self, rows):
        centre = rows[:, 0].mean() if len(rows) else 0.0
        value = np.tanh(rows[:, :1] - centre).sum(0)
        return Bounded(value, Sensitivity.per_sample(1.0, "wrong"))


@pytest.mark.parametrize("mistake", [Raw, FromData, Centred])
def test_the_battery_catches(mistake):
    caught = 0
    for check in statistic_battery.CHECKS:
        try:
            check(mistake(0.0, 1.0))
        except (AssertionError, UnsoundRelease):
            caught += 1
    assert caught


def test_a_claim_from_the_data_is_refused_by_the_release():
    with pytest.raises(UnsoundRelease, match="those of a table without rows"):
        release(FromData(0.0, 1.0), [[5.0]], epsilon=1.0)


def test_what_is_no_table_is_refused():
    for rows in ([1.0, 2.0], np.zeros((0, 2))):
        with pytest.raises(ConfigurationError, match="rows must be a table"):
            release(Share(0.0, 1.0), rows, epsilon=1.0)


def test_an_unknown_statistic_is_refused():
    with pytest.raises(ConfigurationError, match="statistic must be one of"):
        by_name("NoSuch")


class Shown(Share):
    """Shows the noisy count as it is."""

    def result(self, released, n):
        return float(released[0])


def test_other_rows_have_other_noise_under_the_same_seed():
    rows = np.linspace(0.0, 1.0, 100)[:, None]
    first, again, moved = (
        release(Shown(0.0, 5.0), rows + shift, epsilon=1.0, random_state=0).value
        for shift in (0.0, 0.0, 1.0)
    )
    assert first == again != moved
