"""Columns of zeros and ones: who is taken for one, and that later histograms leave them out."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.core.contract import Neighbouring
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.tables.ranges.grid import signed_log_grid, with_narrow_cells
from winsor.tables.ranges.zoom import Zoom, counts_between

N = 20_000


def released(table, multiplier=10.0):
    door = PrepaidDoor(Ledger({}), Neighbouring.ADD_OR_REMOVE_ONE, bytes(32))
    zoom = Zoom(table.shape[1], indicators=True)
    return zoom.release(table, door, Gaussian(multiplier)), door


def columns():
    draw = np.random.default_rng(0)
    return np.column_stack(
        [
            draw.random(N) < 0.3,
            draw.random(N) < 0.002,  # ones that nobody sees
            draw.random(N) < 0.999,
            2 * (draw.random(N) < 0.5),
            draw.uniform(0, 1, N),
            draw.integers(0, 3, N),
        ]
    )


def test_zeros_and_ones_are_recognised_and_nothing_else():
    found, door = released(columns())
    assert [each.indicator for each in found] == [True, True, True, False, False, False]
    assert found[0].mass[-1] == pytest.approx(0.3, abs=0.02)
    assert all(each.low < 0 < 1 < each.high for each in found[:3])
    assert len(door.ledger) == 3


def test_noise_as_large_as_the_table_recognises_nothing():
    for seed in range(5):
        table = np.random.default_rng(seed).normal(150, 50, size=(50, 4))
        assert not any(each.indicator for each in released(table, 30.0)[0])


def test_a_row_still_stands_in_one_cell():
    edges = with_narrow_cells(signed_log_grid())
    values = np.array([-1.0, 0.0, 1e-9, 0.5, 1.0, 1.0 + 1e-9, 3.0])[:, None]
    counts = counts_between(values, [edges], len(edges) + 1)
    assert counts.sum() == len(values)
    zero, one = (int(np.searchsorted(edges, value, side="right")) for value in (0.0, 1.0))
    assert counts[0, zero] == 2 and counts[0, one] == 2


def test_recognised_columns_do_not_move_later_histograms(monkeypatch):
    """Their counts are zeros, and noise is that of the columns that are left."""
    table, seen = columns(), []
    honest = PrepaidDoor.pay

    def pay(door, mechanism, sampler, sensitivity, steps, shape):
        receipt = honest(door, mechanism, sampler, sensitivity, steps, shape)
        release = receipt.release
        object.__setattr__(
            receipt,
            "release",
            lambda value: seen.append((sensitivity, value.copy())) or release(value),
        )
        return receipt

    monkeypatch.setattr(PrepaidDoor, "pay", pay)
    released(table)
    (first, _), *later = seen
    assert first.add_remove == pytest.approx(np.sqrt(6))
    for sensitivity, value in later:
        assert sensitivity.add_remove == pytest.approx(np.sqrt(3))
        assert not value[:3].any() and value[3:].sum() == 3 * N
