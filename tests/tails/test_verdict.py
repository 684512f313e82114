from __future__ import annotations

import numpy as np
import pytest

from winsor.tails.verdict import TailClass, bend_critical, bend_weight, class_shares, judge


def test_bands():
    shares = class_shares(np.array([0.5, 0.84, 0.86, 1.0, 1.14, 1.16, 2.0, 3.0]))
    assert shares[TailClass.LIGHT] == pytest.approx(2 / 8)
    assert shares[TailClass.SUB_EXPONENTIAL] == pytest.approx(3 / 8)
    assert shares[TailClass.HEAVY] == pytest.approx(3 / 8)


def test_the_bend_weighs_a_half_at_its_critical_value_and_follows_the_likelihood():
    for n in (100, 500, 10_000, 10**6):
        assert bend_weight(bend_critical(n), n) == pytest.approx(0.5)
    odds = [bend_weight(s, 500) / (1 - bend_weight(s, 500)) for s in (4.0, 6.0)]
    assert odds[1] / odds[0] == pytest.approx(np.e)
    assert bend_weight(1e9, 500) == 1.0
    assert bend_critical(100) == 1.7
    assert bend_critical(50_000) == pytest.approx(np.log(50_000) - 4.5)


def test_judge_averages_over_the_curves():
    verdict = judge(np.full(10, 1.0), np.full(10, 2.0), 0.3)
    assert verdict.tail is TailClass.SUB_EXPONENTIAL
    assert verdict.probabilities[TailClass.HEAVY] == pytest.approx(0.3)
    assert str(verdict) == "sub-exponential (70%)"
