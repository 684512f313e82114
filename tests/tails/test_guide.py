"""The guide joins fits and formulas; each number must be the formula's at the fitted tail."""

from __future__ import annotations

import math

import numpy as np
import pytest
from winsor_papers import theory as theorems

from winsor.core.contract import ConfigurationError
from winsor.tails import Setting, advise, fit
from winsor.tails.guide import START, private_quantile, sampling_noise_scale

SETTING = Setting(n=60_000, d=1000, epsilon=3.0, delta=1e-6, steps=2000, batch_size=256)


@pytest.fixture(scope="module")
def light():
    return fit(np.random.default_rng(0).weibull(2.0, 3000))


@pytest.fixture(scope="module")
def exponential():
    return fit(2 * np.random.default_rng(1).exponential(size=3000))


@pytest.fixture(scope="module")
def heavy():
    return fit(np.abs(np.random.default_rng(2).standard_t(2, 3000)))


def by_source(fitted, setting=SETTING):
    return {advice.title.split(" (")[0]: advice for advice in advise(fitted, setting)}


def test_every_piece_names_source_formula_and_assumptions(exponential):
    found = advise(exponential, SETTING)
    assert len(found) == 7
    assert "default" in found[0].title
    for advice in found:
        assert advice.source and advice.formula and advice.assumptions
        assert all(math.isfinite(value) and value > 0 for value in advice.values.values())
        assert advice.source in str(advice)


def test_assumptions_that_the_fit_contradicts_are_flagged(light, exponential, heavy):
    flags = {
        name: {title for title, advice in by_source(fitted).items() if not advice.holds}
        for name, fitted in (("light", light), ("exponential", exponential), ("heavy", heavy))
    }
    assert "threshold without clipping" not in flags["light"]
    assert "threshold without clipping" in flags["exponential"]  # needs sub-Gaussian noise
    assert "c above the sampling noise, mixing width" not in flags["exponential"]
    assert {"c above the sampling noise, mixing width", "simple clipping"} <= flags["heavy"]
    assert "[assumptions contradicted by the fit]" in str(by_source(heavy)["simple clipping"])


def test_paper_1_uses_the_fitted_theta_and_the_k_that_obeys_its_bound(exponential):
    advice = by_source(exponential)["flat threshold"].values
    theta = exponential.theta.value
    scale = exponential.K_bound
    assert advice["c"] == pytest.approx(
        theorems.heavy_tailed_dpsgd_threshold(theta, scale, 2000, SETTING.failure)
    )
    assert advice["eta"] == pytest.approx(1 / math.sqrt(2000))
    both = by_source(exponential)["body and tail thresholds"].values
    tail, body = theorems.dc_dpsgd_thresholds(theta, scale, 2000, SETTING.failure)
    assert (both["c1"], both["c2"]) == pytest.approx((tail, body))


def test_a_sub_gaussian_tail_uses_theta_one_half_without_the_jump(light):
    values = by_source(light)["body and tail thresholds"].values
    assert values["c1"] == pytest.approx(values["c2"])


def test_paper_2_reads_m_off_the_norms(exponential):
    values = by_source(exponential)["simple clipping"].values
    assert values["p"] == min(8.0, exponential.safe_moment)
    assert values["M"] * math.sqrt(1000) == pytest.approx(exponential.moment(values["p"]))


def test_paper_4_caps_the_batch_and_uses_the_second_moment(exponential):
    values = by_source(exponential)["averaged clipping"].values
    assert values["m"] <= SETTING.n
    assert values["N"] == 2000


def test_kappa_of_an_exponential_tail_is_its_scale(exponential):
    """P(X > t) = exp(-t/2): kappa = 2, and c is at least 4 kappa log 10."""
    kappa = sampling_noise_scale(exponential)
    assert kappa == pytest.approx(2.0, rel=0.1)
    assert by_source(exponential)["c above the sampling noise, mixing width"].values["c"] >= (
        4 * kappa * math.log(10) * 0.999
    )


def test_rescaled_norms_rescale_every_threshold():
    x = np.random.default_rng(3).exponential(size=3000)
    one = by_source(fit(x))
    ten = by_source(fit(10 * x))
    for title, name in (
        ("flat threshold", "c"),
        ("body and tail thresholds", "c1"),
        ("simple clipping", "R"),
        ("private quantile", "max_grad_norm"),
    ):
        assert ten[title].values[name] == pytest.approx(10 * one[title].values[name], rel=1e-3)


def test_private_quantile_starts_low_without_a_fit_and_at_the_targets_quantile_with_one(light):
    assert private_quantile(None, SETTING).values["max_grad_norm"] == START
    start = private_quantile(light, SETTING).values
    assert start["max_grad_norm"] == pytest.approx(light.body_quantile(start["target"]))


def test_the_target_is_where_bias_and_noise_balance(light):
    """At the 1 - nu quantile the sum of bias bound and noise is least, by brute force."""
    norms = np.random.default_rng(0).weibull(2.0, 3000)
    values = private_quantile(None, SETTING).values
    nu = values["noise_multiplier"] * math.sqrt(SETTING.d) / values["batch_size"]
    assert values["target"] == pytest.approx(1 - nu)
    grid = np.quantile(norms, np.linspace(0.5, 0.999, 400))
    cost = [np.maximum(norms - c, 0).mean() + nu * c for c in grid]
    assert np.mean(norms <= grid[np.argmin(cost)]) == pytest.approx(values["target"], abs=0.01)


@pytest.mark.parametrize(("d", "target"), [(1, 0.97), (10**7, 0.7)])
def test_the_target_stays_in_its_range(d, target):
    setting = Setting(n=60_000, d=d, epsilon=3.0, delta=1e-6, steps=100)
    values = private_quantile(None, setting).values
    assert values["target"] == target
    assert values["batch_size"] == round(2 * math.sqrt(60_000)) and values["steps"] == 100


def test_steps_fall_back_on_the_theorem():
    setting = Setting(n=10_000, d=100, epsilon=1.0, delta=1e-5)
    assert setting.steps_or_theorem() == pytest.approx(
        theorems.dc_dpsgd_steps(10_000, 1.0, 100, 1e-5)
    )
    assert setting.sampling_rate == pytest.approx(0.01)


@pytest.mark.parametrize(
    "wrong", [{"n": 0}, {"delta": 1.0}, {"epsilon": math.inf}, {"steps": 0}, {"batch_size": 101}]
)
def test_settings_are_checked(wrong):
    with pytest.raises(ConfigurationError, match="must"):
        Setting(**{"n": 100, "d": 10, "epsilon": 1.0, "delta": 1e-3, **wrong})
