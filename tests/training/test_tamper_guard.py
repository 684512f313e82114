"""Nothing trains around the door: every way that was found is refused, and honest ways are not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.core.contract import UnsoundRelease, UnsupportedModel
from winsor.rules import Flat


def dataset():
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long())


def start(model=None, **changes):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    options = {
        "model": model,
        "optimizer": torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1),
        "dataset": dataset(),
        "rule": Flat(1.0),
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "steps": 6,
        "batch_size": 16,
        "seed": 0,
    }
    return winsor.make_private(**{**options, **changes})


def losses(private, batch):
    return F.cross_entropy(private.model(batch[0]), batch[1], reduction="none")


def train(private, steps=None):
    for batch in private.batches(steps):
        private.step(losses(private, batch))
    return private


def raw_step(private):
    loss = F.cross_entropy(private.model(dataset().tensors[0]), dataset().tensors[1])
    optimizer = private._update.optimizer
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_raw_step_before_the_loop_is_refused():
    private = start()
    raw_step(private)
    with pytest.raises(UnsoundRelease, match="private.step alone"):
        train(private)


def test_a_raw_step_after_the_loop_is_refused_by_the_report():
    private = train(start())
    raw_step(private)
    with pytest.raises(UnsoundRelease, match="no release paid for"):
        private.spent()


@pytest.mark.parametrize(
    "edit",
    [
        lambda model: model[0].weight.data.add_(1.0),
        lambda model: setattr(model[0].weight, "data", model[0].weight.data + 1),
        lambda model: model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}),
        lambda model: nn.init.zeros_(model[2].bias),
    ],
    ids=["data edited", "data exchanged", "loaded", "initialised"],
)
def test_edits_by_hand_are_refused_wherever_they_happen(edit):
    for private in (start(), train(start())):
        edit(private.model)
        with pytest.raises(UnsoundRelease, match="changed"):
            train(private, 40)
            private.spent()


def test_an_edit_in_the_middle_of_a_long_run_is_met():
    private = start(steps=400)
    with pytest.raises(UnsoundRelease, match="changed"):
        for batch in private.batches():
            private.step(losses(private, batch))
            with torch.no_grad():
                private.model[0].weight.data.mul_(1.0001)  # moves no version counter


def test_a_step_inside_the_loop_is_refused():
    private = start()
    with pytest.raises(UnsoundRelease, match="changed"):
        for batch in private.batches():
            private.step(losses(private, batch))
            with torch.no_grad():
                private.model[0].weight.add_(0.1)


def test_the_gradient_is_gone_after_the_step():
    private = start()
    for batch in private.batches(1):
        private.step(losses(private, batch))
        assert all(p.grad is None for p in private.model.parameters())
        before = copy.deepcopy(private.model.state_dict())
        private._update.optimizer.step()  # finds nothing to apply
        after = private.model.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)


class Remembers(nn.Module):
    """Copies a row into a buffer, or keeps a running mean of rows."""

    def __init__(self, what):
        super().__init__()
        self.linear = nn.Linear(5, 2)
        self.what = what
        self.register_buffer("memory", torch.zeros(5))

    def forward(self, x):
        if self.what == "row" and len(x):
            self.memory.copy_(x[0].detach())
        elif self.what == "mean":
            self.memory = 0.9 * self.memory + 0.1 * x.detach().mean(0)
        elif self.what == "new":
            self.register_buffer("late", x.detach().clone())
        elif self.what == "count":
            self.memory += 1
        return self.linear(x)


@pytest.mark.parametrize("what", ["row", "mean", "new"])
def test_buffers_that_remember_rows_are_refused(what):
    with pytest.raises(UnsupportedModel, match="buffers must not be written"):
        train(start(Remembers(what)))


def test_a_buffer_that_is_declared_public_may_change():
    private = train(start(Remembers("count"), public_buffers=["memory"]))
    assert private.model.memory[0] > 0
    assert private.spent().steps == 6


def test_frozen_weights_are_watched_too():
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 2))
    model[0].requires_grad_(False)
    private = start(model)
    with pytest.raises(UnsoundRelease, match=r"0\.bias"):
        for batch in private.batches():
            private.step(losses(private, batch))
            model[0].bias.add_(batch[0].mean())


def test_a_named_door_for_legitimate_edits():
    private = train(start(), 2)
    with private.replacing_weights():
        nn.init.zeros_(private.model[2].bias)
    train(private, 2)
    assert any("edited by hand after step 2" in text for text in private.spent().conditions)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_honest_training_is_left_alone(optimizer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.2), nn.LayerNorm(8), nn.Linear(8, 2))
    private = start(model, optimizer=optimizer(model.parameters(), lr=0.01), steps=120)
    train(private, 60)
    model.eval()
    model(dataset().tensors[0])
    model.train()
    train(private, 60)
    assert private.spent().steps == 120


@pytest.mark.parametrize("kind", ["averaged", "random"])
def test_the_released_iterate_is_in_the_model_at_the_end(kind):
    private = start(iterate=kind)
    train(private)
    released = private._iterates.result()
    for name, parameter in private.model.named_parameters():
        torch.testing.assert_close(parameter.detach(), released[name])
    last = train(start())
    same = [
        torch.equal(a, b)
        for a, b in zip(private.model.parameters(), last.model.parameters(), strict=True)
    ]
    assert kind == "random" or not all(same)
    train(private, 2)  # goes on from the last iterate, not from the average
    on = train(last, 2)
    for name, parameter in on.model.named_parameters():
        torch.testing.assert_close(private._iterates._hidden[name], parameter.detach())


def test_conditions_say_what_no_program_can_check():
    texts = "; ".join(train(start()).spent().conditions)
    assert "n = 64 is public" in texts
    assert "known seed" in texts
    assert "do not come from these rows" in texts
    assert "checked by gradient flow only" in texts
    private = start(seed=None, sampling_rate=0.25)
    private.check(lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"))
    texts = "; ".join(train(private).spent().conditions)
    assert "is public" not in texts and "seed" not in texts and "gradient flow" not in texts
    assert "64" not in str(private.ledger.config)  # nor does the ledger name n
