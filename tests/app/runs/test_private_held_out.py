"""`winsor train` on held-out rows that are private too: one look, through the door, kept."""

from __future__ import annotations

import json

import pytest
from tiny_runs import table

from winsor.app.runs import tasks
from winsor.app.runs.assemble import check
from winsor.app.runs.compare import Comparison
from winsor.app.runs.config import from_table
from winsor.app.runs.execute import execute
from winsor.app.runs.folder import RunFolder
from winsor.app.runs.progress import Quiet, shown_result
from winsor.app.runs.verifying import disagreements
from winsor.core.accounting import certify
from winsor.core.contract import ConfigurationError
from winsor.core.ledger.ledger import Ledger


def private(**changes):
    return from_table(table(record={"held_out_epsilon": 0.5}, **changes))


class Watching(Quiet):
    """Keeps every row that an observer is shown."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def recorded(self, run, row):
        self.rows.append(row)


def test_the_only_metrics_are_measured_at_the_end_and_paid_for(tmp_path):
    watching = Watching()
    result = execute(private(), tmp_path / "run", watching)
    assert watching.rows and not any("held_out" in row for row in watching.rows)
    found = result["held_out"]
    assert found["accuracy, low"] <= found["accuracy"] <= found["accuracy, high"]
    assert found["accuracy, high"] - found["accuracy, low"] > 0.1  # of 48 rows
    assert result["held_out_guarantee"] in shown_result(result)
    looks = Ledger.read(tmp_path / "run" / "held_out.jsonl")
    assert 0.49 < certify(looks.history(), 1e-3).epsilon <= 0.5
    assert len(looks) == 1 and disagreements(tmp_path / "run") == []
    assert len(Ledger.read(tmp_path / "run" / "ledger.jsonl")) == 12  # the training's own steps
    exact = execute(from_table(table()), tmp_path / "exact", Quiet())["held_out"]["accuracy"]
    assert found["accuracy"] != exact


class Killed(Exception):
    pass


def _unless(die, name):
    """Writes files of a run, but dies at the one called ``name``."""
    real = RunFolder.replace
    return lambda run, file, *rest, **more: (
        die() if file == name else real(run, file, *rest, **more)
    )


@pytest.mark.parametrize("kept", [True, False])
def test_a_killed_run_looks_once(tmp_path, monkeypatch, kept):
    """Killed after the look: the same numbers again. Killed inside it: the look is spent."""
    path = tmp_path / "run"

    def die(*_):
        raise Killed

    with monkeypatch.context() as patch:
        if kept:
            patch.setattr("winsor.app.runs.directory.RunDirectory.finish", die)
        else:
            patch.setattr("winsor.app.runs.folder.RunFolder.replace", _unless(die, tasks.KEPT))
        with pytest.raises(Killed):
            execute(private(), path, Quiet())
    before = json.loads((path / "held_out.json").read_text()) if kept else None
    result = execute(private(), path, Quiet())
    assert len(Ledger.read(path / "held_out.jsonl")) == 1
    if before is not None:
        assert result["held_out"] == before["metrics"]
    else:
        assert result["held_out"] == {} and "killed" in result["held_out_guarantee"]


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"source": "synthetic", "task": "regression", "options": {"rows": 240}}},
        {"record": {"held_out_epsilon": -1.0}},
    ],
)
def test_what_has_no_proof_is_refused(changes):
    given = table(**{"record": {"held_out_epsilon": 0.5}, **changes})
    if given["data"].get("task") == "regression":
        given["data"].pop("classes", None)
    with pytest.raises(ConfigurationError, match="held_out_epsilon"):
        check(from_table(given))


def test_what_would_fail_at_the_end_fails_before_the_start(tmp_path):
    none = private(data={"held_out_fraction": 0.0})
    with pytest.raises(ConfigurationError, match="must come with held-out rows"):
        execute(none, tmp_path / "none", Quiet())
    loose = private(data={"held_out_fraction": 0.9}, budget={"delta": 0.01})  # 212 of 240 rows
    with pytest.raises(ConfigurationError, match="delta must be below 1/n = 0.0047"):
        execute(loose, tmp_path / "loose", Quiet())
    assert not (tmp_path / "none" / "ledger.jsonl").exists()


def test_a_comparison_would_look_too_often(tmp_path):
    given = table(record={"held_out_epsilon": 0.5})
    given["compare"] = {"seeds": [0, 1], "variants": [{"name": "one"}]}
    with pytest.raises(ConfigurationError, match="every run would look"):
        Comparison.from_table(given, tmp_path)
