"""The untuned recipe: a sound rule, public constants, step lengths that do not move with C."""

from __future__ import annotations

import math

import pytest
import rule_battery
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from winsor.core.contract import ConfigurationError, Released
from winsor.rules import Quantile, UnitLength
from winsor.rules.quantile import QuantileTracker
from winsor.tails import fit
from winsor.tuning.recipes import EXCESS, falling, quantile_for, recipe

CHECKS = [getattr(rule_battery, name) for name in dir(rule_battery) if name.startswith("check_")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_rule_passes_the_battery_of_rules(check):
    check(UnitLength(Quantile(0.5)))


def test_the_released_gradient_is_divided_by_the_threshold_it_was_clipped_at():
    rule = UnitLength(Quantile(4.0, QuantileTracker(target=0.9, rate=0.5)))
    state = rule.init(rule_battery.parameters(), 100.0)
    released = Released(
        {"grad": {"weight": torch.full((2,), 8.0)}, "count": torch.tensor(-50.0)}, {}, 0
    )
    gradient, following = rule.after(released, state)
    assert gradient.values["grad"]["weight"].tolist() == [2.0, 2.0]
    assert following["threshold"] > 4.0  # nobody lay below: the next one is larger


def test_defaults_follow_from_public_numbers_alone():
    small, large = recipe(10_000, 10, 3.0, 1e-6), recipe(10_000, 10**6, 3.0, 1e-6)
    assert small == recipe(10_000, 10, 3.0, 1e-6)
    assert small.batch_size == 200 and small.steps == 400
    assert small.rule.rule.tracker.target > large.rule.rule.tracker.target
    assert "97% quantile" in str(small) and "70% quantile" in str(large)


def test_what_is_given_is_kept_and_a_fit_sets_the_start():
    norms = torch.distributions.Weibull(1.0, 1.0).sample((1000,)).double().numpy()
    fitted = fit(7 * norms)
    run = recipe(10_000, 10, 3.0, 1e-6, fitted=fitted, batch_size=64, steps=30)
    assert (run.batch_size, run.steps) == (64, 30)
    target = run.rule.rule.tracker.target
    assert 0.9 < target <= 0.97
    assert run.rule.max_grad_norm == pytest.approx(fitted.body_quantile(target))


def test_the_target_is_where_squares_of_bias_and_noise_are_least():
    """By brute force, for norms of which the threshold takes the share that is assumed."""
    norms = torch.distributions.Exponential(1.0).icdf((torch.arange(20_000) + 0.5) / 20_000)
    grid = torch.linspace(0.5, 4.0, 141)
    bias = torch.stack([(norms - c).clamp_min(0).mean() for c in grid])
    place = int((bias / grid - EXCESS).abs().argmin())
    above = float((norms > grid[place]).double().mean())
    noise = math.sqrt(above * EXCESS)
    cost = bias.square() + (noise * grid).square()
    assert abs(int(cost.argmin()) - place) <= 2
    assert quantile_for(noise, 1.0) == pytest.approx(1 - above, abs=0.01)


def test_quiet_noise_keeps_the_targets_of_the_guide_and_loud_noise_the_least():
    assert quantile_for(0.03, 0.97) == 0.97
    assert quantile_for(0.5, 0.7) == 0.7
    features = recipe(50_000, 31_050, 3.0, 1e-5, epochs=40)
    assert 0.7 <= features.rule.rule.tracker.target < 0.75
    a9a = recipe(32_561, 248, 3.0, 1e-5)
    assert 0.96 < a9a.rule.rule.tracker.target <= 0.97


def test_the_learning_rate_falls_to_its_last_fraction():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = falling(optimizer, 4)
    seen = []
    for _ in range(5):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert seen == pytest.approx([2.0, 1.5, 1.0, 0.5, 0.5])


@pytest.mark.parametrize("wrong", [{"n": 1}, {"d": 0}, {"epsilon": -1.0}, {"delta": 0.0}])
def test_arguments_are_checked(wrong):
    with pytest.raises(ConfigurationError, match="must"):
        recipe(**{"n": 1000, "d": 5, "epsilon": 1.0, "delta": 1e-5, **wrong})


def test_it_learns_without_any_choice_within_the_budget():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 5, generator=generator)
    clean = (x[:, 0] + x[:, 1] > 0).long()
    y = torch.where(torch.rand(2000, generator=generator) < 0.2, 1 - clean, clean)
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    run = recipe(2000, 12, 2.0, 1e-5, steps=120)
    private = run.make_private(model, TensorDataset(x, y), seed=0)
    for inputs, labels in private.batches():
        private.step(F.cross_entropy(model(inputs), labels, reduction="none"))
    assert private.spent().epsilon <= 2.0
    assert private.noise_multiplier > 0
    assert private.rule_state["threshold"] > 1  # it started at 0.1
    assert float((model(x).argmax(1) == clean).float().mean()) > 0.9


def test_passes_that_can_be_afforded_become_larger_batches():
    small = recipe(5000, 100, 3.0, 1e-5)
    large = recipe(5000, 100, 3.0, 1e-5, epochs=20, steps=100)
    assert (large.batch_size, large.steps) == (1000, 100)
    assert recipe(5000, 100, 3.0, 1e-5, epochs=1e6, steps=100).batch_size == 5000
    assert large.batch_size > small.batch_size
    assert small.learning_rate == recipe(5000, 100, 3.0, 1e-5, epochs=0.5).learning_rate == 0.5
    assert large.learning_rate == 0.5
    with pytest.raises(ConfigurationError, match="batch_size or epochs"):
        recipe(5000, 100, 3.0, 1e-5, epochs=20, batch_size=10)
    with pytest.raises(ConfigurationError, match="epochs"):
        recipe(5000, 100, 3.0, 1e-5, epochs=-1.0)
