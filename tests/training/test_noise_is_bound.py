"""The same noise never covers two different sums: runs that are repeated, resumed or changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.core.contract import LedgerError
from winsor.rules import Flat
from winsor.tables.linear import PrivateLogisticRegression, total_guarantee
from winsor.tables.means import clipped_mean


def run(path, labels_flipped=False, **changes):
    torch.manual_seed(0)
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    labels = (x[:, 0] > 0).long()
    model = nn.Linear(5, 2)
    options = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataset": TensorDataset(x, 1 - labels if labels_flipped else labels),
        "rule": Flat(1.0),
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "steps": 4,
        "batch_size": 16,
        "seed": 0,
        "ledger": path,
    }
    return winsor.make_private(**{**options, **changes})


def train(private, steps=None):
    for x, y in private.batches(steps):
        private.step(F.cross_entropy(private.model(x), y, reduction="none"))
    return private


def test_a_fresh_run_under_a_key_of_the_ledger_is_refused(tmp_path):
    path = tmp_path / "ledger"
    train(run(path)).detach()
    with pytest.raises(LedgerError, match="already holds releases"):
        train(run(path, labels_flipped=True))


def test_repeating_a_run_is_free_and_other_labels_are_refused(tmp_path):
    path = tmp_path / "ledger"
    first = train(run(path))
    weights = [p.detach().clone() for p in first.model.parameters()]
    first.detach()
    again = train(run(path, resume=True))
    assert len(again.ledger) == 4
    assert all(torch.equal(a, b) for a, b in zip(weights, again.model.parameters(), strict=True))
    again.detach()
    with pytest.raises(LedgerError, match="another value"):
        train(run(path, resume=True, labels_flipped=True))


def test_another_learning_rate_on_resume_is_refused_or_paid_for(tmp_path):
    path = tmp_path / "ledger"
    private = train(run(path), 2)
    state, model = private.state_dict(), private.model.state_dict()
    model = {name: value.clone() for name, value in model.items()}
    train(private, 2)
    private.detach()

    def resumed(repeat):
        other = run(path)
        other.model.load_state_dict(model)
        other.load_state_dict(state, repeat=repeat)
        other._update.optimizer.param_groups[0]["lr"] = 0.5
        return other

    first = resumed(repeat=True)
    with pytest.raises(LedgerError, match="repeat=False"):
        train(first, 2)
    first.detach()
    second = train(resumed(repeat=False), 2)
    assert len(second.ledger) == 4 + 2  # the two steps are paid for again, under a key of their own
    assert len(second.ledger.runs) == 2


def test_a_key_file_of_other_data_is_not_used_in_silence(tmp_path):
    mix = {"mechanism": winsor.ModelMix(0.2), "seed": None}
    path = tmp_path / "ledger.jsonl"
    train(run(path, **mix)).detach()
    with pytest.raises(LedgerError, match="already holds releases"):
        train(run(path, labels_flipped=True, **mix))


def test_seeded_estimators_draw_other_noise_for_other_data():
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)).numpy() / 4
    one = clipped_mean(x, radius=1.0, epsilon=1.0, random_state=0)
    two = clipped_mean(x + 1e-9, radius=1.0, epsilon=1.0, random_state=0)
    assert abs(one.estimate - two.estimate).max() > 1e-6  # not the noiseless difference
    same = clipped_mean(x, radius=1.0, epsilon=1.0, random_state=0)
    assert (one.estimate == same.estimate).all()


def test_equal_keys_do_not_add_up():
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)).numpy() / 4
    y = (x[:, 0] > 0).astype(int)
    fits = [PrivateLogisticRegression(epsilon=1.0, random_state=0).fit(x, y) for _ in range(2)]
    with pytest.raises(LedgerError, match="keys of their own"):
        total_guarantee(*fits)
    other = PrivateLogisticRegression(epsilon=1.0, random_state=0).fit(x, 1 - y)
    assert total_guarantee(fits[0], other).epsilon > fits[0].epsilon_
