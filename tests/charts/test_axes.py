"""Axes show every value, with a handful of round ticks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winsor.charts.axes import axis


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30))
def test_linear(values):
    found = axis(values)
    tolerance = 1e-6 * (found.high - found.low)
    assert found.low <= min(values) + tolerance and max(values) <= found.high + tolerance
    assert 3 <= len(found.ticks) <= 9 and list(found.ticks) == sorted(set(found.ticks))
    assert all(-0.01 <= found.at(value) <= 1.01 for value in values)
    assert len(set(found.labels())) == len(found.ticks) or max(map(abs, values)) > 1e5


@given(st.lists(st.floats(1e-20, 1e20), min_size=1, max_size=30))
def test_logarithmic(values):
    found = axis(values, log=True)
    assert all(-1e-9 <= found.at(value) <= 1 + 1e-9 for value in values)
    assert 2 <= len(found.ticks) <= 9
    middle = math.sqrt(found.low) * math.sqrt(found.high)
    assert found.at(middle) == pytest.approx(0.5, abs=1e-6)


def test_labels_are_round():
    assert axis([0.0, 0.94]).labels() == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert axis([0.913, 0.947]).labels() == ["0.91", "0.92", "0.93", "0.94", "0.95"]
    assert axis([0.0, 20_000.0]).labels() == ["0", "5000", "10000", "15000", "20000"]
    assert axis([0.001, 100.0], log=True).labels() == ["0.001", "0.01", "0.1", "1", "10", "100"]
    assert axis([1e-9, 1e-3], log=True).labels()[0] == "1e-9"


def test_from_zero_and_nothing_to_show():
    assert axis([3.0, 8.0], from_zero=True).low == 0
    assert axis([]).ticks == (0.0, 1.0)
    assert axis([math.nan, math.inf], log=True).ticks == (1.0, 10.0)
    assert axis([5.0]).low < 5 < axis([5.0]).high
    assert axis([0.0, 5.0], log=True).at(0.0) == 0.0
