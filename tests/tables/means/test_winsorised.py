"""A mean that needs no radius: accuracy, intervals, groups, and one record's influence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.tables import winsorised_mean
from winsor.tables.means.tail_cut import Tail
from winsor.tables.means.winsorised import HeavyMean


def relative_error(x, seeds, **options):
    found = [winsorised_mean(x, random_state=seed, **options).estimate for seed in range(seeds)]
    return float(np.sqrt(np.mean((np.array(found) / x.mean() - 1) ** 2)))


def test_it_is_close_to_the_mean_of_heavy_tails_without_being_told_anything():
    claims = 500 * (1 + np.random.default_rng(0).pareto(1.7, size=20_000))
    assert relative_error(claims, 10, epsilon=1.0) < 0.04
    assert relative_error(1e-3 * claims, 5, epsilon=1.0) < 0.04  # in any unit


def test_light_tails_cost_next_to_nothing():
    x = np.random.default_rng(0).normal(1000, 1, size=10_000)
    found = winsorised_mean(x, epsilon=1.0, random_state=0)
    assert abs(found.estimate - x.mean()) < 0.01
    assert found.cuts[0, 1] - found.cuts[0, 0] < 100


@pytest.mark.parametrize("family", ["normal", "lognormal", "student"])
def test_intervals_cover(family):
    """A small seeded cousin of the 500 simulations in experiments/2026-11-tables-without-bounds."""
    rng = np.random.default_rng(7)
    draw, truth = {
        "normal": (lambda n: rng.normal(50, 1, n), 50.0),
        "lognormal": (lambda n: rng.lognormal(0, 1, n), np.exp(0.5)),
        "student": (lambda n: rng.standard_t(3, n), 0.0),
    }[family]
    results = [winsorised_mean(draw(2000), epsilon=1.0, random_state=i) for i in range(60)]
    covered = np.mean([each.low < truth < each.high for each in results])
    assert covered >= 0.88


def test_groups_under_one_budget():
    rng = np.random.default_rng(0)
    by = rng.integers(0, 3, size=30_000)
    x = rng.lognormal(by, 0.5)
    found = winsorised_mean(x, by=np.array(["a", "b", "c"])[by], epsilon=1.0, random_state=0)
    assert set(found.groups) == {"a", "b", "c"}
    for code, name in enumerate("abc"):
        group = found.groups[name]
        assert group.estimate == pytest.approx(x[by == code].mean(), rel=0.05)
        assert group.low < x[by == code].mean() < group.high
        assert group.size == pytest.approx((by == code).sum(), rel=0.05)
    assert found.estimate == pytest.approx(x.mean(), rel=0.03)
    assert 0.99 < found.guarantee.epsilon <= 1.0


def test_columns_are_found_together():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(5, 1, 20_000), 1e6 * rng.lognormal(0, 1, 20_000)])
    found = winsorised_mean(x, epsilon=1.0, random_state=0)
    assert np.abs(found.estimate / x.mean(axis=0) - 1).max() < 0.05


def test_rho_is_a_budget_too():
    found = winsorised_mean(np.arange(5000.0), rho=0.5, random_state=0)
    total = sum(count / (2 * event.noise_multiplier**2) for event, count in found.ledger.history())
    assert total == pytest.approx(0.5)


@pytest.mark.parametrize("relation", list(Neighbouring))
@pytest.mark.parametrize("extreme", [1e12, -1e12, 0.0])
def test_a_record_moves_the_last_step_by_no_more_than_stated(relation, extreme):
    """Given what was released before: the same key gives both worlds the same first releases up to
    the record's own part, so the last sums are compared at the cuts of one world."""
    rng = np.random.default_rng(0)
    x = rng.lognormal(0, 1, size=(500, 2))
    plan = HeavyMean(500, 2)
    result = winsorised_mean(x, epsilon=1.0, random_state=0, relation=relation)
    low, high = result.cuts.T
    u = (np.clip(x, low, high) - (low + high) / 2) / ((high - low) / 2)
    record = (np.clip(np.full(2, extreme), low, high) - (low + high) / 2) / ((high - low) / 2)
    bound = plan._bounded()
    assert np.linalg.norm(record) <= bound.add_remove * (1 + 1e-12)
    assert np.linalg.norm(record - u, axis=1).max() <= bound.replace * (1 + 1e-12)


@given(st.lists(st.floats(-1e3, 1e3), min_size=25, max_size=25), st.floats(0.1, 100))
@settings(max_examples=100, deadline=None)
def test_any_noisy_counts_give_a_finite_cut(counts, std):
    tail = Tail(np.array(counts), std, 1000)
    cut = tail.cut(5.0)
    assert 0 < cut.at < 2.0**40
    assert np.isfinite(cut.lost)
    assert np.isfinite(tail.moments(cut.at)).all()


@pytest.mark.parametrize(
    "options", [{"epsilon": 0.0}, {"epsilon": 1.0, "level": 1.0}, {"epsilon": 1.0, "by": [1, 2]}]
)
def test_odd_arguments_are_refused(options):
    with pytest.raises(ConfigurationError):
        winsorised_mean(np.arange(10.0), **options)


@pytest.mark.parametrize("x", [np.zeros(50), np.full(50, 1e200), np.array([1.0, 2.0])])
def test_odd_data_are_no_trouble(x):
    found = winsorised_mean(x, epsilon=1.0, random_state=0)
    assert np.isfinite([found.estimate, found.low, found.high]).all()
