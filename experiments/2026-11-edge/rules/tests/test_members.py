"""Sums over some rows of a batch, against explicit rows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from winsor.rules.members import sum_of

from winsor.gradients.ghost import GhostEngine


def models():
    torch.manual_seed(0)
    yield "linear", nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), torch.randn(6, 5)
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    yield "convolution", convolution, torch.randn(6, 1, 4, 4)
    yield "tokens", nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3)), (
        torch.randint(0, 9, (6, 3))
    )  # fmt: skip


CASES = {name: (model, x) for name, model, x in models()}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def view(request):
    model, x = request.param
    engine = GhostEngine(model, dict(model.named_parameters()))
    engine.attach()
    engine.recording(True)
    losses = F.cross_entropy(model(x), torch.arange(6) % 3, reduction="none")
    yield engine.view(losses)
    engine.detach()


def explicit(view):
    """name -> all rows."""
    rows: dict[str, list[torch.Tensor]] = {}

    def keep(chunk):
        for name, value in chunk.items():
            rows.setdefault(name, []).append(value.clone())
        return chunk

    view.map_sum(keep)
    return {name: torch.cat(parts) for name, parts in rows.items()}


def test_rows_that_are_not_finite_join_no_sum():
    model = nn.Linear(3, 2)
    engine = GhostEngine(model, dict(model.named_parameters()))
    engine.attach()
    engine.recording(True)
    x = torch.tensor([[1.0, 2.0, 3.0], [math.inf, 0.0, 0.0], [1e30, 1e30, 1e30], [0.5, 0.5, 0.5]])
    view = engine.view(model(x).sum(1))
    assert torch.equal(sum_of(view, torch.tensor([0, 1]))["weight"][0], x[0])
    engine.detach()


@pytest.mark.parametrize("members", [[0], [1, 4], [5, 2, 3], list(range(6))])
def test_the_sum_of_some_rows(view, members):
    rows = explicit(view)
    for name, value in sum_of(view, torch.tensor(members)).items():
        torch.testing.assert_close(value, rows[name][members].sum(0), rtol=1e-5, atol=1e-6)
