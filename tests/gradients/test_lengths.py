"""Lengths of rows and sums of cut rows, against explicit rows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from winsor.gradients.ghost import GhostEngine
from winsor.gradients.recorded_view import RecordedView


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


@pytest.mark.parametrize("order", [1, math.inf])
@pytest.mark.parametrize("cache", [1, 1 << 18])
def test_lengths_are_those_of_explicit_rows(view, order, cache, monkeypatch):
    monkeypatch.setattr("winsor.gradients.parameter_rows.NUMBERS_AT_ONCE", cache)
    assert isinstance(view, RecordedView)
    found, rows = view.lengths(order), explicit(view)
    for name, values in found.items():
        exact = rows[name].double().reshape(6, -1).norm(order, dim=1)
        torch.testing.assert_close(values, exact, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("bound", [1e-9, 0.02, 0.2, 10.0])
def test_a_cut_sum_is_the_sum_of_cut_rows(view, bound):
    weights = torch.linspace(0.0, 2.0, 6)
    rows = explicit(view)
    for name, value in view.cut_sum(weights, bound).items():
        w = weights.view(-1, *[1] * (rows[name].dim() - 1))
        exact = (rows[name] * w).clamp(-bound, bound).sum(0)
        torch.testing.assert_close(value, exact, rtol=1e-5, atol=1e-7 * max(1.0, bound))


def test_rows_that_are_not_finite_have_no_length_and_join_no_sum():
    model = nn.Linear(3, 2)
    engine = GhostEngine(model, dict(model.named_parameters()))
    engine.attach()
    engine.recording(True)
    x = torch.tensor([[1.0, 2.0, 3.0], [math.inf, 0.0, 0.0], [1e30, 1e30, 1e30], [0.5, 0.5, 0.5]])
    view = engine.view(model(x).sum(1))
    for order in (1, math.inf):
        found = view.lengths(order)["weight"]
        assert found[1] == 0 and found.isfinite().all()  # L1 of huge rows does not overflow
    total = view.cut_sum(torch.ones(4), 1.0)
    assert total["weight"][0].tolist() == [2.5, 2.5, 2.5]
    engine.detach()
