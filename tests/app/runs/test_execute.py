"""The loop: the same end however often it is interrupted, and nothing private on the way."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal

import numpy as np
import pytest
import torch
from tiny_runs import table, without_times

from winsor.app.runs import execute as module
from winsor.app.runs.config import from_table
from winsor.app.runs.directory import RunDirectory
from winsor.app.runs.execute import Interrupted, execute, marks, passed
from winsor.app.runs.folder import RunError
from winsor.app.runs.progress import Quiet
from winsor.core.contract import ConfigurationError
from winsor.core.ledger.ledger import Ledger


def go(path, **changes):
    return execute(from_table(table(**changes)), path, Quiet())


def weights(path):
    return torch.load(path / "model.pt", weights_only=True)


def same_end(one, two):
    a, b = weights(one), weights(two)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert without_times(RunDirectory(one).metrics()) == without_times(RunDirectory(two).metrics())


class StopAt(Quiet):
    """Raises, or sends itself a signal, after some step."""

    def __init__(self, step, number=None):
        super().__init__()
        self.step, self.number = step, number

    def stepped(self, run):
        if run.private.steps_done == self.step:
            if self.number is None:
                raise MemoryError("killed")
            os.kill(os.getpid(), self.number)


def test_a_run_leaves_what_the_directory_promises(tmp_path):
    result = go(tmp_path / "run", budget={"epsilon": 4.0, "noise_multiplier": None})
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "config.toml",
        "config.json",
        "environment.json",
        "ledger.jsonl",
        "metrics.jsonl",
        "model.pt",
        "result.json",
    }
    assert 0.99 * 4 < result["epsilon"] <= 4 and result["steps"] == 12
    assert len(Ledger.read(tmp_path / "run" / "ledger.jsonl")) == 12
    rows = RunDirectory(tmp_path / "run").metrics()
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert [row["step"] for row in rows if "held_out" in row] == [3, 6, 9, 12]
    assert rows[-1]["held_out"] == result["held_out"]
    assert not any("not_private" in row for row in rows)
    session = RunDirectory(tmp_path / "run").environment()[0]
    assert session["packages"]["torch"] == torch.__version__


def test_a_finished_run_is_not_run_again(tmp_path):
    first = go(tmp_path / "run")
    before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    assert go(tmp_path / "run") == first
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before


@pytest.mark.parametrize("mechanism", ["gaussian", "modelmix"])
def test_interrupted_at_many_moments_and_resumed(tmp_path, mechanism):
    changes = {"reproducible_noise": False, "training": {"max_physical_batch_size": 16}}
    if mechanism == "modelmix":
        changes["mechanism"] = {"name": "modelmix", "tau_over_lr": 0.1}
        changes["optimizer"] = {"name": "sgd", "lr": 0.5}
    config = from_table(table(**changes))
    path, twin = tmp_path / "run", tmp_path / "twin"
    with pytest.raises(MemoryError):
        execute(config, path, StopAt(1))
    shared_start(path, twin)
    straight = execute(config, twin, Quiet())
    for step in (2, 5, 6, 11):
        with pytest.raises(MemoryError):
            execute(config, path, StopAt(step))
    resumed = execute(config, path, Quiet())
    same_end(path, twin)
    assert resumed["epsilon"] == straight["epsilon"]
    assert len(Ledger.read(path / "ledger.jsonl")) == 12  # repeated steps are paid once
    assert len(RunDirectory(path).environment()) == 6


def shared_start(path, twin):
    """A copy of the directory: the same secret key, for a run without interruptions."""
    import shutil

    shutil.copytree(path, twin)


def test_ctrl_c_stops_at_a_checkpoint_and_says_how_to_resume(tmp_path):
    before = signal.getsignal(signal.SIGINT)  # a background job may be started with it ignored
    config = from_table(table(record={"checkpoint_seconds": 1e6, "evaluations": 4}))
    with pytest.raises(Interrupted, match=r"after step 5. Resume with: winsor train --run") as stop:
        execute(config, tmp_path / "run", StopAt(5, signal.SIGINT))
    assert stop.value.exit_code == 130
    directory = RunDirectory(tmp_path / "run")
    assert directory.load_checkpoint()["private"]["steps_done"] == 5
    with pytest.raises(Interrupted) as stop:
        execute(config, tmp_path / "run", StopAt(8, signal.SIGTERM))
    assert stop.value.exit_code == 143
    assert signal.getsignal(signal.SIGINT) is before
    execute(config, tmp_path / "run", Quiet())
    execute(config, tmp_path / "whole", Quiet())
    same_end(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("batch", [2, 5, 8])
def test_sigterm_stops_in_the_middle_of_a_logical_batch(tmp_path, monkeypatch, batch):
    """A large logical batch may take longer than the system waits before it kills."""
    training = {"max_physical_batch_size": 10}
    model = {"name": "mlp", "hidden": [8]}
    record = {"checkpoint_seconds": 1e6, "evaluations": 4}
    config = from_table(table(training=training, model=model, record=record))
    execute(config, tmp_path / "whole", Quiet())
    seen = []

    def counting(losses):
        seen.append(1)
        if len(seen) == batch:
            os.kill(os.getpid(), signal.SIGTERM)
        return losses()

    with monkeypatch.context() as patched:
        patched.setattr(module, "fitting", counting)
        with pytest.raises(Interrupted) as stop:
            execute(config, tmp_path / "run", Quiet())
    assert stop.value.exit_code == 143 and len(seen) == batch
    state = RunDirectory(tmp_path / "run").load_checkpoint()
    assert state["private"]["steps_done"] == len(Ledger.read(tmp_path / "run" / "ledger.jsonl"))
    execute(config, tmp_path / "run", Quiet())
    same_end(tmp_path / "run", tmp_path / "whole")


def test_the_noise_is_secret_unless_asked(tmp_path):
    go(tmp_path / "a", reproducible_noise=False)
    go(tmp_path / "b", reproducible_noise=False)
    assert not torch.equal(weights(tmp_path / "a")["1.weight"], weights(tmp_path / "b")["1.weight"])
    go(tmp_path / "c")
    go(tmp_path / "d")
    same_end(tmp_path / "c", tmp_path / "d")


def test_a_lost_checkpoint_is_refused(tmp_path):
    with pytest.raises(MemoryError):
        execute(from_table(table()), tmp_path / "run", StopAt(4))
    (tmp_path / "run" / "checkpoint.pt").unlink()
    with pytest.raises(RunError, match="checkpoint.pt is missing, although the ledger names it"):
        go(tmp_path / "run")


def test_data_that_changed_are_refused(tmp_path):
    rows = np.random.default_rng(0).normal(size=(240, 3))
    source = tmp_path / "rows.npz"
    np.savez(source, x=rows, y=np.arange(240) % 3)
    changes = {"data": {"source": str(source), "options": {}}}
    config = from_table(table(**changes))
    with pytest.raises(MemoryError):
        execute(config, tmp_path / "run", StopAt(4))
    np.savez(source, x=rows + 1, y=np.arange(240) % 3)
    with pytest.raises(RunError, match="They have changed"):
        execute(config, tmp_path / "run", Quiet())


def test_another_configuration_is_refused(tmp_path):
    go(tmp_path / "run")
    with pytest.raises(RunError, match=r"optimizer.lr: 0.5 there, 0.1 here"):
        go(tmp_path / "run", optimizer={"lr": 0.1})


def test_a_budget_that_ends_early_ends_the_run(tmp_path):
    spent = go(tmp_path / "long", training={"steps": 40})["epsilon"]
    budget = {"epsilon": spent / 2}
    result = go(tmp_path / "run", budget=budget, training={"steps": 40})
    assert result["stopped"] == "budget spent"
    assert result["steps"] < 40 and result["epsilon"] <= spent / 2


def test_debug_records_private_values_under_their_name(tmp_path):
    go(tmp_path / "plain")
    go(tmp_path / "debug", record={"monitor": "debug"})
    rows = RunDirectory(tmp_path / "debug").metrics()
    assert len(rows) == 12
    for row in rows:
        values = row["not_private"]
        assert math.isfinite(values["training_loss"]) and 0 <= values["clip_fraction"] <= 1
        quantiles = [values["quantiles"][q] for q in ("0.05", "0.5", "0.9", "1.0")]
        assert quantiles == sorted(quantiles)
    a, b = weights(tmp_path / "plain"), weights(tmp_path / "debug")
    for name in a:  # looking changes no draw, hence not the training
        assert torch.equal(a[name], b[name])


def test_the_private_monitor_costs_no_epsilon_and_resumes(tmp_path):
    budget = {"epsilon": 4.0, "noise_multiplier": None}
    changes = {"record": {"monitor": "private", "evaluations": 2}, "budget": budget}
    config = from_table(table(**changes))
    with pytest.raises(MemoryError):
        execute(config, tmp_path / "run", StopAt(5))
    result = execute(config, tmp_path / "run", Quiet())
    assert 0.99 * 4 < result["epsilon"] <= 4
    rows = RunDirectory(tmp_path / "run").metrics()
    assert len(rows) == 12 and not any("not_private" in row for row in rows)
    assert all(row["monitor"]["noise_to_signal"] > 0 for row in rows if "monitor" in row)
    assert all(not name.startswith("monitor") for row in rows for name in row["rule"])
    execute(config, tmp_path / "whole", Quiet())
    same_end(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "metric", "bound"),
    [
        ({}, "accuracy", 0.5),
        (
            {
                "data": {"task": "regression", "options": {"rows": 240, "features": 5}},
                "training": {"loss": "huber", "steps": 40},
                "optimizer": {"name": "adam", "lr": 0.05},
            },
            "r2",
            0.05,
        ),
        (
            {
                "data": {"task": "language", "classes": 12, "options": {"rows": 240, "length": 9}},
                "model": {"name": "gpt", "width": 16},
                "optimizer": {"name": "adamw", "lr": 0.02},
                "training": {"steps": 30, "batch_size": 60},
                "budget": {"noise_multiplier": 0.3},
            },
            "token_accuracy",
            0.15,
        ),
    ],
)
def test_every_task_learns_something(tmp_path, changes, metric, bound):
    result = go(tmp_path / "run", **changes)
    assert result["held_out"][metric] > bound


@pytest.mark.parametrize("iterate", ["averaged", "random"])
def test_other_iterates_and_a_ball(tmp_path, iterate):
    training = {"iterate": iterate, "ball_radius": 0.25}
    with pytest.raises(MemoryError):
        execute(from_table(table(training=training)), tmp_path / "run", StopAt(7))
    go(tmp_path / "run", training=training)
    go(tmp_path / "whole", training=training)
    a, b = weights(tmp_path / "run"), weights(tmp_path / "whole")
    assert all(torch.equal(a[name], b[name]) for name in a)
    norm = math.sqrt(sum(float(w.square().sum()) for w in a.values()))
    assert norm <= 0.25 * (1 + 1e-6)


def test_full_batches_and_replace_one(tmp_path):
    result = go(
        tmp_path / "full", training={"sampling": "full", "batch_size": None}, budget={"delta": 1e-4}
    )
    assert "FullBatch" in result["guarantee"]
    result = go(
        tmp_path / "fixed",
        training={"sampling": "fixed"},
        budget={"relation": "replace_one"},
    )
    assert result["relation"] == "replace_one"


def test_no_held_out_rows_no_metrics(tmp_path):
    result = go(tmp_path / "run", data={"held_out_fraction": 0.0})
    assert result["held_out"] == {} and result["rows"] == 240
    assert not any("held_out" in row for row in RunDirectory(tmp_path / "run").metrics())


def test_a_model_and_data_that_do_not_fit(tmp_path, monkeypatch):
    monkeypatch.setattr("winsor.app.runs.assemble.build_model", lambda *_: torch.nn.Linear(7, 3))
    with pytest.raises(ConfigurationError, match="model and data do not fit together"):
        go(tmp_path / "run")


def test_empty_batches_are_steps_like_others(tmp_path):
    """With rate 1/96 many Poisson batches are empty; the run still ends where it should."""
    training = {"batch_size": 2, "steps": 30}
    changes = {"training": training, "record": {"evaluations": 3, "checkpoint_seconds": 1e6}}
    result = go(tmp_path / "whole", **changes)
    assert result["steps"] == 30 and len(Ledger.read(tmp_path / "whole" / "ledger.jsonl")) == 30
    rows = RunDirectory(tmp_path / "whole").metrics()
    assert rows[-1]["step"] == 30 and sum("held_out" in row for row in rows) == 3
    config = from_table(table(**changes))
    for step in (4, 9, 21):
        try:
            execute(config, tmp_path / "run", StopAt(step, signal.SIGINT))
        except Interrupted:
            continue
    go(tmp_path / "run", **changes)
    same_end(tmp_path / "run", tmp_path / "whole")


def test_evaluation_is_modest_unless_asked(tmp_path):
    """12 steps of 40 rows are 480; a tenth of that is one look at 48 held-out rows or so."""
    record = {"evaluations": None, "checkpoint_seconds": 1e6}
    result = go(tmp_path / "short", record=record)
    rows = RunDirectory(tmp_path / "short").metrics()
    assert [row["step"] for row in rows if "held_out" in row] == [12]
    assert rows[-1]["held_out"] == result["held_out"]
    go(tmp_path / "long", record=record, training={"steps": 60})
    rows = RunDirectory(tmp_path / "long").metrics()
    assert 3 <= sum("held_out" in row for row in rows) <= 6


def test_marks():
    assert marks(10, 5) == [2, 4, 6, 8, 10]
    assert marks(3, 20) == [1, 2, 3]
    assert marks(20_000, 500)[-1] == 20_000 and len(marks(20_000, 500)) == 500
    assert passed([2, 4], 1, 2) and passed([2, 4], 1, 3) and passed([2, 4], 3, 9)
    assert not passed([2, 4], 2, 3) and not passed([2, 4], 4, 9)


def test_the_configuration_kept_is_complete(tmp_path):
    go(tmp_path / "run")
    stored = from_table(json.loads((tmp_path / "run" / "config.json").read_text()))
    assert stored == from_table(table())
    assert dataclasses.asdict(stored.record)["rows"] == 500
