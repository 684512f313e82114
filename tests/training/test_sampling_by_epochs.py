"""Epochs end to end: every row once, the ledger pays for an epoch before its first release."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.core.accounting import certify
from winsor.core.contract import Neighbouring, UnsoundRelease, UnsupportedRelation
from winsor.core.events.allocation import AllocationDpEvent
from winsor.rules import Flat, PerLayer, Quantile

N, BATCH = 60, 12
ADD = Neighbouring.ADD_OR_REMOVE_ONE


def start(**changes):
    torch.manual_seed(0)
    x = torch.arange(N * 3.0).view(N, 3) / 100
    model = nn.Linear(3, 2)
    options = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataset": TensorDataset(x, (x[:, 0] > 0.5).long(), torch.arange(N)),
        "rule": Flat(1.0),
        "noise_multiplier": 2.0,
        "delta": 1e-3,
        "epochs": 3,
        "batch_size": BATCH,
        "seed": 0,
        "sampling": "allocation",
    }
    return winsor.make_private(**{**options, **changes})


def train(private, steps=None):
    seen = []
    for x, y, rows in private.batches(steps):
        seen += rows.tolist()
        private.step(F.cross_entropy(private.model(x), y, reduction="none"))
    return seen


@pytest.mark.parametrize("sampling", ["allocation", "loader"])
def test_every_row_is_seen_once_in_each_epoch(sampling):
    private = start(sampling=sampling)
    for epoch in range(3):
        assert sorted(train(private, N // BATCH)) == list(range(N)), epoch
    assert private.spent().steps == 3 * N // BATCH


@pytest.mark.parametrize("rule", [Flat(1.0), Quantile(1.0), PerLayer(1.0, joint=True)])
def test_an_epoch_is_paid_for_with_its_first_step(rule):
    private = start(rule=rule)
    event = AllocationDpEvent(N // BATCH, 2.0)
    for steps, epochs in ((1, 1), (3, 1), (1, 1), (1, 2), (9, 3)):
        train(private, steps)
        counts = {repr(e): c for e, c in private.ledger.history()}
        assert counts[repr(event)] == epochs
        assert private.spent().epsilon == certify([(event, epochs)], 1e-3, ADD).epsilon


def test_calibration_spends_the_target():
    private = start(noise_multiplier=None, epsilon=3.0)
    train(private)
    assert 0.99 * 3 < private.spent().epsilon <= 3.0
    poisson = start(noise_multiplier=None, epsilon=3.0, sampling="poisson")
    assert private.noise_multiplier < poisson.noise_multiplier


def test_a_loader_costs_one_release_an_epoch():
    private = start(sampling="loader")
    train(private)
    from dp_accounting.dp_event import GaussianDpEvent

    assert private.spent().epsilon == certify([(GaussianDpEvent(2.0), 3)], 1e-3, ADD).epsilon


def test_resume_continues_the_epoch(tmp_path):
    whole = start()
    train(whole)
    first = start()
    train(first, 7)
    state, weights = first.state_dict(), first.model.state_dict()
    second = start()
    second.model.load_state_dict(weights)
    second.load_state_dict(state)
    train(second, 8)
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert second.spent().epsilon == whole.spent().epsilon


def test_what_is_not_proven_is_refused():
    with pytest.raises(UnsupportedRelation, match="allocation"):
        start(relation="replace_one")


def test_noise_that_changes_within_an_epoch_is_refused():
    private = start()
    train(private, 1)
    private._door.mechanism = type(private._door.mechanism)(1.0)
    private._door._priced = []
    with pytest.raises(UnsoundRelease, match="every step of an epoch"):
        train(private, 1)
