"""Student's interval over seeds."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.app.runs.summary import Interval, interval, paired_difference


def test_one_run_has_no_interval():
    assert interval([0.5]) == Interval(0.5, None, 1)
    assert str(interval([0.5])) == "0.5"


def test_the_known_value_of_three():
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.302652729911275 / np.sqrt(3))  # t(0.975, 2) = 4.3027
    assert str(interval([1.0, 1.0])) == "1 ± 0"


def test_the_interval_covers_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(size=(2000, 4))
    hits = [abs(found.mean) <= (found.half or 0) for found in map(interval, draws.tolist())]
    assert 0.935 < np.mean(hits) < 0.965


def test_differences_are_paired_by_seed():
    found = paired_difference({1: 2.0, 2: 4.0, 3: 9.0}, {1: 1.0, 2: 3.0, 7: 0.0})
    assert found == Interval(1.0, 0.0, 2)
    assert paired_difference({1: 2.0}, {2: 1.0}) is None
