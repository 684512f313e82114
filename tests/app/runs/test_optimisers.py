"""Optimisers get their options; schedules have the shape they are named for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from winsor.app.runs.parts import (
    build_optimizer,
    build_schedule,
    check_optimizer,
    check_schedule,
)
from winsor.app.runs.reading import Part
from winsor.core.contract import ConfigurationError


@pytest.mark.parametrize(
    ("part", "kind", "expected"),
    [
        (Part("sgd", {"lr": 1}), torch.optim.SGD, {"lr": 1.0, "momentum": 0.0}),
        (Part("momentum", {"lr": 1, "nesterov": True}), torch.optim.SGD, {"momentum": 0.9}),
        (Part("adam", {"betas": [0.8, 0.9]}), torch.optim.Adam, {"lr": 1e-3, "betas": (0.8, 0.9)}),
        (Part("adamw", {"lr": 0.1}), torch.optim.AdamW, {"lr": 0.1, "weight_decay": 1e-2}),
    ],
)
def test_optimisers(part, kind, expected):
    optimizer = build_optimizer(part, nn.Linear(2, 2))
    assert type(optimizer) is kind
    assert {name: optimizer.defaults[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Part("lbfgs"), "optimizer.name must be one of sgd, momentum, adam, adamw"),
        (Part("sgd"), "optimizer.lr must be given"),
        (Part("sgd", {"lr": "1e-3"}), "optimizer.lr must be a number. Got '1e-3' instead"),
        (Part("sgd", {"lr": 0}), "optimizer.lr must be a positive finite number"),
        (Part("adam", {"beta": 0.9}), "optimizer.beta is not a setting"),
        (Part("adam", {"betas": [2.0, 0.9]}), "optimizer: Invalid beta parameter"),
        (Part("sgd", {"lr": 1, "nesterov": True}), "optimizer: Nesterov momentum requires"),
    ],
)
def test_bad_optimisers(part, message):
    with pytest.raises(ConfigurationError, match=message):
        check_optimizer(part)


def rates(part: Part, planned: int = 10) -> list[float]:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=2.0)
    scheduler = build_schedule(part, optimizer, planned)
    found = []
    for _ in range(planned):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_schedules():
    assert rates(Part("constant")) == [2.0] * 10
    assert rates(Part("linear", {"last": 0.5})) == pytest.approx([2 - 0.1 * k for k in range(10)])
    cosine = rates(Part("cosine"))
    assert cosine[0] == 2.0 and cosine[5] == pytest.approx(1.0) and sorted(cosine)[::-1] == cosine
    assert (
        rates(Part("steps", {"at": [0.3, 0.6], "factor": 0.5})) == [2.0] * 3 + [1.0] * 3 + [0.5] * 4
    )
    assert rates(Part("constant", {"warmup": 0.4})) == [0.5, 1.0, 1.5] + [2.0] * 7


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Part("cyclic"), "schedule.name must be one of constant, linear, cosine, steps"),
        (Part("steps"), "schedule.at must be given"),
        (Part("cosine", {"warmup": 1}), r"schedule.warmup must be in \[0, 1\)"),
        (Part("cosine", {"wramup": 0.1}), "schedule.wramup is not a setting"),
    ],
)
def test_bad_schedules(part, message):
    with pytest.raises(ConfigurationError, match=message):
        check_schedule(part)
