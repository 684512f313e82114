"""A small version of experiments/2026-11-tails/tails_fit.py, and the properties of the fit."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.core.contract import ConfigurationError
from winsor.tails import TailClass, fit
from winsor.tails.fitting import MISFIT

LAWS = {
    "weibull 0.5": (lambda rng, n: rng.weibull(2.0, n), TailClass.LIGHT, 0.5),
    "weibull 1": (lambda rng, n: rng.weibull(1.0, n), TailClass.SUB_EXPONENTIAL, 1.0),
    "weibull 2": (lambda rng, n: rng.weibull(0.5, n), TailClass.HEAVY, 2.0),
    "student 3": (lambda rng, n: np.abs(rng.standard_t(3, n)), TailClass.HEAVY, None),
    "pareto 3": (lambda rng, n: 1 + rng.pareto(3, n), TailClass.HEAVY, None),
    "lognormal": (lambda rng, n: np.exp(rng.standard_normal(n)), TailClass.HEAVY, None),
    "half-normal": (lambda rng, n: np.abs(rng.standard_normal(n)), TailClass.LIGHT, None),
}
REPEATS = 5


@pytest.fixture(scope="module")
def fits():
    return {
        name: [fit(draw(np.random.default_rng([7, r]), 5000), seed=r) for r in range(REPEATS)]
        for name, (draw, _, _) in LAWS.items()
    }


@pytest.mark.parametrize("name", LAWS)
def test_verdicts_at_n_5000(fits, name):
    wanted = LAWS[name][1]
    assert [f.verdict.tail for f in fits[name]] == [wanted] * REPEATS
    for f in fits[name]:
        assert sum(f.verdict.probabilities.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", [name for name, law in LAWS.items() if law[2] is not None])
def test_theta_within_ten_per_cent_and_covered(fits, name):
    theta = LAWS[name][2]
    straight = [f for f in fits[name] if not f.is_bent]
    assert len(straight) >= REPEATS - 1
    for f in straight:
        assert f.theta.value == pytest.approx(theta, rel=0.1)
        assert f.theta_regression.value == pytest.approx(theta, rel=0.1)
        assert f.K.value == pytest.approx(1.0, rel=0.15)
    assert sum(f.theta.low <= theta <= f.theta.high for f in fits[name]) >= REPEATS - 2


@pytest.mark.parametrize("name", ["student 3", "pareto 3"])
def test_power_laws_bend_and_their_safe_moment_is_safe(fits, name):
    assert all(f.is_bent for f in fits[name])
    assert sum(f.safe_moment < 3 for f in fits[name]) >= REPEATS - 1
    assert min(f.safe_moment for f in fits[name]) >= 1.5
    assert sum(f.hill.interval[0] <= 1 / 3 <= f.hill.interval[1] for f in fits[name]) >= REPEATS - 2
    assert all(f.theta.value > 1.15 for f in fits[name])


def test_k_bound_makes_paper_1s_inequality_hold_on_the_tail(fits):
    draw = LAWS["student 3"][0]
    x = np.sort(draw(np.random.default_rng([7, 0]), 5000))[::-1]
    f = fits["student 3"][0]
    survival = np.arange(1, x.size + 1) / x.size
    inside = x > np.exp(f.points.threshold)

    def obeyed(scale: float) -> bool:
        bound = 2 * np.exp(-((x[inside] / scale) ** (1 / f.theta.value)))
        return bool((survival[inside] <= bound * (1 + 1e-6)).all())

    assert obeyed(f.K_bound * 1.01)
    assert not obeyed(f.K_bound * 0.97)


def test_scale_equivariance():
    x = np.random.default_rng(0).weibull(1.3, 3000)
    one, thousand = fit(x), fit(1000 * x)
    assert thousand.theta.value == pytest.approx(one.theta.value, rel=1e-4)
    assert thousand.K.value == pytest.approx(1000 * one.K.value, rel=1e-4)
    assert thousand.fraction == one.fraction
    assert thousand.hill.gamma == pytest.approx(one.hill.gamma)


def test_the_fit_is_a_function_of_its_arguments():
    x = np.random.default_rng(1).weibull(1.0, 800)
    first, second = fit(x), fit(x[::-1].copy())
    assert first.theta == second.theta and first.verdict == second.verdict
    assert fit(x, seed=1).theta.value == first.theta.value


def test_a_strange_body_does_not_bend_the_tail():
    """Half the sample near zero, the rest Weibull(2): the largest fitted fraction avoids it."""
    rng = np.random.default_rng(2)
    x = np.concatenate([1e-3 * rng.random(6000), 1.0 + rng.weibull(0.5, 4000)])
    f = fit(x)
    assert f.fraction <= 0.5
    assert f.verdict.tail is TailClass.HEAVY


def test_zeros_lie_below_the_tail():
    rng = np.random.default_rng(3)
    x = rng.weibull(1.0, 4000)
    x[rng.random(4000) < 0.3] = 0.0
    f = fit(x)
    assert f.n == 4000
    assert f.describes and f.misfit <= MISFIT
    assert f.body_quantile(0.1) == 0.0
    assert f.body_quantile(0.9) == pytest.approx(np.quantile(x, 0.9), rel=0.02)


def test_moment_bounds_the_samples_own():
    x = np.abs(np.random.default_rng(4).standard_t(5, 3000))
    f = fit(x)
    for p in (2.0, 3.0):
        own = np.mean(x**p) ** (1 / p)
        assert own <= f.moment(p) * (1 + 1e-3) <= 1.3 * own


def test_quantiles_extrapolate():
    f = fit(np.random.default_rng(5).weibull(1.0, 20_000))
    assert f.quantile(1e-6) == pytest.approx(np.log(1e6), rel=0.05)


def test_a_small_sample_states_its_doubt():
    """60 exponential norms cannot settle the class; the probabilities must say so."""
    doubts = [
        fit(np.random.default_rng([9, r]).exponential(size=60)).verdict.confidence for r in range(6)
    ]
    assert min(doubts) < 0.9


@pytest.mark.parametrize("options", [{"confidence": 1.0}, {"repeats": 5}])
def test_options_are_checked(options):
    with pytest.raises(ConfigurationError, match="must"):
        fit(np.random.default_rng(0).random(100), **options)
