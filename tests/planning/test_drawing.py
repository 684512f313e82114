"""The ways of drawing for one budget: the numbers are those that a run would use."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from torch.utils.data import TensorDataset

import winsor
from winsor.app.commands.main import main
from winsor.charts.files import drawing as svg
from winsor.core.contract import ConfigurationError, UnsupportedRelation
from winsor.planning import drawing
from winsor.planning.drawing import Way, advice, chart, compare
from winsor.planning.plan import Question

WANTED = Question(n=2000, batch_size=40, epochs=2, epsilon=8.0, delta=1e-4)
WAYS = {way.name: way for way in compare(WANTED)}
OPTIONS = {
    "poisson": {"sampling": "poisson"},
    "allocation": {"sampling": "allocation"},
    "loader": {"sampling": "loader"},
    "cyclic": {"mechanism": winsor.Banded()},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_run_would_use_the_same_noise_and_steps(name):
    model = torch.nn.Linear(2, 1)
    private = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=TensorDataset(torch.zeros(WANTED.n, 2)), rule=winsor.rules.Flat(1.0),
        batch_size=WANTED.batch_size, epochs=WANTED.epochs, epsilon=WANTED.epsilon,
        delta=WANTED.delta, **OPTIONS[name],
    )  # fmt: skip
    way = WAYS[name]
    assert way.noise_multiplier == pytest.approx(private.noise_multiplier, rel=1e-3)
    assert way.steps == private.budget.planned_steps
    assert way.bands == getattr(private.sampler, "bands", 1)


def test_errors_are_against_poisson():
    assert WAYS["poisson"].error == 1.0
    assert WAYS["allocation"].error < 1.0 < WAYS["loader"].error
    assert WAYS["cyclic"].error < 0.8
    assert WAYS["cyclic"].memory == WAYS["cyclic"].bands - 1
    json.dumps([way.to_json() for way in WAYS.values()])


def test_the_advice_follows_the_numbers():
    assert "cyclic" in advice(list(WAYS.values()))
    one_band = Way("cyclic", 100, 1.0, 1.0, 1, 0)
    dear = [Way("poisson", 100, 1.0, 1.0, 1, 0), Way("loader", 100, 3.0, 3.0, 1, 0), one_band]
    assert "does not pay" in advice(dear)
    assert "weights: Poisson" in advice(dear)


def test_momentum_enters():
    found = {way.name: way for way in compare(WANTED, momentum=0.95)}
    assert found["cyclic"].error != WAYS["cyclic"].error
    assert found["allocation"].error == pytest.approx(WAYS["allocation"].error, rel=1e-6)


def test_the_picture_has_a_line_for_each_way():
    drawn = chart(WANTED, {1.0: list(WAYS.values()), 2.0: list(WAYS.values())})
    text = str(svg(drawn))
    for name in OPTIONS:
        assert name in text
    assert len(drawn.series) == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"momentum": 1.0}, "momentum"), ({"epochs": 0}, "epochs"), ({"delta": 0.1}, "delta")],
)
def test_what_makes_no_sense_is_refused(changes, words):
    given = {"n": 2000, "batch_size": 40, "epochs": 2, "epsilon": 8.0, "delta": 1e-4} | changes
    momentum = given.pop("momentum", 0.0)
    with pytest.raises(ConfigurationError, match=words):
        compare(Question(**given), momentum)


def test_another_relation_is_refused():
    with pytest.raises(UnsupportedRelation, match="add_or_remove_one"):
        compare(dataclasses.replace(WANTED, relation=winsor.Neighbouring.REPLACE_ONE))


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["plan", "--draw", *arguments])
    out, err = capsys.readouterr()
    return stop.value.code or 0, " ".join(out.split()), err


def test_the_command_shows_one_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    words = ("--n", "2e3", "--batch-size", "40", "--epochs", "2", "--epsilon", "8")
    code, out, err = run(capsys, *words, "--delta", "1e-4")
    assert (code, err) == (0, "")
    for name in OPTIONS:
        assert name in out
    assert "below Poisson" in out and "winsor.Banded()" in out
    code, out, _ = run(capsys, *words, "--delta", "1e-4", "--json")
    found = json.loads(out)
    assert code == 0 and len(found["ways"]) == 4
    code, _, err = run(capsys, *words, "--delta", "0.5")
    assert code == 2 and "delta" in err


def test_the_command_draws_a_picture(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(drawing, "PASSES", (1, 2))
    words = ("--n", "2e3", "--batch-size", "100", "--epochs", "2", "--epsilon", "8")
    code, out, _ = run(capsys, *words, "--delta", "1e-4", "--plot", str(tmp_path / "ways.svg"))
    assert code == 0 and "Picture" in out
    assert "<svg" in (tmp_path / "ways.svg").read_text()


def test_no_torch_is_loaded():
    code = "import sys, winsor.planning.drawing; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
