"""Paper 4: errors, risks, complexities and Table 1 as transcribed; (6) by simulation as well."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from winsor_papers import theory as th

from winsor.core.contract import ConfigurationError

SETTING = {"n": 1e5, "d": 10.0, "epsilon": 1.0, "delta": 1e-5, "confidence": 0.05}
PROBLEM = th.AclipProblem(
    smoothness=2.0, radius=3.0, deviation=0.5, n=1e6, d=50.0, epsilon=1.0, delta=1e-6, beta=0.1
)


def test_equation_6_holds_for_a_heavy_tail():
    """Clipped means of rows with little more than two moments: mean distance from their mean."""
    generator = np.random.default_rng(0)
    m, clip, d = 25, 2.0, 3
    rows = generator.standard_t(2.2, size=(4000, m, d)) / math.sqrt(11)
    rows[..., 0] += 0.9
    sigma = math.sqrt(d * 2.2 / 0.2 / 11)
    means = rows.mean(1)
    means *= np.minimum(1, clip / np.linalg.norm(means, axis=1, keepdims=True))
    measured = np.linalg.norm(means - means.mean(0), axis=1).mean()
    found = th.aclip_spread(m, sigma, mean_norm=0.9, clip=clip)
    assert found.value == pytest.approx(math.sqrt(18) * sigma / 5)
    assert not found.warnings
    assert measured <= found.value
    bias = np.linalg.norm(means.mean(0) - np.array([0.9, 0, 0]))
    assert bias <= th.aclip_bias(clip, m, sigma) + 0.02
    assert th.aclip_spread(m, sigma, mean_norm=1.5, clip=clip).warnings


@given(clip=st.floats(0.1, 10), steps=st.integers(1, 500), beta=st.floats(0.001, 0.5))
def test_equation_8(clip, steps, beta):
    sigma, noise, d = 0.3, 0.02, 7.0
    log = math.log(4 / beta)
    batch = th.aclip_batch_size(clip, sigma, steps=steps, confidence=beta)
    assert batch == pytest.approx(max(1.0, 162 * steps**2 * sigma**2 / (clip**2 * log**2)))
    k = max(1, steps // 2)
    found = th.aclip_accumulated_error(
        clip,
        steps=steps,
        rounds=k,
        noise=noise,
        d=d,
        deviation=sigma,
        batch_size=batch,
        confidence=beta,
    )
    inside = 4 * log + log / 3 + 2 * log**2 / (81 * steps)
    inside += k * noise * math.sqrt(16 * d * math.log(4 * k / beta)) / clip
    assert found.value == pytest.approx(clip * inside)
    assert not found.warnings
    std = th.aclip_noise(clip, n=1e4, epsilon=2.0, delta=1e-5, steps=steps, batch_size=50)
    assert std == pytest.approx(clip * 50 * math.sqrt(steps * math.log(1e5)) / 2e4)


def test_theorem_1_warns_about_small_batches_and_refuses_late_rounds():
    setting = {"noise": 0.1, "d": 5, "deviation": 1.0, "confidence": 0.05}
    small = th.aclip_accumulated_error(1.0, steps=50, batch_size=2, **setting)
    assert any("Theorem 1" in warning for warning in small.warnings)
    with pytest.raises(ConfigurationError, match="rounds must lie"):
        th.aclip_accumulated_error(1.0, steps=50, rounds=60, batch_size=2, **setting)


@given(n=st.floats(1e3, 1e8), d=st.floats(1, 1e4), epsilon=st.floats(0.1, 10))
def test_equations_10_and_11(n, d, epsilon):
    setting = {**SETTING, "n": n, "d": d, "epsilon": epsilon}
    log = math.log((n * epsilon) ** 2 / (0.05 * d))
    base = (d * math.log(1e5)) ** (1 / 7) / (n * epsilon) ** (2 / 7)
    ball = th.aclip_convex_rate(**setting)
    free = th.aclip_convex_rate(**setting, constrained=False)
    assert (ball.value, free.value) == pytest.approx((base * math.sqrt(log), base * log))
    assert any("Assumption 2" in assumed for assumed in ball.assumed)
    assert not any("Assumption 2" in assumed for assumed in free.assumed)


@given(factor=st.floats(1.5, 100))
def test_risks_fall_with_n_and_epsilon_and_rise_with_d(factor):
    strong = {"smoothness": 2.0, "strong_convexity": 0.5}
    for rate in (
        lambda **s: th.aclip_convex_rate(**s).value,
        lambda **s: th.aclip_convex_rate(**s, constrained=False).value,
        lambda **s: th.aclip_strongly_convex_rate(**s, **strong).value,
        lambda **s: th.aclip_holder_rate(0.5, **s, holder_constant=1.0, accuracy=0.5).value,
    ):
        base = rate(**SETTING)
        assert rate(**{**SETTING, "n": 1e5 * factor}) < base
        assert rate(**{**SETTING, "epsilon": factor}) < base
        assert rate(**{**SETTING, "d": 10 * factor}) > base


def test_too_few_rows_are_warned_about_or_refused():
    few = th.aclip_convex_rate(**{**SETTING, "n": 100, "d": 1e5, "epsilon": 1.0})
    assert any("below sqrt(d)" in warning for warning in few.warnings)
    with pytest.raises(ConfigurationError, match="More rows"):
        th.aclip_convex_rate(**{**SETTING, "n": 10, "d": 1e5})


def test_theorem_3_with_constants():
    found = th.aclip_constrained(PROBLEM, steps=40)
    bound = th.aclip_constrained_risk(PROBLEM, steps=40, batch_size=found.batch_size)
    log = math.log(40)
    root = math.sqrt(16 * 50 * 40 * math.log(1e6) * math.log(4 * 40 / 0.1))
    printed = 28 * 2 * 9 * log / 40 + 4 * 2 * 9 * found.batch_size * root / 1e6
    assert bound.value == pytest.approx(printed)
    assert not bound.warnings
    small = th.aclip_constrained_risk(PROBLEM, steps=40, batch_size=1.0)
    assert any("Theorem 3" in warning for warning in small.warnings)


def test_theorem_4_with_constants():
    steps = 30
    found = th.aclip_unconstrained(PROBLEM, steps)
    root_d = (found.clip - 4 * 2 * 3) / 2  # lambda = 4LR + 2 sqrt(D)
    gamma = 1 / (24 * 2 * math.log(4 * steps / 0.1))
    true = th.aclip_unconstrained_risk(PROBLEM, steps=steps).value
    assert true == pytest.approx(found.clip**2 / (2 * gamma * 4 * steps))
    printed = th.aclip_unconstrained_risk(PROBLEM, steps=steps, as_printed=True)
    assert printed.value == pytest.approx((16 * 36 + 4 * root_d**2) / (2 * gamma * 4 * steps))
    assert printed.value < true <= 2 * printed.value


def test_equation_12():
    found = th.aclip_strongly_convex_rate(**SETTING, smoothness=3.0, strong_convexity=0.5)
    logs = math.sqrt(math.log(1e5)) * math.log(6 / 0.05) * math.log(6 / 1e-5)
    assert found.value == pytest.approx(10**0.5 * 9 * logs / (0.125 * 1e5))
    with pytest.raises(ConfigurationError, match="at most L"):
        th.aclip_strongly_convex_rate(**SETTING, smoothness=0.1, strong_convexity=0.5)


def test_theorem_6_first_display():
    plan = th.aclip_restarts(PROBLEM, strong_convexity=0.5, runs=6)
    found = th.aclip_restart_risk(
        PROBLEM,
        runs=6,
        steps=plan.steps,
        gap=4.0,
        epsilon_per_run=plan.epsilon_per_run,
        delta_per_run=plan.delta_per_run,
    )
    n0, eps, delta = plan.steps, plan.epsilon_per_run, plan.delta_per_run
    root = math.sqrt(50 * math.log(4 * n0**2 / 0.1) * math.log(1 / delta))
    noise = n0**2.5 * 0.25 * root / (1e6 * eps * 2 * math.log(4 * n0 / 0.1) ** 2)
    assert found.value == pytest.approx(4.0 / 2**6 + noise)


@pytest.mark.parametrize("nu", [0.0, 0.3, 1.0])
def test_equation_14(nu):
    m, alpha = 1.7, 0.4
    found = th.aclip_holder_rate(nu, **SETTING, holder_constant=m, accuracy=alpha)
    noise, size = 10 * math.log(1e5), 1e5
    terms = [
        m ** (2 / (1 + nu)) * noise ** (1 / 7) / (alpha ** ((1 - nu) / (1 + nu)) * size ** (2 / 7)),
        m * noise ** (1 / 7) / size ** (2 / 7),
        m ** (1 / (1 + nu)) * alpha ** (nu / (1 + nu)) * noise ** (1 / 14) / size ** (1 / 7),
        noise ** (2 / 7) * math.sqrt(math.log(size**2 / 0.5)) / (size ** (4 / 7) * m),
    ]
    assert list(found.terms.values()) == pytest.approx(terms)
    assert found.value == max(found.terms.values())


@pytest.mark.parametrize("nu", [0.0, 0.5, 1.0])
def test_theorem_7_with_constants(nu):
    """49 R^2/(gamma N) is the largest of the four terms that end the proof."""
    steps, alpha, c = 200, 0.1, 7.0
    problem = PROBLEM._replace(deviation=60.0)
    m, r, sigma, n, d, eps, delta, beta = problem
    log = math.log(8 / beta)
    root = math.sqrt(d * math.log(8 * steps / beta) * math.log(1 / delta))
    last = 108 * c ** (2 - nu) * r ** (1 - nu) * steps**1.5 * sigma**2 * root / (n * m * eps * log)
    terms = [
        8 * c**2 * m ** (2 / (1 + nu)) * r**2 / (alpha ** ((1 - nu) / (1 + nu)) * steps),
        2**0.5 * c**2 * m ** (1 / (1 + nu)) * r * alpha ** (nu / (1 + nu)) / steps**0.5,
        4 * c ** (2 + nu) * m * r ** (1 + nu) * log / steps,
        last,
    ]
    found = th.aclip_holder_risk(problem, nu, accuracy=alpha, steps=steps)
    assert found.value == pytest.approx(max(terms))


@given(n=st.floats(1e2, 1e9), d=st.floats(1, 1e6))
def test_complexities(n, d):
    def order(theorem, **more):
        return th.aclip_complexity(theorem, n=n, d=d, **more).value

    assert order(3) == pytest.approx(max(n ** (2 / 7) * d ** (6 / 7), n ** (6 / 7) * d ** (4 / 7)))
    assert order(4) == order(3)
    assert order(6, condition_number=5) == pytest.approx(max(25 * d, n * d**0.5))
    assert order(7) == pytest.approx(max(n ** (2 / 7) * d ** (6 / 7), n ** (4 / 7) * d ** (5 / 7)))
    with pytest.raises(ConfigurationError, match="3, 4, 6 or 7"):
        order(5)


def test_table_1():
    n, d, epsilon, beta = 1e6, 10.0, 0.5, 0.05
    log = math.log(n / (beta * d**2))
    table = th.aclip_table_1(n=n, d=d, epsilon=epsilon, confidence=beta)
    printed = {
        "Wang et al. 2020, constrained": (
            d ** (2 / 3) * log**0.5 / (n * epsilon**2) ** (1 / 3), n ** (4 / 3) * d ** (1 / 3)
        ),
        "Kamath et al. 2022, constrained": (
            d**0.25 * math.log(d * n / beta) / (n * epsilon) ** 0.5, n**2 * d**-1.5
        ),
        "AClipped-dpSGD, constrained": (
            d ** (1 / 7) * log**0.5 / (n * epsilon) ** (2 / 7), n ** (6 / 7) * d ** (4 / 7)
        ),
        "Das et al. 2023, unconstrained": (
            d ** (1 / 6) / (beta**0.5 * (n * epsilon) ** (1 / 3)), n**2
        ),
        "AClipped-dpSGD, unconstrained": (
            d ** (1 / 7) * log / (n * epsilon) ** (2 / 7), n ** (6 / 7) * d ** (4 / 7)
        ),
    }  # fmt: skip
    assert set(table) == set(printed)
    for name, (risk, work) in table.items():
        assert (risk.value, work.value) == pytest.approx(printed[name])
    with pytest.raises(ConfigurationError, match="beta d"):
        th.aclip_table_1(n=100, d=1000, epsilon=1, confidence=0.05)


def test_the_losses_of_section_5():
    for residual in (-2.0, 0.0, 0.7):
        assert th.section_5_ridge_loss(residual) == residual**2
        assert th.section_5_ridge_loss(residual, as_printed=False) == residual**2 / 2
    for score in (-3.0, 0.0, 2.0):
        for label in (-1, 1):
            printed = math.log(1 + math.exp(1 + label * score))
            meant = math.log(1 + math.exp(-label * score))
            assert th.section_5_logistic_loss(score, label) == pytest.approx(printed)
            assert th.section_5_logistic_loss(score, label, as_printed=False) == pytest.approx(
                meant
            )
        assert th.section_5_label(score) == 2 * np.sign(1 / math.exp(score) - 0.5) - 1
    assert th.section_5_logistic_loss(1000.0, 1) == pytest.approx(1001.0)
    with pytest.raises(ConfigurationError, match="-1 or 1"):
        th.section_5_logistic_loss(1.0, 0)
