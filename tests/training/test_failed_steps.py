"""A step that failed half-way is never finished by a second try."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import winsor
from winsor.core.contract import ProtocolError
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.source import NoiseOfStep, NoiseSource
from winsor.rules import Flat
from winsor.training.iterates import Iterates
from winsor.training.update import OptimizerUpdate

X = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
POINTS = {
    "rows are added": (Flat, "contributions"),
    "the ledger": (Ledger, "_write"),
    "the noise": (NoiseOfStep, "add"),
    "inside the noise": (NoiseSource, "add_slice"),
    "the update": (OptimizerUpdate, "apply"),
    "the optimiser": (OptimizerUpdate, "step_with"),
    "the rule's state": (Flat, "after"),
    "the iterates": (Iterates, "update"),
}


def arguments(ledger=None):
    torch.manual_seed(1)
    model = nn.Linear(4, 2)
    return {
        "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "dataset": TensorDataset(X, (X[:, 0] > 0).long()), "rule": Flat(0.7), "batch_size": 30,
        "steps": 5, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 3, "ledger": ledger,
        "iterate": "ema", "max_physical_batch_size": 12,
    }  # fmt: skip


def train(private, steps=None):
    for x, y in private.batches(steps):
        private.step(nn.functional.cross_entropy(private.model(x), y, reduction="none"))


@pytest.mark.parametrize("coupled", [False, True], ids=["rows added", "rows held"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", POINTS)
def test_a_step_that_failed_is_refused_and_a_resumed_one_is_exact(
    point, late, coupled, tmp_path, monkeypatch
):
    monkeypatch.setattr(Flat, "couples_rows", coupled)
    whole = winsor.make_private(**arguments())
    train(whole)
    ledger, checkpoint = tmp_path / "ledger.jsonl", tmp_path / "checkpoint.pt"
    private = winsor.make_private(**arguments(ledger))
    train(private, 2)
    private.save(checkpoint)
    kind, name = POINTS[point]
    honest = getattr(kind, name)

    def failing(*args, **kwargs):
        if late:
            honest(*args, **kwargs)
        raise OSError("once")

    with monkeypatch.context() as patch:
        patch.setattr(kind, name, failing)
        with pytest.raises(OSError, match="once"):
            train(private)
    tries = (train, lambda p: p.step(torch.zeros(1)), lambda p: p.save(tmp_path / "other.pt"))
    for again in tries:
        with pytest.raises(ProtocolError, match="must be done as a whole"):
            again(private)
    assert len(private.ledger) in (2, 3)
    private.detach()
    resumed = winsor.resume(checkpoint, **arguments(ledger))
    train(resumed)
    assert len(resumed.ledger) == 5
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_going_on_in_the_same_loop_is_refused(monkeypatch):
    """The batch of the step that failed was held, and would be added a second time."""
    monkeypatch.setattr(Flat, "couples_rows", True)
    private = winsor.make_private(**arguments())
    honest, failures = Ledger.record, []

    def fails_once(self, *args):
        if not failures:
            failures.append(1)
            raise OSError("once")
        return honest(self, *args)

    monkeypatch.setattr(Ledger, "record", fails_once)
    with pytest.raises(ProtocolError, match="must be done as a whole"):
        for x, y in private.batches():
            losses = nn.functional.cross_entropy(private.model(x), y, reduction="none")
            with contextlib.suppress(OSError):
                private.step(losses)
    assert len(private.ledger) == 0
