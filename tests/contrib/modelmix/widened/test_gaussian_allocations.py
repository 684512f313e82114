"""No record, however it spreads its gradient, reaches more than the certified account."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from modelmix_allocations import allocation_epsilon, density, renyi

from winsor.contrib.modelmix.mixed_gaussian import MixedGaussianDpEvent, rdp
from winsor.core.accounting import account
from winsor.core.contract import Neighbouring

CHECKED_ORDERS = (1.05, 1.3, 1.75, 2.0, 2.6, 4.0, 7.0)


def allocation(rng, coordinates, p):
    """A random vector of norm at most 1 with no coordinate above 1/sqrt(p), as long as can be."""
    v = np.abs(rng.standard_normal(coordinates)) ** rng.uniform(0.2, 3)
    for _ in range(50):  # scale up, cut, again
        v = np.minimum(v / np.linalg.norm(v), 1 / math.sqrt(p))
    return v


@given(
    q=st.sampled_from([0.005, 0.03, 0.2]),
    noise=st.sampled_from([0.4, 0.8, 1.5]),
    width=st.sampled_from([0.5, 3.0, 15.0]),
    p=st.sampled_from([1, 2, 6]),
    extra=st.sampled_from([0, 3, 20]),
    steps=st.sampled_from([20, 150]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=20)
def test_certified_epsilon_is_above_every_allocation_tried(q, noise, width, p, extra, steps, seed):
    shifts = allocation(np.random.default_rng(seed), p + extra, p) / noise
    event = MixedGaussianDpEvent(q, noise, width, p)
    reached = allocation_epsilon(width / noise, [float(v) for v in shifts], q, steps, 1e-5)
    assert reached <= account([(event, steps)], 1e-5).epsilon


@pytest.mark.parametrize("p", [1, 4])
def test_the_attack_is_strong_enough_to_catch_a_tenth_of_the_noise(p):
    """At the worst allocation the gap to the certified value is small enough to be a test."""
    q, noise, width, steps = 0.2, 0.8, 15.0, 150
    shifts = [1 / (noise * math.sqrt(p))] * p
    reached = allocation_epsilon(width / noise, shifts, q, steps, 1e-5)
    certified = account([(MixedGaussianDpEvent(q, noise, width, p), steps)], 1e-5).epsilon
    wrong = MixedGaussianDpEvent(q, 2 * noise, 2 * width, p)
    assert 0.7 * certified < reached < certified
    assert reached > account([(wrong, steps)], 1e-5).epsilon


@given(
    q=st.sampled_from([0.01, 0.3, 1.0]),
    noise=st.sampled_from([0.5, 1.0, 2.0]),
    width=st.sampled_from([0.3, 2.0, 8.0]),
    angle=st.floats(0, math.pi / 2),
    order=st.sampled_from(CHECKED_ORDERS),
)
@settings(max_examples=25)
def test_certified_divergence_is_above_both_directions(q, noise, width, angle, order):
    shifts = [math.cos(angle) / noise, math.sin(angle) / noise]
    forth, back = renyi(width / noise, shifts, q, order)
    event = MixedGaussianDpEvent(q, noise, width)
    bound = rdp(event, Neighbouring.ADD_OR_REMOVE_ONE, np.array([order]))[0]
    assert back <= forth * (1 + 1e-6) + 1e-12
    assert forth <= bound * (1 + 1e-6)  # of the quadrature


def test_certified_divergence_is_close_where_the_worst_case_is_known():
    """One coordinate carries all: the bound at whole orders is the divergence itself."""
    event = MixedGaussianDpEvent(0.1, 1.0, 10.0)
    for order in (2.0, 3.0, 6.0):
        forth, _ = renyi(10.0, [1.0], 0.1, order)
        bound = rdp(event, Neighbouring.ADD_OR_REMOVE_ONE, np.array([order]))[0]
        assert forth <= bound <= forth * 1.005


def test_a_wider_gap_than_promised_reveals_less():
    for wider in (1.0, 1.3, 2.0, 2.7, 10.0):
        for order in (1.3, 2.0, 5.0):
            assert renyi(4.0 * wider, [0.8], 0.1, order)[0] <= renyi(4.0, [0.8], 0.1, order)[0]


def test_spreading_can_beat_one_coordinate_in_hockey_sticks():
    """Why no privacy loss distribution of a one-hot record may be certified."""
    width, shift = 41.3, 0.275
    x = np.arange(-width / 2 - 9, width / 2 + 12, 0.005)
    one_hot = 0.5 * np.abs(density(x - 2.75, width) - density(x, width)).sum() * 0.005
    f, g = density(x, width), density(x - shift, width)
    keep = (f > 1e-18) & (g > 1e-18)
    loss = np.log(g[keep] / f[keep])
    rng = np.random.default_rng(0)
    draws = rng.choice(loss, size=(20_000, 100), p=f[keep] / f[keep].sum()).sum(axis=1)
    spread = np.mean(np.maximum(1 - np.exp(draws), 0))
    assert spread > 2 * one_hot
