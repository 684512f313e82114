"""Paper 2: budgets, gradient errors and risks against transcriptions of the printed formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from winsor_papers import theory as th

from winsor.core.contract import ConfigurationError

MOMENTS = st.floats(2.0, 8.0)
ROWS = st.floats(1e3, 1e8)
DIMENSIONS = st.floats(1.0, 1e3)


# ------------------------------------------------------------------------------------- budgets


@given(epsilon=st.floats(1e-3, 3), delta=st.floats(1e-9, 0.1))
def test_lemma_1(epsilon, delta):
    rho = th.dp_to_zcdp(epsilon)
    assert rho == pytest.approx(epsilon**2 / 2)
    back = th.zcdp_to_dp(rho, delta)
    assert back == pytest.approx(
        (epsilon**2 / 2 + epsilon * math.sqrt(2 * math.log(1 / delta)), delta)
    )
    assert back.epsilon > epsilon  # the two directions are not inverse to one another
    assert th.compose_zcdp(rho, 7) == pytest.approx(7 * rho)
    many = th.advanced_composition(epsilon, delta / 100, 7, delta)
    first = math.sqrt(2 * 7 * math.log(1 / delta)) * epsilon
    assert many.epsilon == pytest.approx(first + 7 * epsilon * (math.exp(epsilon) - 1))
    assert many.delta == pytest.approx(7 * delta / 100 + delta)


@given(epsilon=st.floats(1e-3, 1), delta=st.floats(1e-9, 1e-2))
def test_the_budget_12_is_within_what_lemma_1_gives(epsilon, delta):
    rho = th.zcdp_budget(epsilon, delta)
    assert th.zcdp_to_dp(rho, delta).epsilon <= epsilon * (1 + 1e-12)
    exact = th.zcdp_budget_exact(epsilon, delta)
    assert th.zcdp_to_dp(exact, delta).epsilon == pytest.approx(epsilon)


@given(epsilon=st.floats(1e-3, 1), delta=st.floats(1e-9, 1e-2), steps=st.integers(1, 10_000))
def test_equation_27_composes_back_to_its_target(epsilon, delta, steps):
    each = th.per_step_budget(epsilon, delta, steps)
    assert each.epsilon == pytest.approx(epsilon / (2 * math.sqrt(2 * steps * math.log(2 / delta))))
    assert each.delta == pytest.approx(delta / (2 * steps))
    whole = th.advanced_composition(each.epsilon, each.delta, steps, delta / 2)
    assert whole.epsilon <= epsilon
    assert whole.delta == pytest.approx(delta)


# ---------------------------------------------------------------------------- gradients, descent


def test_equation_9():
    found = th.descent_risk(
        diameter=3, step_size=0.2, steps=50, smoothness=2, bias=0.1, second_moment=0.7
    )
    assert found.value == pytest.approx(9 / (2 * 0.2 * 50) + 3 * 0.1 + 0.2 * (4 * 9 + 0.7))
    assert not found.is_order
    odd = th.descent_risk(
        diameter=3, step_size=0.2, steps=50, smoothness=2, bias=1.0, second_moment=0.7
    )
    assert any("no estimator" in warning for warning in odd.warnings)


def test_equation_9_bounds_a_noisy_descent():
    """F(w) = |w|^2/2 on a ball of diameter 2, gradients with known bias and spread."""
    generator = np.random.default_rng(0)
    eta, steps, d = 0.05, 200, 3
    bias, spread = np.array([0.05, 0.0, 0.0]), 0.5
    risks = []
    for _ in range(50):
        w, total = np.array([1.0, 0.0, 0.0]), np.zeros(d)
        for _ in range(steps):
            total += w
            g = w + bias + spread * generator.standard_normal(d)
            w = w - eta * g
            w /= max(1.0, np.linalg.norm(w))
        risks.append(np.sum((total / steps) ** 2) / 2)
    bound = th.descent_risk(
        diameter=2,
        step_size=eta,
        steps=steps,
        smoothness=1,
        bias=0.05,
        second_moment=0.05**2 + d * spread**2,
    )
    assert np.mean(risks) <= bound.value


@given(p=MOMENTS, n=ROWS, d=DIMENSIONS, radius=st.floats(0.5, 1e3))
def test_equations_14_and_15(p, n, d, radius):
    bias = th.simple_gradient_bias(radius, p=p, moment=1, n=n, d=d)
    log = math.log(n)
    printed = (d * log / n) ** 0.5 + radius * d * log / n * log + d ** (p / 2) * radius ** (1 - p)
    assert th.simple_gradient_bias(
        radius, p=p, moment=1, n=n, d=d, as_printed=True
    ).value == pytest.approx(printed)
    assert bias.value == pytest.approx(printed - radius * d * log / n * (log - 1))
    found = th.simple_gradient_moment(radius, p=p, moment=1, n=n, d=d, rho=0.1, steps=20)
    squares = d * log / n + radius**2 * d**2 / n**2 * log**2 + d**p * radius ** (2 * (1 - p))
    assert found.value == pytest.approx(squares + radius**2 * 20 * d / (0.1 * n**2))
    # (15) without its noise is the square of the corrected (14), term by term
    for name in ("sampling", "tail", "clipping"):
        assert found.terms[name] == pytest.approx(bias.terms[name] ** 2)


@given(p=MOMENTS, moment=st.floats(0.01, 100))
def test_rescaling_gradients_rescales_bias_and_moment(p, moment):
    """g -> M g with R -> M R: B scales by M, G^2 by M^2."""
    sizes = {"p": p, "n": 1e5, "d": 10.0}
    unit = th.simple_gradient_bias(20.0, moment=1.0, **sizes).value
    assert th.simple_gradient_bias(20.0 * moment, moment=moment, **sizes).value == pytest.approx(
        moment * unit
    )
    more = {**sizes, "epsilon_step": 0.1, "delta_step": 1e-7}
    unit = th.iterative_gradient_moment(20.0, moment=1.0, **more).value
    scaled = th.iterative_gradient_moment(20.0 * moment, moment=moment, **more).value
    assert scaled == pytest.approx(moment**2 * unit)


def test_equation_29():
    n, d, radius, p, eps, delta = 1e5, 8.0, 30.0, 3.0, 0.05, 1e-8
    log = math.log(1 / delta)
    bracket = log + math.sqrt(log * math.log(d))
    rest = d / n + d**p * radius ** (2 * (1 - p))
    noise = radius**2 * d / (n**2 * eps**2)
    setting = {"p": p, "moment": 1, "n": n, "d": d, "epsilon_step": eps, "delta_step": delta}
    printed = th.iterative_gradient_moment(radius, **setting)
    assert printed.value == pytest.approx(rest + noise * bracket)
    squared = th.iterative_gradient_moment(radius, **setting, as_printed=False)
    assert squared.value == pytest.approx(rest + noise * bracket**2)
    bias = th.iterative_gradient_bias(radius, p=p, moment=1, n=n, d=d)
    assert bias.value == pytest.approx((d / n) ** 0.5 + d ** (p / 2) * radius ** (1 - p))


def test_equation_18():
    n, d, radius, p, eps, delta, beta = 1e6, 8.0, 30.0, 3.0, 0.1, 1e-6, 0.05
    found = th.iterative_mean_rate(
        radius, p=p, moment=1, n=n, d=d, epsilon=eps, delta=delta, confidence=beta
    )
    s, log = d + math.log(1 / beta), math.log(1 / delta)
    third = radius / (n * eps) * math.sqrt(s)
    third *= log + math.sqrt(log * math.log(math.log(1 / beta)))
    assert found.value == pytest.approx(math.sqrt(s / n) + d ** (p / 2) * radius ** (1 - p) + third)
    far = th.iterative_mean_rate(
        radius, p=p, moment=1, n=n, d=d, epsilon=50.0, delta=delta, confidence=beta
    )
    assert any("Theorem 6" in warning for warning in far.warnings)
    with pytest.raises(ConfigurationError, match="1/e"):
        th.iterative_mean_rate(
            radius, p=p, moment=1, n=n, d=d, epsilon=eps, delta=delta, confidence=0.5
        )


def test_equation_28():
    """Term by term, with epsilon_0 = e/(2 sqrt(2T ln(2/d))) and delta_0 = d/(2T) written out."""
    radius, p, n, d, epsilon, delta, steps, beta = 20.0, 3.0, 5e4, 4.0, 0.5, 1e-6, 50.0, 0.01
    found = th.iterative_gradient_rate(
        radius, p=p, moment=1, n=n, d=d, epsilon=epsilon, delta=delta, steps=steps, confidence=beta
    )
    e0 = epsilon / (2 * math.sqrt(2 * steps * math.log(2 / delta)))
    log = math.log(2 * steps / delta)
    spread = math.sqrt(d + math.log(1 / beta))
    bracket = log + math.sqrt(log * math.log(math.log(1 / beta)))
    assert found.terms["sampling"] == pytest.approx(spread / math.sqrt(n))
    assert found.terms["clipping"] == pytest.approx(d ** (p / 2) * radius ** (1 - p))
    assert found.terms["noise"] == pytest.approx(radius / (n * e0) * spread * bracket)
    assert found.source == "paper 2, (28)"


def test_equation_26_with_its_constant():
    n, d, radius, p, rho, beta, k, c0 = 1e6, 8.0, 30.0, 3.0, 0.2, 0.05, 2397, 2.0
    found = th.iterative_mean_bound(
        radius, p=p, moment=1, n=n, d=d, rho=rho, confidence=beta, constant=c0
    )
    assert k == math.ceil(800 * math.log(1 / beta)) == th.iterative_groups(beta)
    s = d + math.log(1 / beta)
    r_0 = c0 * (math.sqrt(s / n) + radius / n * math.sqrt(k / rho) * math.sqrt(s))
    bias = d ** (p / 2) * radius ** (1 - p) / (p - 1)
    assert found.value == pytest.approx(6 * r_0 + bias)
    assert not found.warnings
    few = th.iterative_mean_bound(
        radius, p=p, moment=1, n=n, d=d, rho=rho, confidence=beta, groups=10
    )
    assert any("Lemma 6" in warning for warning in few.warnings)


# ---------------------------------------------------------------------------------------- risks


@given(p=MOMENTS, n=ROWS, d=DIMENSIONS, epsilon=st.floats(1e-3, 1), delta=st.floats(1e-9, 0.1))
def test_theorem_1(p, n, d, epsilon, delta):
    found = th.minimax_risk(p, n=n, d=d, epsilon=epsilon, delta=delta)
    second = d**0.5 * (d**0.5 / (n * epsilon)) ** ((p - 1) / p) * math.log(1 / delta)
    assert found.value == pytest.approx((d / n) ** 0.5 + second)


@given(p=MOMENTS, n=ROWS, d=DIMENSIONS, epsilon=st.floats(1e-3, 1), delta=st.floats(1e-9, 0.1))
def test_equation_17(p, n, d, epsilon, delta):
    found = th.simple_clipping_rate(p, n=n, d=d, epsilon=epsilon, delta=delta)
    noise = d**0.5 / (n * epsilon) * math.log(1 / delta) ** 0.5
    printed = (d * math.log(n) / n) ** 0.5 + d**0.5 * noise ** (1 - 1 / p)
    printed += d ** (1.5 - 1 / p) / n ** (1 - 1 / p) * math.log(n)
    assert found.value == pytest.approx(printed)
    assert any("not minimax" in w for w in found.warnings) == (epsilon > 1 / math.sqrt(d))


@given(p=MOMENTS, n=ROWS, d=DIMENSIONS, epsilon=st.floats(1e-3, 1), delta=st.floats(1e-9, 0.1))
def test_theorem_7(p, n, d, epsilon, delta):
    found = th.iterative_updating_rate(p, n=n, d=d, epsilon=epsilon, delta=delta)
    second = d**0.5 * (d**0.5 / (n * epsilon)) ** (1 - 1 / p)
    assert found.value == pytest.approx(
        (d / n) ** 0.5 + second * math.log(1 / delta) * math.log(n * d)
    )
    lower = th.minimax_risk(p, n=n, d=d, epsilon=epsilon, delta=delta).value
    assert found.value >= lower  # n d >= e


RATES = (th.simple_clipping_rate, th.iterative_updating_rate, th.minimax_risk)


@pytest.mark.parametrize("rate", RATES)
@given(p=MOMENTS, factor=st.floats(1.5, 100))
def test_risks_fall_with_n_epsilon_and_moments(rate, p, factor):
    setting = {"n": 1e5, "d": 20.0, "epsilon": 0.01, "delta": 1e-6}
    base = rate(p, **setting).value
    assert rate(p, **{**setting, "n": 1e5 * factor}).value < base
    assert rate(p, **{**setting, "epsilon": min(1.0, 0.01 * factor)}).value < base
    assert rate(p + 1, **setting).value <= base  # sqrt(d)/(n epsilon) < 1 here


def test_epsilon_above_one_is_warned_about_and_few_moments_refused():
    setting = {"n": 1e5, "d": 20.0, "delta": 1e-6}
    for rate in RATES[:2]:
        assert any("above 1" in w for w in rate(2.0, epsilon=2.0, **setting).warnings)
        with pytest.raises(ConfigurationError, match="at least 2"):
            rate(1.5, epsilon=0.5, **setting)


def test_table_1():
    n, d, epsilon, p = 1e6, 10.0, 0.1, 3.0
    table = {
        name: rate.value for name, rate in th.sco_table_1(p, n=n, d=d, epsilon=epsilon).items()
    }
    optimal = (d / n) ** 0.5 + d**0.5 * (d**0.5 / (epsilon * n)) ** (2 / 3)
    second = min(
        d ** ((3 - q) / 2) / n**0.5 + d ** ((1 + q) / 2) / (epsilon**0.5 * n**0.5)
        for q in np.linspace(0.5, 2, 301)
    )
    assert table == pytest.approx(
        {
            "Wang et al. 2020": (d**3 / (epsilon**2 * n)) ** (1 / 3),
            "Kamath et al. 2022, first": d / n**0.5 + d**0.5 * (d**1.5 / (epsilon * n)) ** (2 / 3),
            "Kamath et al. 2022, second": second,
            "simple clipping": optimal + d ** (1.5 - 1 / 3) / n ** (2 / 3),
            "iterative updating": optimal,
            "lower bound": optimal,
        }
    )
