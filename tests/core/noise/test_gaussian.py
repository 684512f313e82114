"""The Gaussian mechanism: joint events, shares, and noise that is what the event says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from winsor.core.contract import Bounded, ConfigurationError, Sensitivity, UnsoundRelease
from winsor.core.events.joint import joint_event
from winsor.core.noise.gaussian import Gaussian


def part(c: float, share: float = 1.0) -> Bounded:
    return Bounded(np.zeros(3), Sensitivity.per_sample(c, "test"), share)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=4), st.floats(0.1, 20))
def test_shares_add_up_to_the_multiplier_asked_for(bounds, multiplier):
    parts = {str(i): part(c, 1 / len(bounds)) for i, c in enumerate(bounds)}
    mechanism = Gaussian(multiplier)
    event = mechanism.event(parts)
    assert event.add_remove == pytest.approx(multiplier)
    assert event.replace == pytest.approx(multiplier / 2)


def test_a_small_share_gets_more_noise():
    parts = {"grad": part(1.0, 0.99), "count": part(0.5, 0.01)}
    std = Gaussian(2.0).std(parts)
    assert std["grad"] == pytest.approx(2.0 / math.sqrt(0.99))
    assert std["count"] == pytest.approx(2.0 * 0.5 / 0.1)
    event = joint_event(parts, 2.0)
    moves = [(p.sensitivity.add_remove / std[name]) ** 2 for name, p in parts.items()]
    assert event.add_remove == pytest.approx(sum(moves) ** -0.5)
    moves = [(p.sensitivity.replace / std[name]) ** 2 for name, p in parts.items()]
    assert event.replace == pytest.approx(sum(moves) ** -0.5)


@pytest.mark.parametrize("shares", [(0.5, 0.4), (1.0, 0.1)])
def test_shares_that_do_not_add_up_are_refused(shares):
    with pytest.raises(UnsoundRelease, match="add up to 1"):
        Gaussian(1.0).std({"a": part(1.0, shares[0]), "b": part(1.0, shares[1])})


class Scripted:
    """Noise that is known beforehand, in place of the real one."""

    def __init__(self, noise):
        self.noise = noise

    def add(self, name, leaves, scale, law):
        assert law == "gaussian"
        ends = np.cumsum([leaf.size for leaf in leaves])
        noise = np.split(self.noise[: ends[-1]], ends[:-1])
        for leaf, z in zip(leaves, noise, strict=True):
            leaf += scale * z.reshape(leaf.shape)


def test_noise_goes_to_every_leaf_in_order():
    tree = {"a": np.zeros((2, 2)), "b": np.ones(3)}
    parts = {"grad": Bounded(tree, Sensitivity.per_sample(2.0, "test"))}
    noise = np.arange(7.0)
    values = Gaussian(1.5).add_noise(parts, {"grad": 3.0}, Scripted(noise))
    assert np.array_equal(values["grad"]["a"], 3.0 * noise[:4].reshape(2, 2))
    assert np.array_equal(values["grad"]["b"], 1 + 3.0 * noise[4:])


def test_other_dtypes_are_noised_too():
    value = np.zeros(4, np.float32)
    parts = {"x": Bounded(value, Sensitivity.per_sample(1.0, "test"))}
    noised = Gaussian(1.0).add_noise(parts, {"x": 2.0}, Scripted(np.ones(4)))
    assert noised["x"].dtype == np.float32
    assert np.array_equal(noised["x"], np.full(4, 2.0, np.float32))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan"), "1"])
def test_bad_multipliers_are_refused(bad):
    with pytest.raises(ConfigurationError, match="noise_multiplier must be"):
        Gaussian(bad)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_a_sensitivity_must_be_a_positive_number(bad):
    with pytest.raises(UnsoundRelease, match="positive finite"):
        Sensitivity.per_sample(bad, "test")
