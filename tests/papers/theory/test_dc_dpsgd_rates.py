"""Paper 1: each rate and case against a transcription of the printed formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from winsor_papers import theory as th

from winsor.core.contract import ConfigurationError

SETTING = {"n": 6e4, "d": 1e3, "epsilon": 3.0, "steps": 500.0, "failure": 0.05}
THETAS = st.floats(0.5, 4.0)
LENGTHS = st.floats(10, 1e6)


def transcribed(theta: float, n: float, d: float, epsilon: float, steps: float, failure: float):
    """Theorem B.1's display, from left to right."""
    log = math.log(steps / failure)
    hat = log ** max(0.0, theta - 1)
    return d**0.25 * log**1.25 * hat * math.log(steps**0.5) ** (2 * theta) / (n * epsilon) ** 0.5


@given(theta=THETAS, steps=LENGTHS, n=st.floats(1e2, 1e8), d=st.floats(1, 1e6))
def test_theorem_4_1(theta, steps, n, d):
    setting = {**SETTING, "n": n, "d": d, "steps": steps}
    rate = th.heavy_tailed_dpsgd_rate(theta, **setting)
    assert rate.value == pytest.approx(transcribed(theta, **setting))
    assert rate.is_order and "constant taken as 1" in rate.source
    assert rate.value == pytest.approx(math.prod(rate.terms.values()))


@given(theta=THETAS, steps=LENGTHS)
def test_theorem_5_3(theta, steps):
    setting = {**SETTING, "steps": steps}
    tail = th.discriminative_rate("tail", theta, **setting).value
    body = th.discriminative_rate("body", theta, **setting).value
    assert tail == pytest.approx(transcribed(theta, **setting))
    log = math.log(steps / 0.05)
    printed = 1e3**0.25 * log**1.25 * math.log(math.sqrt(steps)) / math.sqrt(6e4 * 3)
    assert body == pytest.approx(printed)


@given(theta=THETAS, p=st.floats(0.01, 0.99))
def test_theorem_5_4(theta, p):
    found = th.discriminative_uniform_rate(p, theta, **SETTING)
    tail = th.discriminative_rate("tail", theta, **SETTING).value
    body = th.discriminative_rate("body", theta, **SETTING).value
    assert found.value == pytest.approx(p * tail + (1 - p) * body)
    assert bool(found.warnings) == (not 0.05 <= p <= 0.1)


@given(factor=st.floats(1.5, 100))
def test_rates_fall_with_n_and_epsilon_and_rise_with_d_and_theta(factor):
    base = th.heavy_tailed_dpsgd_rate(1.5, **SETTING).value
    for name, falls in (("n", True), ("epsilon", True), ("d", False)):
        moved = th.heavy_tailed_dpsgd_rate(1.5, **{**SETTING, name: SETTING[name] * factor}).value
        assert (moved < base) == falls
    assert th.heavy_tailed_dpsgd_rate(1.5 + factor / 50, **SETTING).value > base


def test_short_runs_are_warned_about_and_lighter_tails_refused():
    assert th.heavy_tailed_dpsgd_rate(1.0, **{**SETTING, "steps": 5.0}).warnings
    assert not th.heavy_tailed_dpsgd_rate(1.0, **SETTING).warnings
    with pytest.raises(ConfigurationError, match=r"theta = 0\.5"):
        th.heavy_tailed_dpsgd_rate(0.4, **SETTING)
    with pytest.raises(ConfigurationError, match="T must be at least 1"):
        th.heavy_tailed_dpsgd_rate(1.0, **{**SETTING, "steps": 0.5})
    with pytest.raises(ConfigurationError, match="tail, body"):
        th.discriminative_rate("both", 1.0, **SETTING)


def test_theorem_4_1_prints_t_without_the_root():
    rooted, printed = (th.dc_dpsgd_steps(1e6, 2.0, 10, 1e-5, as_printed=p) for p in (False, True))
    assert printed == pytest.approx(2e6 / (10 * math.log(1e5)))
    assert rooted == pytest.approx(2e6 / math.sqrt(10 * math.log(1e5)))


def test_theorem_5_1():
    found = th.split_noise_multiplier(2.0, sampling_rate=0.01, steps=400, delta=1e-5, m2=3.0)
    assert found**2 == pytest.approx(3.0 * 400 * 0.01**2 * math.log(1e5) / 2.0**2)


def test_theorem_5_2_as_printed():
    found = th.subspace_skewing(
        200, d=1e4, batch_size=128, failure_matrix=0.05, failure_noise=0.02, m2=2.0
    )
    printed = 4 * math.log(2e4 / 0.05) / 200 + 2 * math.sqrt(128) * math.log(50) ** 0.5 / 1e4**0.5
    assert found.value == pytest.approx(printed)
    assert any("false" in warning for warning in found.warnings)


def test_theorem_5_2_as_its_proof_gives_it():
    """Traces along random directions obey it; the printed step (49) fails for two vectors."""
    generator = np.random.default_rng(0)
    d, k, noise = 20, 400, 0.05
    found = th.subspace_skewing_corrected(
        k, d=d, noise=noise, failure_matrix=0.05, failure_noise=0.05
    )
    printed = 2 * math.sqrt(math.log(2 * d / 0.05) / k) + noise * math.sqrt(2 * math.log(2 / 0.05))
    assert found.value == pytest.approx(printed)
    gaps = []
    for _ in range(200):
        v = generator.standard_normal((k, d))
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        g = generator.standard_normal(d)
        g /= np.linalg.norm(g)
        trace = np.mean((v @ g) ** 2) + noise * generator.standard_normal()
        gaps.append(abs(trace - 1 / d))
    assert np.mean(np.array(gaps) > found.value) <= 0.1
    a, b = np.array([1.0, 0.0]), np.array([0.9, 0.0])
    assert abs(a @ a - b @ b) > (a - b) @ (a - b)


def test_a_skewing_above_one_says_nothing():
    found = th.subspace_skewing_corrected(
        2, d=1e4, noise=1.0, failure_matrix=0.05, failure_noise=0.05
    )
    assert any("says nothing" in warning for warning in found.warnings)


def test_theorem_b_1_cases():
    steps, failure, scale = math.e**4, 0.05, 2.0  # log sqrt T = 2
    low = th.dpsgd_threshold_by_noise(0.5, scale, steps=steps, failure=failure, noise_level=9.0)
    assert low.value == pytest.approx(
        max(4 * 2 * 2**0.5, 19 * 2 * math.log(1 / failure) ** 0.5 / 12)
    )
    assert "K <= sigma-hat" in low.source
    high = th.dpsgd_threshold_by_noise(0.5, scale, steps=steps, failure=failure, noise_level=1.0)
    assert high.value == pytest.approx(39 * 2 * math.log(2 / failure) ** 0.5)
    heavy = th.dpsgd_threshold_by_noise(1.5, scale, steps=steps, failure=failure, noise_level=1.0)
    assert heavy.value == pytest.approx(20 * 2 * math.log(2 / failure) ** 1.5)
    spread = math.sqrt(500 * 10 * math.log(1e5)) * 128 / (6e4 * 3)
    level = th.dpsgd_noise_level(2.0, n=6e4, d=10, epsilon=3, delta=1e-5, steps=500, batch_size=128)
    assert level == pytest.approx(2 * spread)


def test_the_appendix_agrees_with_the_older_function_where_noise_is_low():
    for theta in (0.5, 1.0, 2.0):
        older = th.heavy_tailed_dpsgd_threshold(theta, 1.0, 500, 0.05, appendix=True)
        found = th.dpsgd_threshold_by_noise(
            theta, 1.0, steps=500, failure=0.05, noise_level=0.5
        ).value
        assert found == pytest.approx(older)
        pair = th.dc_dpsgd_thresholds(theta, 1.0, 500, 0.05, appendix=True)
        tail, body = th.discriminative_thresholds_by_noise(
            theta, 1.0, steps=500, failure=0.05, noise_level=0.5
        )
        assert (tail.value, body.value) == pytest.approx(tuple(pair))


@given(theta=st.sampled_from([0.5, 0.8, 1.0, 1.5, 3.0]), scale=st.floats(0.1, 10))
def test_theorem_e_1_cases(theta, scale):
    steps, failure = 500.0, 0.05
    a = th.freedman_constant(theta)
    log_t = math.log(math.sqrt(steps))
    for noise in (scale / 2, scale * 2):
        tail, body = th.discriminative_thresholds_by_noise(
            theta, scale, steps=steps, failure=failure, noise_level=noise
        )
        if scale <= noise:
            light = 16 * a * scale * math.log(1 / failure) ** 0.5 / 12
        else:
            light = 33 * math.sqrt(2 * a) * scale * math.log(2 / failure) ** 0.5
        assert body.value == pytest.approx(max(2 * math.sqrt(2 * a) * scale * log_t**0.5, light))
        if theta == 0.5:
            assert tail.value == pytest.approx(max(4 * scale * log_t**0.5, light))
        else:
            heavy = max(
                4**theta * 2 * scale * log_t**theta, 17 * scale * math.log(2 / failure) ** theta
            )
            assert tail.value == pytest.approx(heavy)
        above = any("c2 above c1" in warning for warning in body.warnings)
        assert above == (body.value > tail.value)


def test_what_the_proof_of_the_noisy_case_uses_is_named():
    _, body = th.discriminative_thresholds_by_noise(
        0.5, 1.0, steps=500, failure=0.05, noise_level=10.0
    )
    assert any("27 sqrt(e) sigma-hat" in warning for warning in body.warnings)


def test_table_1():
    table = th.dc_dpsgd_table_1(1.5, **SETTING, tail_fraction=0.2, public_dimension=7)
    n, d, epsilon, steps, failure = SETTING.values()
    log, sure, theta, root = math.log(steps / failure), math.log(1 / failure), 1.5, steps**0.5
    hat = log**0.5
    flat = d**0.25 * log**0.25 * hat * math.log(root) ** 3 / math.sqrt(n * epsilon)
    body = d**0.25 * log**0.25 * math.log(root) / math.sqrt(n * epsilon)
    printed = {
        "Yang et al. 2022, DPSGD": (d * log) ** 0.25 / (n * epsilon) ** 0.5,
        "Bu et al. 2024, DPSGD": d**0.5 / (n * epsilon),
        "Bu et al. 2024, SGD": d / steps ** (1 / 3),
        "Zhou et al. 2021, DPSGD": 7 / (n * epsilon),
        "Madden et al. 2020, SGD": math.log(steps) ** 0.5 * sure**theta / root + hat * sure / root,
        "Li & Liu 2022, SGD": sure ** (2 * theta) * math.log(steps) / root + hat * sure / root,
        "Li & Liu 2022, clipped SGD": (
            log**theta * math.log(steps) / root + math.log(steps) ** (2 * theta + 1) * log / root
        ),
        "heavy-tailed DPSGD": flat,
        "DC-DPSGD": 0.2 * flat + 0.8 * body,
    }
    assert {name: rate.value for name, rate in table.items()} == pytest.approx(printed)
    theorem = th.heavy_tailed_dpsgd_rate(1.5, **SETTING).value
    assert theorem == pytest.approx(flat * log)  # the factor that the table leaves out
