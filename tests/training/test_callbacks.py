"""Callbacks are told released values only, at the right moments; logs and lines say the same."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import winsor
from winsor.core.contract import ConfigurationError
from winsor.metrics import Accuracy
from winsor.rules import Flat, Quantile
from winsor.training import fit as home
from winsor.training import progress
from winsor.training.evaluation import Evaluation
from winsor.training.spending import Spending

BASE = {"step", "planned_steps", "epoch", "epsilon", "delta", "learning_rate"}


def fit(n=90, shift=0.0, rule=None, **changes):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=generator) + shift
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    arguments = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 6),
        "dataset": TensorDataset(x, (x[:, 0] > 0).long()),
        "rule": rule or Flat(1.0),
        "batch_size": 30,
        "epochs": 2,
        "delta": 1e-3,
        "noise_multiplier": 1.0,
        "seed": 0,
        "progress": False,
    }
    return winsor.fit(**{**arguments, **changes})


class Told:
    def __init__(self):
        self.moments = []

    def on_epoch(self, values):
        self.moments.append(("epoch", values["step"]))

    def on_end(self, values):
        self.moments.append(("end", values))


def test_a_function_is_told_of_every_step_and_an_object_of_what_it_asks_for():
    seen, told = [], Told()
    private = fit(callbacks=[seen.append, told])
    assert [values["step"] for values in seen] == [1, 2, 3, 4, 5, 6]
    assert all(set(values) == BASE for values in seen)
    assert told.moments[:2] == [("epoch", 3), ("epoch", 6)]
    (_, last) = told.moments[2]
    assert last["epsilon"] == private.spent().epsilon
    rates = [values["learning_rate"] for values in seen]
    assert rates == sorted(rates, reverse=True) and rates[-1] < rates[0]


def test_the_running_epsilon_bounds_the_spent_one_at_every_step_and_moves():
    pairs = []

    def compare(values):
        pairs.append((values["epsilon"], watched[0].spent().epsilon))

    watched = []
    real = home.make_private

    def catching(**arguments):
        watched.append(real(**arguments))
        return watched[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, "make_private", catching)
        patch.setattr(Spending, "_choose_marks", lambda *_: None)  # whatever the machine's pace
        fit(callbacks=compare)
    shown = [value for value, _ in pairs]
    assert all(value >= spent * (1 - 1e-9) for value, spent in pairs)
    assert shown == sorted(shown) and len(set(shown)) >= 5
    assert shown[-1] <= 1.05 * pairs[-1][1]


def test_nothing_that_was_not_released_reaches_a_callback():
    """Other rows, other losses, other gradients: with a rule that releases no more than gradients,
    callbacks are told the very same."""
    here, there = [], []
    one, other = fit(callbacks=here.append), fit(callbacks=there.append, shift=3.0)
    weights = [p.detach() for p in one.model.parameters()]
    assert not all(map(torch.equal, weights, other.model.parameters()))
    assert here == there
    assert all(type(value) in (int, float) for values in here for value in values.values())


def test_released_thresholds_and_metrics_are_told():
    seen, told = [], Told()
    look = Evaluation({"accuracy": Accuracy()}, noise_multiplier=5.0, times=2)
    fit(rule=Quantile(1.0), evaluate=look, callbacks=[seen.append, told])
    assert {"rule/threshold"} <= set(seen[0]) and "accuracy" not in seen[0]
    first = look.results[0].measured["accuracy"]
    assert seen[2]["accuracy"] == first.value and seen[2]["accuracy/low"] == first.low
    assert told.moments[-1][1]["accuracy"] == look.results[1].measured["accuracy"].value


def test_a_callback_cannot_change_what_the_next_is_told():
    seen = []
    fit(callbacks=[dict.clear, seen.append])
    assert all(set(values) == BASE for values in seen)


@pytest.mark.parametrize("bad", ["wandb", 3, Told])
def test_what_is_no_callback_is_refused(bad):
    with pytest.raises(ConfigurationError, match="functions of a dictionary"):
        fit(callbacks=[bad])


def test_callbacks_change_no_weight():
    plain, told = fit(), fit(callbacks=[lambda values: None])
    for one, other in zip(plain.model.parameters(), told.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_logger_has_a_line_for_each_epoch_and_the_end(caplog):
    with caplog.at_level(logging.INFO, logger="winsor"):
        private = fit()
    lines = [record.getMessage() for record in caplog.records if record.name == "winsor"]
    assert [line.split(":")[0] for line in lines] == ["epoch 1/2", "epoch 2/2", "finished"]
    assert "step 3/6" in lines[0] and "epsilon <= " in lines[0]
    assert str(private.spent()) in lines[-1]


def test_lines_where_the_output_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    fit(progress=True, noise_multiplier=None, epsilon=3.0)
    first, *steps, last = capsys.readouterr().out.splitlines()
    assert first == "training privately: 6 steps, epsilon 3 when done"
    assert [line.split("  ")[0] for line in steps] == [f"step {i}/6" for i in range(1, 7)]
    assert last.startswith("finished: step 6/6  epsilon <= ")


def test_few_lines_in_a_short_run(capsys):
    fit(progress=True)
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    fit(progress=True)
    out = capsys.readouterr().out
    assert "training privately" in out and "6/6" in out and "epsilon <= " in out


def test_the_page_about_callbacks_runs_as_printed(capsys, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "callbacks.md"
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)  # leave pytest's logging alone
    exec(compile(code, str(page), "exec"), {})
    out = capsys.readouterr().out
    assert "done, epsilon" in out and out.splitlines()[-1].startswith("3 ")
