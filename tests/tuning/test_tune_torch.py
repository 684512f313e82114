"""Tuning a PyTorch training: the example of docs/tuning-and-metrics.md, small."""

from __future__ import annotations

import torch
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import winsor
from winsor.core.ledger import Ledger
from winsor.metrics import Accuracy
from winsor.tuning import LogUniform, PrivateScore, tune


def test_a_training_is_tuned_with_its_own_ledger(tmp_path):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(600, 4, generator=generator)
    y = (X[:, 0] > 0).long()

    def train(setting, job):
        torch.manual_seed(job.seed)
        model = torch.nn.Linear(4, 2)
        private = winsor.make_private(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=setting["lr"]),
            dataset=TensorDataset(X, y),
            rule=winsor.rules.Flat(setting["clip"]),
            noise_multiplier=job.noise_multiplier,
            steps=30,
            batch_size=60,
            delta=job.delta,
        )
        for rows, labels in private.batches():
            private.step(cross_entropy(model(rows), labels, reduction="none"))
        guesses = model(X).argmax(1).numpy()
        weights = model.state_dict()
        return weights, private.ledger, job.measure(private.ledger, targets=y, predictions=guesses)

    result = tune(
        train,
        {"lr": LogUniform(0.2, 5.0), "clip": [0.1, 1.0]},
        trial=lambda nm: [(PoissonSampledDpEvent(0.1, GaussianDpEvent(nm)), 30)],
        score=PrivateScore(Accuracy(), 20.0),
        epsilon=3.0,
        delta=1e-5,
        trials=3,
        directory=tmp_path,
        random_state=0,
    )
    assert 2.95 <= result.guarantee.epsilon <= 3.0 and result.best_score > 0.5
    torch.nn.Linear(4, 2).load_state_dict(result.best_model)
    assert len(Ledger.read(tmp_path / "ledger.jsonl")) == 1
    assert not (tmp_path / "sealed").exists()
