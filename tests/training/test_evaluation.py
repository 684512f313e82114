"""`fit(..., evaluate=...)`: looks at private rows through the door, inside the same epsilon."""

from __future__ import annotations

import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent
from torch.utils.data import TensorDataset

import winsor
from winsor.core.contract import BudgetExceeded, ConfigurationError
from winsor.metrics import AUC, Accuracy
from winsor.training.evaluation import Evaluation

X = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0))
ROWS = TensorDataset(X, (X[:, 0] > 0).long())


def fit(evaluate, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    given = {
        "batch_size": 100, "steps": 10, "epsilon": 3.0, "delta": 1e-5, "progress": False, **options,
    }  # fmt: skip
    return winsor.fit(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        dataset=ROWS,
        rule=winsor.rules.Flat(1.0),
        evaluate=evaluate,
        **given,
    )


def test_looks_are_in_the_ledger_and_inside_the_epsilon():
    evaluate = Evaluation({"accuracy": Accuracy(), "auc": AUC()}, noise_multiplier=30.0, times=3)
    private = fit(evaluate)
    assert [look.step for look in evaluate.results] == [4, 7, 10]
    assert 2.97 <= private.spent().epsilon <= 3.0
    assert (GaussianDpEvent(30.0), 3) in private.ledger.history()
    assert len(private.ledger) == 13
    assert fit(None).noise_multiplier < private.noise_multiplier
    last = evaluate.results[-1].measured["accuracy"]
    assert last.low < last.value < last.high
    with torch.no_grad():
        right = (private.model(X).argmax(1) == ROWS.tensors[1]).double().mean()
    assert abs(float(right) - last.value) < 0.1


def test_the_bar_shows_only_what_passed_the_door(capsys):
    evaluate = Evaluation(Accuracy(), noise_multiplier=30.0, rows=ROWS)
    fit(evaluate, progress=True)
    out = capsys.readouterr().out
    assert "loss" not in out
    latest = evaluate.results[-1].measured["Accuracy"]
    numbers = {"Accuracy": latest.value, "Accuracy/low": latest.low, "Accuracy/high": latest.high}
    assert evaluate.as_numbers() == numbers


def test_the_last_look_is_at_the_model_that_is_released():
    seen = []

    def columns(model, batch):
        seen.append(model.weight.detach().clone())
        return {"targets": batch[1], "predictions": model(batch[0]).argmax(1)}

    evaluate = Evaluation(Accuracy(), noise_multiplier=30.0, times=2, columns=columns)
    private = fit(evaluate, iterate="averaged")
    assert torch.equal(seen[-1], private.model.weight)
    assert private.model.training


def test_noise_that_is_given_is_checked_against_the_budget():
    evaluate = Evaluation(Accuracy(), noise_multiplier=1.0)
    with pytest.raises(BudgetExceeded, match="training and evaluation"):
        fit(evaluate, noise_multiplier=1.0)
    private = fit(evaluate, noise_multiplier=1.0, epsilon=None)
    assert private.spent().epsilon > 3.0
    with pytest.raises(ConfigurationError, match="number of steps"):
        fit(Evaluation(Accuracy(), noise_multiplier=30.0, times=11))
