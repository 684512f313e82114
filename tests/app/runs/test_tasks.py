"""Losses per row, and metrics that agree with their definitions however rows are batched."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_runs import table
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from winsor.app.runs import tasks
from winsor.app.runs.config import from_table
from winsor.app.runs.data import Data
from winsor.app.runs.tasks import evaluate, make_task, probe
from winsor.core.contract import ConfigurationError

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(25, 4, generator=GENERATOR)
LABELS = torch.randint(3, (25,), generator=GENERATOR)
REAL = torch.randn(25, generator=GENERATOR)


def task(kind: str, loss: str = "auto"):
    return make_task(from_table(table(data={"task": kind}, training={"loss": loss})))


class Plain(Dataset):
    """The same rows without their tensors in sight."""

    def __init__(self, *tensors):
        self.tensors_ = tensors

    def __len__(self):
        return len(self.tensors_[0])

    def __getitem__(self, i):
        return tuple(tensor[i] for tensor in self.tensors_)


@pytest.mark.parametrize("wrap", [TensorDataset, Plain])
def test_classification(wrap, monkeypatch):
    monkeypatch.setattr(tasks, "EVALUATION_ROWS", 7)
    model = nn.Linear(4, 3)
    found = evaluate(task("classification"), model, wrap(X, LABELS))
    assert found["accuracy"] == int((model(X).argmax(1) == LABELS).sum()) / 25
    assert found["loss"] == pytest.approx(F.cross_entropy(model(X), LABELS).item(), rel=1e-5)


def test_regression(monkeypatch):
    monkeypatch.setattr(tasks, "EVALUATION_ROWS", 7)
    model = nn.Linear(4, 1)
    found = evaluate(task("regression"), model, TensorDataset(X, REAL))
    errors = (model(X)[:, 0] - REAL).detach()
    assert found["rmse"] == pytest.approx(float(errors.square().mean().sqrt()), rel=1e-5)
    assert found["mae"] == pytest.approx(float(errors.abs().mean()), rel=1e-5)
    r2 = 1 - errors.square().mean() / REAL.var(unbiased=False)
    assert found["r2"] == pytest.approx(float(r2), rel=1e-4)
    squared, huber = task("regression", "squared"), task("regression", "huber")
    torch.testing.assert_close(squared.losses(model, (X, REAL)), errors.square())
    assert (huber.losses(model, (X, REAL)) <= errors.square() / 2 + 1e-6).all()


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 5)

    def forward(self, tokens):
        return self.table(tokens)


def test_language_ignores_padding():
    torch.manual_seed(0)
    model, kind = Bigram(), task("language")
    tokens = torch.tensor([[0, 1, 2, 3], [4, 2, -1, -1]])
    losses = kind.losses(model, (tokens,)).detach()
    by_hand = F.cross_entropy(model(torch.tensor([4])), torch.tensor([2]))
    torch.testing.assert_close(losses[1], by_hand.detach())
    found = evaluate(kind, model, TensorDataset(tokens))
    total = 3 * losses[0] + losses[1]
    assert found["loss"] == pytest.approx(float(total) / 4, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    empty = torch.full((1, 4), -1)
    assert kind.losses(model, (empty,)).tolist() == [0.0]


def test_evaluation_leaves_the_mode_as_it_was_and_draws_nothing():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)).train()
    before = torch.get_rng_state()
    evaluate(task("classification"), model, TensorDataset(X, LABELS))
    assert model.training and torch.equal(before, torch.get_rng_state())


def test_a_diverged_model_still_has_numbers():
    model = nn.Linear(4, 1)
    nn.init.constant_(model.weight, float("nan"))
    found = evaluate(task("regression"), model, TensorDataset(X, REAL))
    assert found == {"rmse": 1e30, "mae": 1e30, "r2": -1e30}
    model = nn.Linear(4, 3)
    nn.init.constant_(model.weight, float("nan"))
    assert evaluate(task("classification"), model, TensorDataset(X, LABELS))["loss"] == 1e30


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("classification", nn.Linear(5, 3)),
        ("classification", nn.Sequential(nn.Linear(4, 3), nn.Flatten(0))),
        ("regression", nn.Linear(4, 2)),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_training(kind, model):
    data = Data(TensorDataset(X), None, (4,), 3, "")
    with pytest.raises(ConfigurationError, match="model"):
        probe(task(kind), model, data, language=False)


def test_losses_belong_to_tasks():
    with pytest.raises(ConfigurationError, match="training.loss must be one of auto, cross_entr"):
        task("classification", "huber")
