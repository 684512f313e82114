"""Adaptive clipping: the joint event, the update, the floor, and that the quantile is found."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from winsor.core.contract import ConfigurationError, Released
from winsor.core.noise.gaussian import Gaussian
from winsor.gradients.rows import RowsView
from winsor.rules.quantile import Quantile, QuantileTracker

WEIGHT = {"w": torch.zeros(3)}


def rows_of_norms(norms):
    rows = torch.zeros(len(norms), 3)
    rows[:, 1] = norms
    return RowsView({"w": rows})


def test_votes_are_centred_and_additive():
    rule = Quantile(1.0)
    state = rule.init(WEIGHT, 4.0)
    count = [
        float(rule.contributions(rows_of_norms(torch.tensor(norms)), state)["count"])
        for norms in ([0.5, 1.0, 2.0], [3.0], [0.5, 1.0, 2.0, 3.0])
    ]
    assert count == [0.5, -0.5, 0.0]


def test_a_neutralised_row_votes_as_a_row_of_length_zero():
    rule = Quantile(1.0)
    state = rule.init(WEIGHT, 4.0)
    broken = RowsView({"w": torch.full((1, 3), float("nan"))})
    assert float(rule.contributions(broken, state)["count"]) == 0.5


@given(st.floats(0.001, 0.9), st.floats(0.1, 10), st.floats(0.01, 100))
def test_the_joint_multiplier_does_not_depend_on_the_threshold(share, multiplier, threshold):
    rule = Quantile(1.0, QuantileTracker(share=share))
    state = {"threshold": threshold, "expected_size": 4.0}
    sums = rule.contributions(rows_of_norms(torch.tensor([0.5, 2.0])), state)
    parts = rule.bounded(sums, state)
    mechanism = Gaussian(multiplier)
    event, std = mechanism.event(parts), mechanism.std(parts)
    assert event.add_remove == pytest.approx(multiplier)
    assert event.replace == pytest.approx(multiplier / 2)
    assert (threshold / std["grad"]) ** 2 + (0.5 / std["count"]) ** 2 == pytest.approx(
        multiplier**-2
    )


def test_the_update_is_the_geometric_one():
    rule = Quantile(2.0, QuantileTracker(target=0.3, rate=0.4))
    state = rule.init(WEIGHT, 10.0)
    released = Released({"grad": WEIGHT, "count": torch.tensor(1.0)}, {}, 0)
    _, after = rule.after(released, state)
    assert after["threshold"] == pytest.approx(2.0 * math.exp(-0.4 * (0.6 - 0.3)))
    assert state["threshold"] == 2.0


@given(st.floats(-1e30, 1e30))
def test_the_threshold_stays_within_floor_and_ceiling(count):
    tracker = QuantileTracker(floor=0.1, ceiling=10.0, rate=5.0)
    assert 0.1 * 0.999 <= tracker.following(1.0, torch.tensor(count), 1.0) <= 10.0 * 1.001


@pytest.mark.parametrize("target", [0.2, 0.5, 0.9])
def test_it_finds_the_quantile(target):
    """Heavy-tailed norms, start far off, noise of a realistic size: within 15 % in 200 steps."""
    generator = torch.Generator().manual_seed(5)
    rule = Quantile(50.0, QuantileTracker(target=target))
    state = rule.init(WEIGHT, 256.0)
    thresholds = []
    for step in range(400):
        norms = torch.rand(256, generator=generator) ** -0.5  # Pareto(2)
        parts = rule.bounded(rule.contributions(rows_of_norms(norms), state), state)
        std = Gaussian(1.0).std(parts)
        noise = torch.randn((), generator=generator) * std["count"]
        values = {"grad": WEIGHT, "count": parts["count"].value + noise}
        _, state = rule.after(Released(values, std, step), state)
        thresholds.append(state["threshold"])
    settled = math.exp(sum(math.log(t) for t in thresholds[200:]) / 200)
    assert settled == pytest.approx((1 - target) ** -0.5, rel=0.15)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"target": 1.0}, "target must be strictly between"),
        ({"share": 0.0}, "share must be strictly between"),
        ({"rate": -1.0}, "rate must be"),
        ({"floor": 0.0}, "floor must be"),
        ({"floor": 2.0, "ceiling": 1.0}, "ceiling must be at least floor"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigurationError, match=message):
        QuantileTracker(**options)


def test_the_start_must_lie_above_the_floor():
    with pytest.raises(ConfigurationError, match="threshold must start within"):
        Quantile(0.01, QuantileTracker(floor=0.1))
