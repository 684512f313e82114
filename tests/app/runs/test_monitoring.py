"""Monitors go into the drawer where they belong, for every rule."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor import rules
from winsor.app.runs.config import RecordSettings
from winsor.app.runs.parts import Debug, Off, Private, make_monitor
from winsor.rules.debug_monitor import DebugRecord

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
LABELS = (X[:, 0] > 0).long()


EMPTY = DebugRecord(
    step=0,
    rows=0,
    quantiles={},
    largest=0.0,
    clip_fraction=None,
    clipping_bias=None,
    effective_batch=None,
    noise_to_signal=math.inf,
    layer_shares={},
)


def train(monitor, mechanism="gaussian"):
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    private = winsor.make_private(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=TensorDataset(X, LABELS),
        rule=monitor.rule,
        batch_size=20,
        noise_multiplier=1.0,
        steps=3,
        delta=1e-3,
        seed=5,
        mechanism=mechanism,
        max_physical_batch_size=8,
    )
    found = {}
    for x, y in private.batches():
        losses = F.cross_entropy(model(x), y, reduction="none")
        monitor.saw(losses)
        if private.step(losses):
            found = monitor.values(private.rule_state)
            monitor.forget()
    return found, model


@pytest.mark.parametrize("name", rules.all_rules())
def test_debug_changes_nothing_for_any_rule(name):
    rule = next(e for e in rules.all_examples() if type(e).__name__ == name)
    mechanism = "laplace" if name == "L1" else "gaussian"
    nothing, plain = train(Off(rule), mechanism)
    values, watched = train(Debug(rule), mechanism)
    assert nothing == {} and 0 < values["training_loss"] < 10
    for one, two in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, two)
    assert all(math.isfinite(v) for v in values.values() if isinstance(v, float))


@pytest.mark.parametrize("rule", [rules.Flat(1.0), rules.Value(1.0)], ids=str)
def test_the_private_monitor_reads_released_values(rule):
    values, _ = train(Private(rule, share=0.5))
    assert "training_loss" not in values and values["noise_to_signal"] > 0


def test_the_training_loss_is_that_of_the_whole_batch():
    monitor = Debug(rules.Flat(1.0))
    train(monitor)
    assert monitor.values({}) == {}  # forgotten
    monitor.saw(torch.tensor([1.0, 2.0]))
    monitor.saw(torch.tensor([6.0]))
    monitor._monitor.records.append(EMPTY)
    assert monitor.values({}) == {"training_loss": 3.0}


def test_the_setting_chooses():
    rule = rules.Flat(1.0)
    names = ("off", "private", "debug")
    kinds = {name: type(make_monitor(rule, RecordSettings(monitor=name))) for name in names}
    assert kinds == {"off": Off, "private": Private, "debug": Debug}
    assert [k.section for k in (Off, Private, Debug)] == ["", "monitor", "not_private"]
