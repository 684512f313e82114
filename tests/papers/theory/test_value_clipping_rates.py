"""Paper 3: rates against transcriptions; Lemmas A.12 and A.13 against functions they speak of."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from winsor_papers import theory as th

from winsor.core.contract import ConfigurationError

SETTING = {
    "n": 1e4, "d": 10.0, "epsilon": 1.0, "delta": 1e-5, "batch_size": 100.0, "steps": 1e4,
    "failure": 0.05,
}  # fmt: skip


@given(
    n=st.floats(1e2, 1e7),
    d=st.floats(1, 1e4),
    epsilon=st.floats(0.01, 10),
    steps=st.floats(20, 1e6),
    failure=st.floats(1e-6, 0.5),
)
def test_proposition_4_4(n, d, epsilon, steps, failure):
    setting = {**SETTING, "n": n, "d": d, "epsilon": epsilon, "steps": steps, "failure": failure}
    found = th.no_clipping_rate(**setting)
    logs = math.log(1 / failure) ** 0.5 + math.log(steps * n) ** 0.5
    privacy = logs * (d * math.log(1e5)) ** 0.5 / (n * epsilon)
    assert found.value == pytest.approx(1 / steps + 1 / (100 * steps) ** 0.5 + privacy)
    assert found.is_order and not found.warnings


def test_proposition_4_4_warns_outside_its_range():
    assert any("T = 1" in w for w in th.no_clipping_rate(**{**SETTING, "steps": 1}).warnings)
    likely = th.no_clipping_rate(**{**SETTING, "failure": 0.7})
    assert any("(0.5, 1), read" in warning for warning in likely.warnings)
    loose = th.no_clipping_rate(**{**SETTING, "delta": 0.7})
    assert any("protects little" in warning for warning in loose.warnings)


@given(n=st.floats(1e3, 1e7), d=st.floats(1, 1e4), epsilon=st.floats(0.1, 10))
def test_theorem_4_5(n, d, epsilon):
    steps = (n * epsilon) ** 2 / d
    found = th.gradient_clipping_rate(n=n, d=d, epsilon=epsilon, batch_size=64)
    assert th.value_clipping_steps(n, epsilon, d) == pytest.approx(max(1.0, steps))
    steps = max(1.0, steps)
    privacy = d**0.5 / (n * epsilon)
    assert found.value == pytest.approx(1 / steps + 1 / (64 * steps) ** 0.5 + privacy)
    if not found.warnings:  # the choice of T makes the privacy term the whole order
        assert found.value <= 3 * privacy
    given_steps = th.gradient_clipping_rate(n=n, d=d, epsilon=epsilon, batch_size=64, steps=50)
    assert given_steps.terms["steps"] == pytest.approx(1 / 50)


@given(factor=st.floats(1.5, 100))
def test_rates_fall_with_rows_budget_and_steps(factor):
    base = th.no_clipping_rate(**SETTING).value
    for name in ("n", "epsilon", "batch_size"):
        moved = {**SETTING, name: SETTING[name] * factor}
        assert th.no_clipping_rate(**moved).value < base
    assert th.no_clipping_rate(**{**SETTING, "d": 10 * factor}).value > base


def test_table_1_and_remark_4_2():
    table = th.value_clipping_table_1(n=1e4, d=9, epsilon=2)
    assert len(table) == 4
    for rate in table.values():
        assert rate.value == pytest.approx(3 / 2e4)
        assert rate.assumed[0] == "convex f_i"
    assert th.full_batch_rate(n=1e4, d=9, epsilon=2).value == pytest.approx(3 / (100 * 2))


def test_lemma_a_12_holds_on_a_quadratic():
    """f(w) = |w|^2/2, gradient noise of known length, an iterate drawn at random."""
    generator = np.random.default_rng(1)
    eta, steps, d, spread = 0.1, 60, 4, 0.3
    losses, squares = [], []
    for _ in range(200):
        w = np.full(d, 0.5)
        path = [w]
        for _ in range(steps):
            w = w - eta * (w + spread * generator.standard_normal(d))
            path.append(w)
        chosen = path[generator.integers(steps + 1)]
        losses.append(chosen @ chosen / 2)
        squares.append(chosen @ chosen)
    noise = spread * math.sqrt(d)
    convex = th.sgd_risk(distance=1.0, step_size=eta, steps=steps, smoothness=1, noise=noise)
    assert convex.value == pytest.approx(1 / (61 * eta) + noise**2 * eta)
    assert np.mean(losses) <= convex.value
    smooth = th.sgd_risk(
        distance=1.0, step_size=eta, steps=steps, smoothness=2, noise=noise, gap=0.5
    )
    assert smooth.value == pytest.approx(1 / (61 * eta) + 2 * noise**2 * eta)
    assert np.mean(squares) <= smooth.value
    bold = th.sgd_risk(distance=1, step_size=2.0, steps=10, smoothness=1, noise=1)
    assert any("above 1/L" in warning for warning in bold.warnings)


@given(
    centres=st.lists(st.floats(-10, 10), min_size=1, max_size=6),
    floors=st.floats(-3, 3),
    w=st.floats(-30, 30),
)
def test_lemma_a_13_bounds_the_mean_of_quadratics(centres, floors, w):
    """f_i = (w - a_i)^2/2 + b: (2, 0)-WGC each, with f_i* = b; f* = variance/2 + b."""
    a = np.array(centres)
    minimum = float(a.var() / 2 + floors)
    first, second = th.mean_growth(2.0, 0.0, minimum=minimum, minima=[floors] * len(a))
    value = float(np.mean((w - a) ** 2) / 2 + floors)
    gradient = w - float(a.mean())
    assert gradient**2 <= first * (value - minimum) + second + 1e-6
    assert second == pytest.approx(2.0 * max(0.0, minimum - floors), abs=1e-9)


def test_lemma_a_13_refuses_an_impossible_minimum():
    with pytest.raises(ConfigurationError, match="at least the mean"):
        th.mean_growth(2.0, 0.0, minimum=0.0, minima=[1.0, 1.0])
    with pytest.raises(ConfigurationError, match="at least one"):
        th.mean_growth(2.0, 0.0, minimum=0.0, minima=[])
