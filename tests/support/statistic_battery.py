"""What every statistic of `winsor.tables.statistics` must hold, and the rows that test it most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from winsor.core.contract import Bounded, Neighbouring, Sensitivity
from winsor.tables.statistics import Statistic, all_statistics, release

SCALES = (1e308, 1e6, 30.0, 1.0, 0.3, 1e-3, 5e-324)
ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Share(Statistic):
    """Share of the rows whose first column is between ``low`` and ``high``."""

    low: float
    high: float

    def bounded(self, rows):
        inside = (rows[:, 0] >= self.low) & (rows[:, 0] <= self.high)  # NaN is not inside
        value = np.array([inside.sum()], dtype=np.float64)
        return Bounded(value, Sensitivity.per_sample(1.0, "a row counts once or not at all"))

    def result(self, released, n):
        return float(np.clip(released[0] / n, 0.0, 1.0))


LOCAL = Share(0.25, 2.0)
"""So that the battery itself is tried where nobody has added a statistic."""


def examples() -> list[Statistic]:
    """Return the local example, and those of every statistic that is found."""
    return [LOCAL, *(one for several in all_statistics().values() for one in several)]


def hostile_rows(columns: int) -> list[np.ndarray]:
    """Return rows of every size, sign and direction, and some that are no numbers."""
    generator = np.random.default_rng(7)
    directions = [np.ones(columns), np.eye(columns)[0], generator.uniform(-1, 1, columns)]
    found = [sign * s * u for s in SCALES for u in directions for sign in (1.0, -1.0)]
    odd = (np.nan, np.inf, -np.inf, 0.0, -0.0)
    return [*found, *(np.full(columns, value) for value in odd)]


def tables(columns: int) -> list[np.ndarray]:
    """Return tables that the record in question joins: none, ordinary rows, and huge ones."""
    rows = np.random.default_rng(3).standard_normal((12, columns))
    return [rows[:0], rows, 1e150 * rows]


def summed(statistic: Statistic, *rows: np.ndarray) -> np.ndarray:
    """Return the sum over the rows of several tables."""
    with np.errstate(all="ignore"):
        return statistic.bounded(np.concatenate(rows)).value


def check_no_row_moves_more_than_claimed(statistic: Statistic) -> None:
    """Adding a row, and replacing one, moves the sum by at most the sensitivity."""
    claim = statistic.bounded(np.zeros((0, statistic.columns))).sensitivity
    hostile = [row[None] for row in hostile_rows(statistic.columns)]
    for table in tables(statistic.columns):
        alone = summed(statistic, table)
        room = 1e-12 * max(1.0, float(np.abs(alone).max(initial=0.0)))
        moved = [summed(statistic, table, row) - alone for row in hostile]
        assert np.isfinite(moved).all()
        assert max(np.linalg.norm(m) for m in moved) <= claim.add_remove * ROUNDING + room
        apart = max(np.linalg.norm(a - b) for a in moved for b in moved)
        assert apart <= claim.replace * ROUNDING + room


def check_it_is_a_sum_over_rows(statistic: Statistic) -> None:
    """The sum over two tables is that over both, in any order: no row depends on another."""
    _, rows, huge = tables(statistic.columns)
    whole = summed(statistic, rows, huge)
    np.testing.assert_allclose(whole, summed(statistic, huge[::-1], rows[::-1]), atol=1e-9)
    parts = summed(statistic, rows) + summed(statistic, huge)
    np.testing.assert_allclose(whole, parts, atol=1e-9)


def check_shape_and_claim_do_not_depend_on_rows(statistic: Statistic) -> None:
    """Shape, dtype and sensitivity are the same for every table."""
    found = [statistic.bounded(table) for table in tables(statistic.columns)]
    assert {(one.value.shape, one.value.dtype, one.sensitivity) for one in found} == {
        (found[0].value.shape, np.dtype(np.float64), found[0].sensitivity)
    }


def check_rows_are_left_alone(statistic: Statistic) -> None:
    """The table is not written to, and the same table gives the same sum."""
    for table in tables(statistic.columns):
        before = table.copy()
        np.testing.assert_array_equal(summed(statistic, table), summed(statistic, table))
        np.testing.assert_array_equal(table, before)


def check_the_release_is_certified(statistic: Statistic) -> None:
    """A release stays within its budget, under both relations, and its result is usable."""
    rows = tables(statistic.columns)[1]
    for relation in Neighbouring:
        found = release(
            statistic, rows, epsilon=1.0, delta=1e-5, relation=relation.value, random_state=0
        )
        assert 0.9 < found.guarantee.epsilon <= 1.0
        assert np.isfinite(np.asarray(found.value, dtype=float)).all()


def check_it_says_what_it_guarantees(statistic: Statistic) -> None:
    """The class has a docstring, the sensitivity a proof, the settings a `repr`."""
    assert (type(statistic).__doc__ or "").strip()
    assert statistic.bounded(np.zeros((0, statistic.columns))).sensitivity.proof
    assert type(statistic).__name__ in repr(statistic) and " at 0x" not in repr(statistic)


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]


def cases() -> list[pytest.ParameterSet]:
    """Return every check of every statistic."""
    return [
        pytest.param(check, one, id=f"{one!r}-{check.__name__[6:]}")
        for one in examples()
        for check in CHECKS
    ]
