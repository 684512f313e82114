"""Balanced clipping: shares of privacy, the vote, and that each group finds its own quantile."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from winsor.rules.balanced import Balanced

from winsor.core.contract import ConfigurationError, Released
from winsor.core.noise.gaussian import Gaussian
from winsor.gradients.rows import RowsView

SHAPES = {"weight": torch.zeros(4, 4), "bias": torch.zeros(1)}


def rows(weight_lengths, bias_lengths):
    weight = torch.zeros(len(weight_lengths), 4, 4)
    weight[:, 1, 2] = weight_lengths
    return RowsView({"weight": weight, "bias": bias_lengths[:, None]})


def parts_of(rule, view, state):
    return rule.bounded(rule.contributions(view, state), state)


@given(
    st.floats(0.01, 100),
    st.floats(0.01, 100),
    st.floats(0.001, 0.9),
    st.floats(0.3, 5),
)
def test_the_joint_multiplier_does_not_depend_on_thresholds(one, other, share, multiplier):
    rule = Balanced(1.0, clipped=0.5, share=share)
    state = rule.init(SHAPES, 4.0) | {"thresholds": [one, other]}
    parts = parts_of(rule, rows(torch.tensor([0.5, 2.0]), torch.tensor([1.0, 9.0])), state)
    assert math.isclose(sum(part.share for part in parts.values()), 1.0)
    event, std = Gaussian(multiplier).event(parts), Gaussian(multiplier).std(parts)
    assert event.add_remove == pytest.approx(multiplier)
    assert event.replace == pytest.approx(multiplier / 2)
    moved = sum((part.sensitivity.add_remove / std[name]) ** 2 for name, part in parts.items())
    assert moved == pytest.approx(multiplier**-2)


def test_noise_shares_are_the_best_for_the_sum_of_squares():
    """Any other split of the same privacy has more noise over all coordinates."""
    rule = Balanced(1.0, clipped=0.5, share=0.5)
    state = rule.init(SHAPES, 4.0) | {"thresholds": [2.0, 0.7]}
    left = 1 - rule.share

    def noise(first):
        sizes, thresholds = state["sizes"], state["thresholds"]
        pairs = zip(sizes, thresholds, (first, left - first), strict=True)
        return sum(size * c**2 / share for size, c, share in pairs)

    best = rule.noise_shares(state)[0]
    assert sum(rule.noise_shares(state)) == pytest.approx(left)
    assert noise(best) < min(noise(best * 1.05), noise(best * 0.95))
    assert noise(best) == pytest.approx((4 * 2.0 + 1 * 0.7) ** 2 / left)


def released(parts):
    """As if the noise were zero."""
    return Released({name: part.value for name, part in parts.items()}, {}, 0)


def test_each_group_finds_the_quantile_that_its_size_deserves():
    rule = Balanced(1.0, clipped=0.4)
    state = rule.init(SHAPES, 2000.0)
    generator = torch.Generator().manual_seed(0)
    heavy = torch.rand(2000, generator=generator) ** -0.5  # Pareto of index 2
    for _ in range(400):
        view = rows(heavy * 3, heavy * 0.05)
        gradient, state = rule.after(released(parts_of(rule, view, state)), state)
        assert gradient.values.keys() == {"grad"}
    clipped = [float((heavy * scale > c).float().mean()) for scale, c in
               zip((3, 0.05), state["thresholds"], strict=True)]  # fmt: skip
    assert clipped == pytest.approx([0.4, 0.4 * math.sqrt(1 / 16)], abs=0.01)


def test_given_thresholds_clip_shares_as_the_roots_of_the_sizes():
    """For lengths of one law with the tail index that the rule was told."""
    rule = Balanced(10.0, tail_index=2.0)
    state = rule.init(SHAPES, 2000.0)
    lengths = torch.linspace(0, 1, 200_001)[1:] ** -0.5  # Pareto of index 2
    large, small = (float((lengths > c).float().mean()) for c in state["thresholds"])
    assert large / small == pytest.approx(math.sqrt(16), rel=0.01)
    view = rows(lengths[:50], lengths[:50])
    parts = parts_of(rule, view, state)
    assert parts.keys() == {"grad/0", "grad/1"}
    assert rule.after(released(parts), state)[1] == state


@given(st.floats(0.5, 8), st.floats(0.01, 100))
def test_its_noise_is_that_of_flat_clipping(tail_index, threshold):
    rule = Balanced(threshold, tail_index=tail_index)
    state = rule.init(SHAPES, 4.0)
    parts = parts_of(rule, rows(torch.ones(2), torch.ones(2)), state)
    std = Gaussian(1.3).std(parts)
    square = sum(size * std[f"grad/{place}"] ** 2 for place, size in enumerate(state["sizes"]))
    assert square == pytest.approx(17 * (1.3 * threshold) ** 2)


def test_rows_below_all_thresholds_are_left_alone():
    rule = Balanced(100.0)
    view = rows(torch.tensor([1.0, -2.0]), torch.tensor([3.0, 4.0]))
    state = rule.init(SHAPES, 2.0)
    grad = rule.contributions(view, state)["grad"]
    torch.testing.assert_close(grad["bias"], torch.tensor([7.0]))
    torch.testing.assert_close(grad["weight"].sum(), torch.tensor(-1.0))


@pytest.mark.parametrize(
    "wrong", [{"clipped": 1.0}, {"share": 0.0}, {"max_grad_norm": 0.0}, {"groups": "layers"}]
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigurationError):
        replace(Balanced(1.0), **wrong)
