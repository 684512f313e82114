"""The bare step is the optimiser's own, to the last bit, and stands back where anyone watches."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from winsor.training.update import BareStep

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.3),
    "foreach": lambda p: torch.optim.SGD(p, lr=0.3, foreach=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, nesterov=True),
    "decay": lambda p: torch.optim.SGD(p, lr=0.3, weight_decay=0.1),
    "maximize": lambda p: torch.optim.SGD(p, lr=0.3, maximize=True),
    "tensor": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.3)),
    "groups": lambda p: torch.optim.SGD([{"params": p[:1], "lr": 0.1}, {"params": p[1:]}], lr=0.3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.3, amsgrad=True),
    "fused": lambda p: torch.optim.Adam(p, lr=0.3, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.3),
}


def built(make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3))
    return model, make(list(model.parameters()))


def gradients(model, seed):
    torch.manual_seed(seed)
    return {name: torch.randn_like(p) for name, p in model.named_parameters()}


def bare(model, optimizer, schedule=None, steps=4):
    step = BareStep(optimizer, dict(model.named_parameters()))
    for seed in range(steps):
        with torch.no_grad():
            step(gradients(model, seed))
        if schedule is not None:
            schedule.step()


def ordinary(model, optimizer, schedule=None, steps=4):
    for seed in range(steps):
        grad = gradients(model, seed)
        for name, parameter in model.named_parameters():
            parameter.grad = grad[name]
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_state_are_the_optimisers_own(name, scheduled):
    results = []
    for run in (bare, ordinary):
        model, optimizer = built(OPTIMIZERS[name])
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2) if scheduled else None
        run(model, optimizer, schedule)
        results.append((model, copy.deepcopy(optimizer.state_dict())))
    (model, state), (expected, state_expected) = results
    assert same(model, expected)
    assert str(state) == str(state_expected)
    assert all(p.grad is None for p in model.parameters())


def test_every_parameter_counts_the_change():
    model, optimizer = built(OPTIMIZERS["sgd"])
    before = [p._version for p in model.parameters()]
    bare(model, optimizer, steps=1)
    assert all(p._version > b for p, b in zip(model.parameters(), before, strict=True))


def test_the_ceremony_is_left_out_of_a_plain_step(monkeypatch):
    model, optimizer = built(OPTIMIZERS["sgd"])
    monkeypatch.setattr(type(optimizer), "_init_group", None)  # any torch step would need it
    bare(model, optimizer)


@pytest.mark.parametrize("where", ["pre", "post", "instance", "class", "global"])
def test_whoever_watches_the_step_sees_it(where, monkeypatch):
    model, optimizer = built(OPTIMIZERS["sgd"])
    step = BareStep(optimizer, dict(model.named_parameters()))
    seen, plain = [], optimizer.step
    handles = []
    note = lambda *_: seen.append([p.grad is not None for p in model.parameters()])  # noqa: E731
    if where == "pre":
        optimizer.register_step_pre_hook(note)
    elif where == "post":
        optimizer.register_step_post_hook(note)
    elif where == "global":
        handles = [register_optimizer_step_pre_hook(note)]
    else:
        target = optimizer if where == "instance" else type(optimizer)
        monkeypatch.setattr(target, "step", lambda *_: (note(), plain()))
    with torch.no_grad():
        step(gradients(model, 0))
    for handle in handles:
        handle.remove()
    expected, own = built(OPTIMIZERS["sgd"])
    assert seen and all(seen[0])
    monkeypatch.undo()
    ordinary(expected, own, steps=1)
    assert same(model, expected)


def test_a_replaced_step_under_a_scheduler_is_called():
    model, optimizer = built(OPTIMIZERS["sgd"])
    seen, plain = [], optimizer.step

    def marked(self):
        seen.append(1)
        return plain()

    optimizer.step = marked.__get__(optimizer)
    torch.optim.lr_scheduler.StepLR(optimizer, 2)
    bare(model, optimizer, steps=1)
    assert seen


@pytest.mark.parametrize("scale", [1 / 256, 2.0, 1 / 100])
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "rmsprop"])
def test_a_scale_is_that_of_the_gradient_to_the_last_bit(name, scale):
    """Powers of two meet the learning rate of plain SGD, all others the gradient itself."""
    (model, optimizer), (other, theirs) = built(OPTIMIZERS[name]), built(OPTIMIZERS[name])
    ours = BareStep(optimizer, dict(model.named_parameters()))
    step = BareStep(theirs, dict(other.named_parameters()))
    for seed in range(4):
        grad = gradients(model, seed)
        scaled = {name: g * scale for name, g in grad.items()}
        with torch.no_grad():
            ours(grad, scale)
            step(scaled)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
