"""Paper 5: utility bounds, amplification orders, Lemma D.2 by quadrature, the worked examples."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate
from winsor_papers import theory as th

from winsor.core.contract import ConfigurationError

BUDGET = {"n": 1e5, "d": 100.0, "epsilon": 2.0, "delta": 1e-5}


@given(steps=st.integers(1, 10**6), g=st.floats(1e-3, 10), noise=st.floats(0, 1e6))
def test_theorem_3_1(steps, g, noise):
    n, d, q, lip, beta, w, s = 1e4, 10.0, 0.1, 2.0, 3.0, 1.5, 0.04
    found = th.modelmix_convex_risk(
        steps=steps, n=n, d=d, sampling_rate=q, lipschitz=lip, smoothness=beta, distance=w,
        step_constant=g, noise_moment=noise, squared_widths=s,
    )  # fmt: skip
    root = math.sqrt(steps)
    printed = (3 * w**2 + d * s / 12) / (2 * g * root)
    printed += g * (lip**2 / q**2 + noise / (n**2 * q**2)) / root
    printed += beta * (
        12 * w**2 / (8 * steps)
        + 2 * g * w * (lip + math.sqrt(noise) / n) / (q * steps**1.5)
        + 11 * g**2 * (lip**2 + noise / n**2) / (8 * steps * q**2)
    )
    assert found.value == pytest.approx(printed)
    assert not found.is_order


def test_equation_23():
    found = th.clipped_dpsgd_rate(5.0, **BUDGET, risk_range=3.0, smoothness=2.0, noise_constant=4.0)
    printed = (4 / 2 + 5 / 2) * 5 * math.sqrt(3 * 2 * 100 * math.log(1e5)) / 2e5
    assert found.value == pytest.approx(printed)


@given(c=st.floats(0.1, 100), tau=st.floats(0, 1e-3), gap=st.floats(0, 5))
def test_equation_13(c, tau, gap):
    q, rf, beta, v, steps = 0.02, 3.0, 2.0, 4.0, 1000
    found = th.modelmix_rate(
        c, **BUDGET, sampling_rate=q, squared_widths=steps * tau**2, start_gap=gap, risk_range=rf,
        smoothness=beta, noise_constant=v,
    )  # fmt: skip
    log, size, d = math.log(1e5), 2e5, 100.0
    printed = (v / 2 + 5 / 2) * c * math.sqrt(rf * 101 / 12 * beta * d * log) / size
    printed += 28 * c * beta * d * log * gap / (12 * q * size**2)
    last = c * d * log * math.sqrt(101 / 12) * beta**1.5 / (q * size * math.sqrt(rf))
    printed += last * (steps * d * tau**2 / 12 + 21 * gap**2 / 24)
    assert found.value == pytest.approx(printed)


def test_a_threshold_below_the_sampling_noise_is_warned_about():
    needed = th.sampling_noise_threshold(1.0, n=1e5, epsilon=2.0, d=100.0, delta=1e-5)
    for rate in (
        lambda c: th.clipped_dpsgd_rate(c, **BUDGET, kappa=1.0),
        lambda c: th.modelmix_rate(c, **BUDGET, sampling_rate=0.02, kappa=1.0),
    ):
        assert any("Example 3.1" in warning for warning in rate(0.9 * needed).warnings)
        assert not rate(needed).warnings


@given(factor=st.floats(1.1, 50))
def test_bounds_fall_with_n_and_epsilon_and_rise_with_d_c_and_widths(factor):
    def bound(**moved):
        setting = {**BUDGET, "c": 5.0, "squared_widths": 1e-6, **moved}
        return th.modelmix_rate(setting.pop("c"), **setting, sampling_rate=0.02).value

    base = bound()
    assert bound(n=1e5 * factor) < base and bound(epsilon=2 * factor) < base
    assert bound(d=100 * factor) > base and bound(c=5 * factor) > base
    assert bound(squared_widths=1e-6 * factor) > base


def test_example_3_1():
    at_optimum = th.clipping_example(20.0)
    assert at_optimum.gradient == pytest.approx(0.0)
    assert at_optimum.clipped == pytest.approx(1 / 3)
    assert at_optimum.deviation == pytest.approx(49.7, abs=0.05)
    assert th.clipping_example(0.0) == pytest.approx((-20.0, 1 / 3, at_optimum.deviation))
    assert th.clipping_example(-10.0).clipped == pytest.approx(0.0)  # the median
    assert th.clipping_example(20.0, threshold=100.0).clipped == pytest.approx(0.0)


def test_the_straw_man():
    """(7) and (8) coordinate by coordinate, with the draws given."""
    generator = np.random.default_rng(0)
    d, eta = 5, 0.3
    w1, w2 = generator.standard_normal((2, d))
    a, b = generator.uniform(size=(2, d))
    noise, other = generator.standard_normal((2, d))
    matrix = generator.standard_normal((d, d))
    one, two = th.straw_man_round(
        w1, w2, lambda w: matrix @ w, step_size=eta, shares=(a, b), noises=(noise, other)
    )
    for j in range(d):
        expected = a[j] * w1[j] + (1 - a[j]) * w2[j] - eta * ((matrix @ w1)[j] + noise[j])
        assert one[j] == pytest.approx(expected)
        expected = b[j] * one[j] + (1 - b[j]) * w2[j] - eta * ((matrix @ w2)[j] + other[j])
        assert two[j] == pytest.approx(expected)
    with pytest.raises(ConfigurationError, match=r"\[0, 1\]"):
        th.straw_man_round(
            w1, w2, lambda w: w, step_size=eta, shares=(a + 1, b), noises=(noise, other)
        )


def test_equation_14():
    eta, steps, tau, c, s, n, slack = 0.1, 100.0, 20.0, 5.0, 0.05, 100.0, 1e-6
    setting = {
        "step_size": eta, "steps": steps, "width": tau, "threshold": c, "noise": s, "n": n,
        "slack": slack,
    }  # fmt: skip
    spread = c**4 / (n**4 * s**3) + c**2 / (n**2 * s) + s
    second = math.sqrt(eta * steps * math.log(1 / slack) / tau * spread)
    printed = th.gaussian_mixing_order(**setting, lipschitz=7.0)
    assert printed.epsilon.value == pytest.approx(eta * steps * (c + s) / (tau * n) + second)
    assert printed.delta.value == pytest.approx(steps * (7.0 / n + s) / tau + slack)
    meant = th.gaussian_mixing_order(**setting, as_printed=False)
    drift = eta * steps * (c / n + s) / tau
    assert meant.epsilon.value == pytest.approx(drift + second)
    assert meant.delta.value == pytest.approx(drift + slack)
    for bound in (*printed, *meant):
        assert bound.is_order
        assert any("no privacy statement" in warning for warning in bound.warnings)


def test_equation_15():
    found = th.laplace_mixing_order(0.3, step_size=0.1, steps=200, width=4.0, delta=1e-5)
    printed = 0.1 * 200 * 0.3 * (math.exp(0.3) - 1) / 4
    printed += 0.3 * math.sqrt(0.1 * 200 * math.log(1e5) / 4)
    assert found.value == pytest.approx(printed)
    narrow = th.laplace_mixing_order(0.3, step_size=0.1, steps=200, width=0.05, delta=1e-5)
    assert any("amplifies nothing" in warning for warning in narrow.warnings)


def density(o: float, width: float, rate: float) -> float:
    """Law of U[0, w] plus Laplace noise, the three cases of D.2."""
    if o <= 0:
        return math.exp(rate * o) * -math.expm1(-rate * width) / (2 * width)
    if o >= width:
        return density(width - o, width, rate)
    return (2 - math.exp(-rate * o) - math.exp(-rate * (width - o))) / (2 * width)


@pytest.mark.parametrize(
    ("width", "c", "rate"), [(20.0, 1.0, 1.0), (200.0, 0.5, 1.0), (50, 2.0, 0.5), (500, 1.0, 3.0)]
)
def test_lemma_d_2_holds_by_quadrature(width, c, rate):
    found = th.laplace_mixing_moments(width, threshold=c, rate=rate)

    def moment(power: int) -> float:
        def integrand(o: float) -> float:
            here, shifted = density(o, width, rate), density(o - c, width, rate)
            return here * math.log(here / shifted) ** power

        edges = [-40 / rate, 0, c, width / 2, width, width + c, width + c + 40 / rate]
        pieces = itertools.pairwise(edges)
        return sum(integrate.quad(integrand, low, high, limit=200)[0] for low, high in pieces)

    mean = moment(1)
    assert 0 < mean <= found.mean.value
    assert moment(2) - mean**2 <= found.variance.value
    a = (1 - math.exp(-rate * width)) / (width * rate)
    b = (2 * math.log(width) / rate + c) / width
    e0 = rate * c
    h = (math.exp(e0) - 1) / (2 * (width - 1))
    printed = e0 * (math.exp(e0) - 1) * (a + b)
    printed += h * (math.exp(e0 / (2 * (width - 1))) - 1) * (1 - a)
    assert found.mean.value == pytest.approx(printed)
    assert found.variance.value == pytest.approx(e0**2 * (a + b) + h**2 * (1 - a))


def test_lemma_d_2_refuses_narrow_mixing():
    with pytest.raises(ConfigurationError, match="Lemma D.2"):
        th.laplace_mixing_moments(5.0, threshold=3.0, rate=1.0)


@given(
    order=st.integers(2, 12), q=st.floats(0.001, 0.5), steps=st.integers(1, 1000),
    growth=st.floats(0, 0.5),
)  # fmt: skip
def test_corollary_4_1(order, q, steps, growth):
    logs = [growth * k * (k - 1) / 2 for k in range(order + 1)]
    total = sum(
        math.comb(order, k) * (1 - q) ** (order - k) * q**k * math.exp(logs[k])
        for k in range(order + 1)
    )
    setting = {"order": order, "sampling_rate": q, "steps": steps, "delta": 1e-5}
    meant = th.corollary_4_1_epsilon(logs, **setting)
    assert meant == pytest.approx((steps * math.log(total) + math.log(1e5)) / (order - 1))
    printed = th.corollary_4_1_epsilon(logs, **setting, as_printed=True)
    assert printed == pytest.approx((math.log(total) + math.log(1e5)) / (1 - order))
    assert printed < 0 < meant
    with pytest.raises(ConfigurationError, match="log_moments"):
        th.corollary_4_1_epsilon(logs[:-1], **setting)
