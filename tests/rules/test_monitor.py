"""The private monitor keeps the rule contract, stays inside the budget, and reads true numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import rule_battery
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.core.contract import ConfigurationError, Released
from winsor.gradients.rows import RowsView
from winsor.rules import Averaged, Flat, PerLayer, Quantile, Value
from winsor.rules.monitor import HISTOGRAM, PrivateMonitor, Reading

CHECKS = [getattr(rule_battery, name) for name in dir(rule_battery) if name.startswith("check_")]
MONITORED = [
    PrivateMonitor(Flat(1.0)),
    PrivateMonitor(Quantile(0.5), share=0.3, bins=4),
    PrivateMonitor(PerLayer(1.0, groups="parameter", joint=True), low=0.1, high=10.0),
    PrivateMonitor(Averaged(1.0)),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("rule", MONITORED, ids=repr)
def test_a_monitored_rule_passes_the_battery_of_rules(check, rule):
    check(rule)


def view_of(norms) -> RowsView:
    """Rows over the battery's parameters with the given norms."""
    rows = torch.zeros(len(norms), 9)
    rows[:, 0] = torch.as_tensor(norms, dtype=torch.float32)
    return RowsView(rule_battery.rows_from(rows), torch.zeros(len(norms)))


def release(rule, norms, state, multiplier=0.0, seed=0) -> tuple[dict, dict]:
    """One step without a door: values plus noise of the claimed size, and the next state."""
    parts = rule.bounded(rule.contributions(view_of(norms), state), state)
    generator = torch.Generator().manual_seed(seed)
    std = {k: multiplier * p.sensitivity.add_remove / math.sqrt(p.share) for k, p in parts.items()}

    def noised(name, value):
        return value + std[name] * torch.randn(value.shape, generator=generator)

    values = {
        k: {n: noised(k, v) for n, v in p.value.items()}
        if isinstance(p.value, dict)
        else noised(k, p.value)
        for k, p in parts.items()
    }
    small = {k: max(s, 1e-9 * parts[k].sensitivity.add_remove / math.sqrt(parts[k].share))
             for k, s in std.items()}  # fmt: skip
    return values, rule.after(Released(values, small, 0), state)[1]


def fresh(rule):
    return rule.init(rule_battery.parameters(), 100.0)


# -------------------------------------------------------------------------------- the histogram


def test_each_row_votes_once_in_its_own_bin():
    rule = PrivateMonitor(Flat(1.0), low=0.1, high=1000.0, bins=4)
    norms = [0.0, 0.05, 0.5, 5.0, 6.0, 50.0, 5e5]
    votes = rule.contributions(view_of(norms), fresh(rule))[HISTOGRAM]
    assert votes.tolist() == [3, 2, 1, 1]  # bins .1-1, 1-10, 10-100, 100-1000; ends are open


def test_fragments_add_up_and_the_gradient_is_the_rules_own():
    rule, norms = PrivateMonitor(Flat(1.0)), [0.3, 2.0, 40.0, 0.01]
    state = fresh(rule)
    whole = rule.contributions(view_of(norms), state)
    pieces = [rule.contributions(view_of(n), state) for n in (norms[:1], norms[1:])]
    assert torch.equal(whole[HISTOGRAM], pieces[0][HISTOGRAM] + pieces[1][HISTOGRAM])
    alone = Flat(1.0).contributions(view_of(norms), {})
    assert torch.equal(whole["grad"]["weight"], alone["grad"]["weight"])


def test_shares_add_up_and_cost_the_gradient_what_is_said():
    parts = PrivateMonitor(Quantile(1.0), share=0.25).bounded(
        {"grad": {}, "count": torch.zeros(()), HISTOGRAM: torch.zeros(24)},
        fresh(PrivateMonitor(Quantile(1.0), share=0.25)),
    )
    assert sum(part.share for part in parts.values()) == pytest.approx(1.0)
    assert parts["grad"].share == pytest.approx(0.75 * 0.99)
    assert parts[HISTOGRAM].sensitivity.replace == pytest.approx(math.sqrt(2))


# ----------------------------------------------------------------------------------- the reading


def test_without_noise_the_reading_is_the_truth_up_to_the_bins():
    rule = PrivateMonitor(Flat(2.0), bins=120, memory=10)
    norms = np.random.default_rng(0).weibull(1.0, 4000) * 3
    state = fresh(rule)
    for _ in range(3):
        _, state = release(rule, norms, state)
    reading = rule.reading(state)
    width = (rule.high / rule.low) ** (1 / rule.bins)
    weights = np.minimum(1, 2.0 / norms)
    assert reading.steps == 3
    assert sum(reading.counts) == pytest.approx(4000)
    for p in (0.1, 0.5, 0.9):
        assert reading.quantile(p) == pytest.approx(np.quantile(norms, p), rel=width - 1)
    assert reading.clip_fraction == pytest.approx(np.mean(norms > 2), abs=0.02)
    assert reading.clipping_bias == pytest.approx(np.mean((1 - weights) * norms), rel=0.05)
    effective = weights.sum() ** 2 / (weights**2).sum()
    assert reading.effective_batch == pytest.approx(effective, rel=0.02)
    assert reading.layer_shares["weight"] == pytest.approx(1.0)
    assert reading.layer_shares["bias"] == pytest.approx(0.0, abs=1e-6)


def test_smoothing_averages_the_noise_away():
    rule = PrivateMonitor(Flat(1.0), memory=60)
    norms = np.random.default_rng(1).weibull(1.0, 256)
    state = fresh(rule)
    for step in range(200):
        _, state = release(rule, norms, state, multiplier=1.0, seed=step)
    reading = rule.reading(state)
    one_step = 1.0 / math.sqrt(rule.share)
    assert reading.count_noise == pytest.approx(one_step / math.sqrt(2 * 60 - 1), rel=0.01)
    assert reading.quantile(0.5) == pytest.approx(np.median(norms), rel=0.35)
    assert reading.clip_fraction == pytest.approx(np.mean(norms > 1), abs=0.1)
    assert reading.clipping_bias < 3 * np.mean(np.maximum(norms - 1, 0))


def test_noise_to_signal_from_the_released_gradient():
    """256 equal rows of norm 1: the sum is 256 long; noise 50 per coordinate over 9 of them."""
    rule = PrivateMonitor(Flat(1.0), memory=400)
    state = fresh(rule)
    for step in range(400):
        _, state = release(rule, np.ones(256), state, multiplier=50 * math.sqrt(0.98), seed=step)
    assert rule.reading(state).noise_to_signal == pytest.approx(50 * 3 / 256, rel=0.05)


def test_an_adaptive_threshold_is_followed():
    rule = PrivateMonitor(Quantile(1.0), bins=200)
    norms = np.full(100, 8.0)
    state = fresh(rule)
    for _ in range(60):
        _, state = release(rule, norms, state)
    reading = rule.reading(state)
    assert state["threshold"] > 6
    assert state["monitor_clip"] == pytest.approx(state["threshold"], rel=0.15)
    left = max(0.0, 8 - state["monitor_clip"])
    assert reading.clipping_bias == pytest.approx(left, abs=0.4)


def test_rules_without_one_gradient_part_give_no_clip_fraction():
    rule = PrivateMonitor(PerLayer(1.0, groups="parameter", joint=True))
    _, state = release(rule, [1.0, 2.0], fresh(rule))
    assert rule.reading(state).clip_fraction is None
    assert "clipped" not in str(rule.reading(state))


def test_readings_say_that_they_are_private_and_refuse_before_the_first_step():
    rule = PrivateMonitor(Flat(1.0))
    with pytest.raises(ConfigurationError, match="at least one released step"):
        rule.reading(fresh(rule))
    _, state = release(rule, [1.0] * 50, fresh(rule))
    assert str(rule.reading(state)).startswith("private monitor")
    with pytest.raises(ConfigurationError, match="probability"):
        rule.reading(state).quantile(1.0)


def test_an_empty_histogram_has_no_quantiles_below_its_end():
    reading = Reading(1, (1.0, 10.0), (0.0,), 0.0, None, None, None, 1.0, {})
    assert reading.quantile(0.5) == 10.0


@pytest.mark.parametrize("wrong", [{"share": 0.0}, {"low": 5.0, "high": 1.0}, {"bins": 1}])
def test_options_are_checked(wrong):
    with pytest.raises(ConfigurationError, match="must"):
        PrivateMonitor(Flat(1.0), **wrong)


# ---------------------------------------------------------------------------- in a training run


def run(rule, **changes):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 5, generator=generator)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    private = winsor.make_private(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        dataset=data,
        rule=rule,
        delta=1e-3,
        batch_size=40,
        seed=0,
        **changes,
    )
    for batch in private.batches():
        private.step(F.cross_entropy(model(batch[0]), batch[1], reduction="none"))
    return private


def test_the_target_epsilon_is_unchanged_and_the_cost_is_in_the_ledger():
    plain = run(Flat(1.0), epsilon=2.0, steps=6)
    watched = run(PrivateMonitor(Flat(1.0), share=0.1), epsilon=2.0, steps=6)
    assert watched.spent().epsilon <= 2.0
    assert watched.spent().epsilon == pytest.approx(plain.spent().epsilon, rel=1e-6)
    assert watched.noise_multiplier == pytest.approx(plain.noise_multiplier)
    assert len(watched.ledger) == 6  # one joint event per step, nothing beside it
    assert "PrivateMonitor" in watched.spent().conditions[0]


@pytest.mark.parametrize(
    "rule", [Averaged(0.5), PerLayer(1.0), Quantile(1.0), Value(1.0)], ids=repr
)
def test_every_kind_of_rule_can_be_watched(rule):
    watched = PrivateMonitor(rule)
    private = run(watched, noise_multiplier=1.0, steps=2)
    assert watched.reading(private.rule_state).steps == 2


def test_the_state_resumes():
    rule = PrivateMonitor(Flat(1.0))
    private = run(rule, noise_multiplier=1.0, steps=4)
    state = private.state_dict()
    assert state["rule"]["monitor_steps"] == 4
    twin = run(PrivateMonitor(Flat(1.0)), noise_multiplier=1.0, steps=1)
    assert twin.rule_state["monitor_steps"] == 1
    import io

    buffer = io.BytesIO()
    torch.save(state["rule"], buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)
    assert rule.reading(loaded) == rule.reading(private.rule_state)
