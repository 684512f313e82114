"""Epochs are the steps of `batches()`, cut at full passes: same weights, same ledger, same len."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.core.contract import BudgetExceeded, ProtocolError
from winsor.rules import Flat
from winsor.training.epochs import epoch_ends

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
ROWS = TensorDataset(X, (X[:, 0] > 0).long())


def start(**changes):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.2), nn.Linear(3, 2))
    arguments = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        "dataset": ROWS,
        "rule": Flat(1.0),
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "epochs": 3,
        "batch_size": 16,
        "seed": 0,
    }
    return winsor.make_private(**{**arguments, **changes})


def step(private, batch):
    x, y = batch
    private.step(F.cross_entropy(private.model(x), y, reduction="none"))


def weights(private):
    return torch.cat([p.detach().reshape(-1) for p in private.model.parameters()])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_physical_batch_size": 5},
        {"sampling": "allocation"},
        {"sampling": "loader", "relation": "add_or_remove_one"},
        {"sampling": "fixed", "relation": "replace_one"},
        {"batch_size": 2},  # some batches are empty
        {"iterate": "averaged"},
    ],
    ids=str,
)
def test_bit_by_bit_the_steps_of_batches(options):
    by_step, by_epoch = start(**options), start(**options)
    torch.manual_seed(2)
    for batch in by_step.batches():
        step(by_step, batch)
    torch.manual_seed(2)
    lengths = []
    for epoch in by_epoch.epochs():
        lengths.append(len(epoch))
        for batch in epoch:
            step(by_epoch, batch)
        assert len(epoch) == 0
    assert torch.equal(weights(by_step), weights(by_epoch))
    assert by_step.ledger.digest() == by_epoch.ledger.digest()
    assert sum(lengths) == by_epoch.budget.planned_steps
    assert len(lengths) == 3


@settings(max_examples=200, deadline=None)
@given(n=st.integers(1, 10_000), batch=st.integers(1, 10_000), epochs=st.integers(1, 50))
def test_as_many_epochs_as_were_asked_for(n, batch, epochs):
    rate = min(1.0, batch / n)
    planned = max(1, math.ceil(epochs / rate - 1e-9))
    ends = epoch_ends(planned, rate)
    lengths = [after - before for before, after in zip([0, *ends], ends, strict=False)]
    assert len(ends) == epochs and ends[-1] == planned
    assert max(lengths) - min(lengths) <= 1


def test_a_run_is_resumed_in_the_middle_of_an_epoch(tmp_path):
    private = start()
    torch.manual_seed(3)
    for epoch in private.epochs():
        for batch in epoch:
            step(private, batch)
            if private.steps_done == 6:
                break
        if private.steps_done == 6:
            break
    private.save(tmp_path / "checkpoint.pt")
    coins = torch.get_rng_state()
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.2), nn.Linear(3, 2))
    resumed = winsor.resume(
        tmp_path / "checkpoint.pt",
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        dataset=ROWS,
        rule=Flat(1.0),
        noise_multiplier=1.0,
        delta=1e-3,
        epochs=3,
        batch_size=16,
        seed=0,
    )
    left = resumed.epochs()
    ends = epoch_ends(12, 16 / 60)
    assert (len(left), repr(left)) == (2, "2 of 3 epochs left")
    walked = []
    for epoch in left:
        walked.append((epoch.number, len(epoch)))
        for batch in epoch:
            step(resumed, batch)
    assert walked == [(1, ends[1] - 6), (2, ends[2] - ends[1])]
    torch.set_rng_state(coins)
    for batch in private.batches():
        step(private, batch)
    assert torch.equal(weights(resumed), weights(private))


def test_a_run_that_was_saved_at_its_end_has_no_epoch_left():
    private = start(steps=2, epochs=None)
    for epoch in private.epochs():
        for batch in epoch:
            step(private, batch)
    again = start(steps=2, epochs=None)
    again.load_state_dict(private.state_dict())
    assert list(again.epochs()) == []
    with pytest.raises(ProtocolError, match="spans all epochs"):
        list(again.epochs())


def test_a_second_round_is_refused():
    private = start()
    for epoch in private.epochs():
        for batch in epoch:
            step(private, batch)
    with pytest.raises(ProtocolError, match=r"private\.epochs\(\)"):
        next(iter(private.epochs()))


def test_an_epoch_that_is_left_early_is_refused():
    private = start()
    with pytest.raises(ProtocolError, match="leave the outer loop too"):
        for epoch in private.epochs():
            for batch in epoch:
                step(private, batch)
                break


def test_the_budget_ends_epochs_as_it_ends_batches():
    private = start(epsilon=3.5, noise_multiplier=1.0, epochs=20)
    assert private.budget.allowed_steps < private.budget.planned_steps
    with pytest.raises(BudgetExceeded):
        for epoch in private.epochs():
            for batch in epoch:
                step(private, batch)
    assert private.steps_done == private.budget.allowed_steps
