"""The Laplace variant: worst allocation, dominance of the scalar, monotonicity, registry."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winsor.contrib.modelmix.moments import ORDERS, laplace_log_moments
from winsor.core.accounting import account, event_from_json, event_to_json
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.events.mixed import (
    MixedLaplaceDpEvent,
    log_moments,
    plain_log_moments,
    rdp,
    without_mixing,
)

ADD_REMOVE = Neighbouring.ADD_OR_REMOVE_ONE


def epsilon(event, steps=1000, relation=ADD_REMOVE):
    return account([(event, steps)], 1e-5, relation).epsilon


@given(
    width=st.sampled_from([0.3, 4.0, 30.0]),
    noise=st.sampled_from([0.3, 1.0, 3.0]),
    p=st.sampled_from([1, 3]),
    weights=st.lists(st.floats(0.01, 1), min_size=3, max_size=6),
)
def test_equal_coordinates_are_the_worst_allocation(width, noise, p, weights):
    v = np.array(weights) / sum(weights)
    for _ in range(30):  # an L1 budget of 1 with no coordinate above 1/p
        v = np.minimum(v / v.sum(), 1 / p)
    event = MixedLaplaceDpEvent(0.1, noise, width, p)
    spent = sum(laplace_log_moments(width / noise, float(s) / noise) for s in v)
    # 0.5 %: both sides are upper bounds with that much slack
    assert (spent <= log_moments(event) * 1.005).all()


def test_moments_without_mixing_in_closed_form():
    x = np.linspace(-40, 41, 810_001)
    for k, shift in [(1.5, 0.3), (2.0, 1.0), (4.0, 0.5)]:
        log_ratio = np.abs(x) - np.abs(x - shift)
        integral = np.sum(0.5 * np.exp(-np.abs(x) + k * log_ratio)) * (x[1] - x[0])
        exact = plain_log_moments(np.array([k]), shift)[0]
        assert exact == pytest.approx(math.log(integral), rel=1e-4)


def hockey_stick(shifts, e):
    """Of a Laplace vector, by enumerating cells of the losses of two coordinates."""
    axes = []
    for shift in shifts:
        inner = np.linspace(0, shift, 2001)
        middle = (inner[:-1] + inner[1:]) / 2
        mass = 0.5 * (np.exp(-inner[:-1]) - np.exp(-inner[1:]))
        loss = np.concatenate([[-shift], 2 * middle - shift, [shift]])
        axes.append((np.concatenate([[0.5], mass, [0.5 * math.exp(-shift)]]), loss))
    (m1, l1), (m2, l2) = axes
    joint = m1[:, None] * m2[None, :]
    loss = l1[:, None] + l2[None, :]  # log of shifted over unshifted
    return float(np.sum(joint * np.maximum(np.exp(loss) - math.exp(e), 0)))


@pytest.mark.parametrize("a,b", [(0.5, 0.5), (0.2, 1.5), (1.0, 2.0)])
def test_one_coordinate_dominates_two_with_the_same_budget(a, b):
    """The closed form in the module's docstring, and what it proves."""
    for e in (0.0, 0.1 * (a + b), b - a, b, 0.9 * (a + b)):
        scalar = -math.expm1((e - a - b) / 2)
        t = max(e - b, -a)
        closed = scalar - math.exp((e - a - b) / 2) * (a / 2 - (t + a) / 4)
        assert hockey_stick((a, b), e) == pytest.approx(closed, abs=2e-4)
        assert closed <= scalar


def test_never_above_the_plain_step_and_falling_with_width_and_p():
    plain = epsilon(without_mixing(MixedLaplaceDpEvent(0.02, 1.0, 0.0)))
    by_width = [epsilon(MixedLaplaceDpEvent(0.02, 1.0, w)) for w in (0.0, 0.5, 5.0, 5.5, 50.0)]
    by_p = [epsilon(MixedLaplaceDpEvent(0.02, 1.0, 5.0, p)) for p in (1, 1.1, 4, 25)]
    assert by_width[0] == plain
    for values in (by_width, by_p):
        assert all(x >= y for x, y in itertools.pairwise(values))
    assert by_width[-1] < plain / 4


def test_grows_with_rate_and_steps():
    by_rate = [epsilon(MixedLaplaceDpEvent(q, 1.0, 20.0), 100) for q in (0.0, 0.01, 0.1, 1.0)]
    by_steps = [epsilon(MixedLaplaceDpEvent(0.05, 1.0, 20.0), t) for t in (1, 10, 11, 1000)]
    for values in (by_rate, by_steps):
        assert all(x < y for x, y in itertools.pairwise(values))


@given(
    q=st.floats(1e-4, 1),
    noise=st.floats(0.2, 10),
    width=st.floats(0, 100),
    p=st.floats(1, 50),
)
@settings(max_examples=30)
def test_no_order_exceeds_pure_privacy(q, noise, width, p):
    event = MixedLaplaceDpEvent(q, noise, width, p)
    orders = np.array([1.1, 2.0, 30.0, 250.0, 5000.0])
    bound = rdp(event, ADD_REMOVE, orders)
    pure = math.log1p(q * math.expm1(1 / noise))
    assert (bound >= 0).all()
    assert (bound <= pure * (1 + 1e-9)).all()


@pytest.mark.parametrize("order", [1.1, 1.6, 2.0, 5.0])
def test_certified_divergence_is_above_the_sampled_one(order):
    q, noise, width = 0.1, 0.7, 6.0
    x = np.linspace(-width / 2 - 25, width / 2 + 25, 400_001)

    def law(t):
        t = np.abs(t)

        def tail(s):
            below = 1 - np.exp(np.minimum(s, 0) / noise) / 2
            return np.where(s >= 0, np.exp(-np.maximum(s, 0) / noise) / 2, below)

        return (tail(t - width / 2) - tail(t + width / 2)) / width

    f, g = law(x), law(x - 1)
    mixture = (1 - q) * f + q * g
    step = x[1] - x[0]
    forth = math.log(np.sum(mixture**order * f ** (1 - order)) * step) / (order - 1)
    back = math.log(np.sum(f**order * mixture ** (1 - order)) * step) / (order - 1)
    bound = rdp(MixedLaplaceDpEvent(q, noise, width), ADD_REMOVE, np.array([order]))[0]
    assert back <= forth <= bound * (1 + 1e-4)  # of the quadrature
    if order == math.floor(order):
        assert bound <= forth * 1.005


def test_replace_one_is_accounted_for_and_dearer():
    event = MixedLaplaceDpEvent(0.05, 1.0, 20.0)
    assert epsilon(event) < epsilon(event, relation=Neighbouring.REPLACE_ONE) < math.inf


def test_round_trip_through_json_and_own_type():
    event = MixedLaplaceDpEvent(0.02, 0.7, 1 / 3, 4)
    again = event_from_json(json.loads(json.dumps(event_to_json(event))))
    assert again == event
    assert type(again) is MixedLaplaceDpEvent


def test_fields_without_a_proof_are_refused():
    with pytest.raises(ConfigurationError, match="noise_multiplier must be positive"):
        MixedLaplaceDpEvent(0.1, 0.0, 1.0)


def test_all_tabulated_orders_are_bounded():
    assert np.isfinite(log_moments(MixedLaplaceDpEvent(0.1, 0.05, 10.0))).all()
    assert ORDERS.size == log_moments(MixedLaplaceDpEvent(0.1, 1.0, 10.0)).size
