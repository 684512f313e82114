"""`winsor tune`: settings in TOML, and a directory that resumes and holds what was paid for."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
import tomli_w
import torch
from tiny_runs import table

from winsor.app.commands.main import main
from winsor.app.runs.folder import RunError
from winsor.app.tuning import configured
from winsor.app.tuning.configured import ConfiguredTuning
from winsor.app.tuning.directory import TuningDirectory
from winsor.core.accounting import flatten
from winsor.core.contract import ConfigurationError
from winsor.core.ledger.ledger import Ledger
from winsor.tuning.selection import SelectionDpEvent

SPACE = {"optimizer.lr": {"log_uniform": [0.05, 5.0]}, "rule": {"max_grad_norm": [0.1, 1.0]}}


def tuned(tune=None, **changes):
    """A tiny run with a [tune] table."""
    given = {"space": SPACE, "trials": 4, "score_std": 0.1} | (tune or {})
    budget = {"epsilon": 5.0, "delta": 1e-3, "noise_multiplier": None}
    base = table(**{"budget": budget, "training": {"steps": 4}} | changes)
    base["budget"] = {k: v for k, v in base["budget"].items() if v is not None}
    return {**base, "tune": given}


def execute(path, given):
    return TuningDirectory(path).execute(ConfiguredTuning.from_table(given), tomli_w.dumps(given))


def command(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in arguments])
    out, err = capsys.readouterr()
    return stop.value.code or 0, out, err


def test_the_best_is_all_that_a_directory_holds(tmp_path, capsys):
    path, file = tmp_path / "tuning", tmp_path / "tune.toml"
    file.write_text(tomli_w.dumps(tuned()))
    code, out, err = command(capsys, "tune", file, "--run", path, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    names = {one.name for one in path.iterdir()}
    assert names == {"tune.toml", "tune.json", "ledger.jsonl", "model.pt", "result.json"}
    assert 4.95 <= result["epsilon"] <= 5.0 and set(result["setting"]) == {
        "optimizer.lr",
        "rule.max_grad_norm",
    }
    assert "seconds" not in result and "importance" not in result
    ((event, count),) = Ledger.read(path / "ledger.jsonl").history()
    assert isinstance(event, SelectionDpEvent) and count == 1
    assert any("measured in each trial" in condition for condition in result["conditions"])
    again = command(capsys, "tune", "--run", path)
    assert again[0] == 0 and "score on private held-out rows" in again[1]
    assert len(Ledger.read(path / "ledger.jsonl")) == 1


class Killed(Exception):
    pass


def dying(monkeypatch, after):
    """Trials are killed after so many have begun."""
    real, left = configured.assemble, [after]

    def mortal(config, directory, data):
        if config.budget.noise_multiplier != 1.0:  # a trial, not the rehearsal of its price
            if left[0] == 0:
                raise Killed
            left[0] -= 1
        return real(config, directory, data)

    monkeypatch.setattr(configured, "assemble", mortal)


@pytest.mark.parametrize("release", ["best", "all"])
def test_killed_and_resumed_it_ends_the_same(tmp_path, monkeypatch, release):
    given = tuned({"trials": 6, "release": release, "score": "public"})
    whole = execute(tmp_path / "whole", given)
    path = tmp_path / "killed"
    for after in (0, 1, 2):
        with monkeypatch.context() as patch:
            dying(patch, after)
            try:
                execute(path, given)
            except Killed:
                assert (path / "sealed").exists() and not (path / "result.json").exists()
    resumed = execute(path, given)
    assert resumed == whole
    assert not (path / "sealed").exists()
    one, two = (torch.load(p / "model.pt", weights_only=True) for p in (path, tmp_path / "whole"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_kill_after_the_result_leaves_nothing_behind(tmp_path, monkeypatch):
    def die(self):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("winsor.tuning.trials.Seal.destroy", die)
        with pytest.raises(Killed):
            execute(tmp_path / "t", tuned())
    assert TuningDirectory(tmp_path / "t").disagreements() == [
        "sealed/ is left although the tuning is finished: it holds key and trials"
    ]
    result = execute(tmp_path / "t", tuned())
    assert result["release"] == "best" and not (tmp_path / "t" / "sealed").exists()
    assert TuningDirectory(tmp_path / "t").disagreements() == []


def test_all_trials_are_shown_where_they_were_paid_for(tmp_path, capsys):
    path, file = tmp_path / "tuning", tmp_path / "tune.toml"
    file.write_text(tomli_w.dumps(tuned({"release": "all", "score": "public"})))
    code, out, _ = command(capsys, "tune", file, "--run", path)
    assert code == 0 and "What mattered" in out
    rows = json.loads((path / "trials.json").read_text())
    assert len(rows) == 4 and all(re.search(f"{row['score']:.4g}", out) for row in rows)
    (events,) = ([n for _, n in flatten(Ledger.read(path / "ledger.jsonl").history())],)
    assert sum(events) == 16  # four trials of four steps
    assert "scores computed on public rows" in out


def test_verify_and_report_know_a_tuning(tmp_path, capsys):
    path = tmp_path / "t"
    execute(path, tuned())
    assert command(capsys, "verify", path)[0] == 0
    code, _, err = command(capsys, "report", path)
    assert code == 2 and "that of a tuning" in err
    result = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps({**result, "epsilon": 1.0}))
    code, out, _ = command(capsys, "verify", path)
    assert code == 1 and "result.json is not the file that the ledger names" in out
    with pytest.raises(RunError, match="do not agree"):
        execute(path, tuned())


def test_another_configuration_cannot_resume(tmp_path):
    execute(tmp_path / "t", tuned())
    with pytest.raises(RunError, match="another configuration"):
        execute(tmp_path / "t", tuned({"trials": 5}))


def test_training_rows_may_score_and_the_file_itself_be_a_trial(tmp_path):
    """No row is held out; with a share of nearly all, the winner is the file as it is written."""
    given = tuned(
        {"score": "training", "as_written": 0.999, "eta": 4.0},
        optimizer={"name": "sgd", "lr": 0.3},
        rule={"name": "flat", "max_grad_norm": 0.5},
    )
    given["data"]["held_out_fraction"] = 0.0
    result = execute(tmp_path / "t", given)
    assert result["setting"] == {"optimizer.lr": 0.3, "rule.max_grad_norm": 0.5}
    assert result["score_on"] == "training rows, with noise"
    assert any("measured in each trial" in condition for condition in result["conditions"])
    ((event, _),) = Ledger.read(tmp_path / "t" / "ledger.jsonl").history()
    assert event.trials.eta == 4.0 and len(event.trial) == 2  # steps, and the score
    for score in ("private", "public"):
        with pytest.raises(ConfigurationError, match="leave rows that score"):
            execute(tmp_path / score, {**given, "tune": {**given["tune"], "score": score}})


def test_as_written_asks_for_values_that_are_written():
    given = tuned({"as_written": 0.5}, optimizer={"name": "sgd"})
    given["optimizer"].pop("lr", None)
    with pytest.raises(ConfigurationError, match="optimizer.lr must have a value of its own"):
        ConfiguredTuning.from_table(given)


def test_regression_is_scored_by_r2(tmp_path):
    given = tuned(
        {"target_range": [-20.0, 20.0]},
        data={"source": "synthetic", "task": "regression", "options": {"rows": 240}},
    )
    given["data"].pop("classes", None)
    result = execute(tmp_path / "t", given)
    assert result["score"] <= 1
    del given["tune"]["target_range"]
    with pytest.raises(ConfigurationError, match="target_range"):
        execute(tmp_path / "u", given)


@pytest.mark.parametrize(
    "given",
    [
        {k: v for k, v in tuned().items() if k != "tune"},
        tuned({"space": {"training.steps": [1, 2]}}),
        tuned({"space": {"lr": [0.1]}}),
        tuned({"space": {"optimizer.lr": {"normal": [0, 1]}}}),
        tuned({"space": {}}),
        tuned({"release": "some"}),
        tuned({"score": "secret"}),
        tuned({"trials": 0}),
        tuned({"as_written": 1.0}),
        tuned({"unknown": 1}),
        tuned(budget={"noise_multiplier": 1.0, "delta": 1e-3}),
        tuned(mechanism={"name": "modelmix", "tau_over_lr": 0.1}),
        tuned(record={"monitor": "private"}),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_written(given):
    with pytest.raises(ConfigurationError):
        ConfiguredTuning.from_table(given)


def test_settings_that_change_what_a_trial_spends_are_refused(tmp_path, monkeypatch):
    real = configured._planned

    def dearer_with_a_large_threshold(config, data):
        plan = real(config, data)
        small = config.rule.options["max_grad_norm"] < 1
        return plan if small else dataclasses.replace(plan, steps=plan.steps + 1)

    monkeypatch.setattr(configured, "_planned", dearer_with_a_large_threshold)
    with pytest.raises(ConfigurationError, match="spend otherwise"):
        execute(tmp_path / "t", tuned())
    assert not (tmp_path / "t").exists()


def test_a_command_without_a_configuration_says_what_is_missing(capsys, tmp_path):
    assert "give CONFIG.toml" in command(capsys, "tune")[2]
    assert "without tune.toml" in command(capsys, "tune", "--run", tmp_path)[2]
