"""The tilted transform against plain convolution in exact order, and its one-sidedness."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from winsor.core.accounting.composition import ComposedStep, Composition, Tilted, WindowTooWide

weights = st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=12)


def make_step(values, lowest, infinite, count):
    probabilities = np.array(values) / sum(values) * (1 - infinite)
    return ComposedStep(lowest, probabilities, infinite, count)


def exact_delta(steps, interval, epsilon):
    """Direct convolution: every term is positive, so the tails keep their relative accuracy."""
    total, lowest, finite = np.ones(1), 0, 1.0
    for step in steps:
        for _ in range(step.count):
            total = np.convolve(total, step.probabilities)
            lowest += step.lowest
            finite *= 1 - step.infinite
    beyond = (lowest + np.arange(total.size)) * interval - epsilon
    return 1 - finite + float(total @ np.maximum(0.0, -np.expm1(-np.maximum(beyond, 0.0))))


@st.composite
def compositions(draw):
    interval = 2.0 ** draw(st.integers(-12, 0))
    steps = [
        make_step(
            draw(weights),
            draw(st.integers(-6, 2)),
            draw(st.sampled_from([0.0, 1e-12])),
            draw(st.integers(1, 20)),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    return steps, interval


@given(compositions(), st.floats(0.05, 0.999))
def test_delta_equals_direct_convolution(parts, place):
    steps, interval = parts
    composition = Composition(steps, interval)
    epsilon = composition.bottom * interval + place * interval * (
        composition.top - composition.bottom
    )
    tilt, log_bound = composition.tilt_for_epsilon(epsilon)
    tilted = Tilted(composition, tilt)
    exact = exact_delta(steps, interval, epsilon)
    assert exact <= composition.infinite + math.exp(log_bound) * (1 + 1e-9)  # Renyi
    if epsilon >= tilted.lowest_epsilon and exact > 1e-200:
        assert exact * (1 - 1e-9) <= tilted.delta(epsilon) <= exact * (1 + 1e-4) + 1e-300


@given(compositions(), st.floats(0.0, 1.0), st.floats(-12, 3.9))
def test_no_tilt_makes_delta_too_small(parts, place, log_tilt):
    """An unsuitable tilt once gave delta = 0 because every weight underflowed."""
    steps, interval = parts
    composition = Composition(steps, interval)
    tilted = Tilted(composition, math.exp(log_tilt) / interval)
    width = interval * (composition.top - composition.bottom)
    epsilon = max(tilted.lowest_epsilon, composition.bottom * interval + place * width)
    assert tilted.delta(epsilon) >= exact_delta(steps, interval, epsilon) * (1 - 1e-9)


def test_deltas_far_below_the_rounding_of_a_plain_transform():
    step = make_step([1, 4, 6, 4, 1], -2, 0.0, 400)  # 1600 fair coins
    composition = Composition([step], 0.01)
    epsilon = 5.0  # 25 standard deviations
    exact = exact_delta([step], 0.01, epsilon)
    assert 1e-200 < exact < 1e-140
    tilt, _ = composition.tilt_for_epsilon(epsilon)
    assert Tilted(composition, tilt).delta(epsilon) == pytest.approx(exact, rel=1e-6)


def test_moments_are_those_of_the_tilted_law():
    step = make_step([0.2, 0.5, 0.3], -1, 0.0, 10)
    composition = Composition([step], 0.5)
    assert composition.k(0.0) == pytest.approx(0, abs=1e-12)
    mean, spread = composition.moments(0.0)
    assert mean == pytest.approx(10 * 0.5 * 0.1)
    assert spread == pytest.approx(0.5 * math.sqrt(10 * (0.5 - 0.01)))
    slope = (composition.k(1 + 1e-5) - composition.k(1 - 1e-5)) / 2e-5
    assert composition.moments(1.0)[0] == pytest.approx(slope, rel=1e-6)


def test_a_window_that_would_fill_the_memory_is_refused():
    wide = make_step([1.0] * 50_000, -25_000, 0.0, 10**6)
    with pytest.raises(WindowTooWide):
        Tilted(Composition([wide], 1e-6), 0.001)


def test_below_the_window_there_is_no_answer():
    step = make_step([1, 4, 6, 4, 1], -2, 0.0, 10**5)
    tilted = Tilted(Composition([step], 0.01), 5.0)
    with pytest.raises(ValueError, match="at least"):
        tilted.delta(tilted.lowest_epsilon - 1)
