"""The directory survives torn writes, refuses other configurations, and keeps the key to itself."""

from __future__ import annotations

import json
import os
import stat

import pytest
import torch
from tiny_runs import table

from winsor.app.runs.config import from_table
from winsor.app.runs.directory import RunDirectory
from winsor.app.runs.folder import RunError, replace_file
from winsor.core.contract import LedgerError
from winsor.core.ledger.ledger import Ledger

CONFIG = from_table(table())


@pytest.fixture
def directory(tmp_path):
    found = RunDirectory(tmp_path / "run")
    found.create(CONFIG)
    ledger = Ledger({}, found.ledger)
    found.bind(ledger)
    yield found
    found.close()
    ledger.close()


def test_the_configuration_comes_back(directory):
    assert directory.config() == CONFIG
    directory.create(CONFIG)  # again: the same
    with pytest.raises(RunError, match=r"another configuration \(seed: 0 there, 1 here\)"):
        directory.create(from_table(table(seed=1)))


def test_a_directory_that_is_no_run(tmp_path):
    with pytest.raises(RunError, match=r"without config.json"):
        RunDirectory(tmp_path).config()


def test_metrics_after_the_checkpoint_are_dropped(directory):
    directory.keep_metrics_until(-1)
    for step in range(1, 6):
        directory.add_metrics({"step": step, "x": 0.1 * step})
    directory.save_checkpoint({"step": 5})
    directory.close()
    path = directory.path / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"step": 6, "x"')  # torn by a kill
    assert [row["step"] for row in directory.metrics()] == [1, 2, 3, 4, 5]
    directory.keep_metrics_until(3)
    directory.add_metrics({"step": 4, "x": 7.0})
    directory.save_checkpoint({"step": 4})  # lines beyond it are not read
    assert [row["x"] for row in directory.metrics()] == [0.1, 0.2, 0.1 * 3, 7.0]


def test_damaged_metrics_are_an_error(directory):
    (directory.path / "metrics.jsonl").write_text("what\n{}\n")
    with pytest.raises(RunError, match="is damaged"):
        directory.metrics()


def test_the_checkpoint_is_private_and_goes_with_the_key(directory):
    directory.save_checkpoint({"key": "00", "weights": torch.zeros(2)})
    mode = stat.S_IMODE(os.stat(directory.path / "checkpoint.pt").st_mode)
    assert mode == 0o600
    assert directory.load_checkpoint()["key"] == "00"
    directory.key.write_text("11")
    directory.finish({"epsilon": 1.0}, {"w": torch.ones(1)}, keep_key=False)
    assert directory.result() == {"epsilon": 1.0, "ledger_head": directory.chain.head}
    assert directory.load_checkpoint() is None and not directory.key.exists()
    assert torch.load(directory.path / "model.pt", weights_only=True)["w"] == 1


def test_the_key_is_kept_on_request(directory):
    directory.save_checkpoint({"key": "00"})
    directory.finish({"epsilon": 1.0}, {}, keep_key=True)
    assert directory.load_checkpoint() == {"key": "00"}


def test_a_damaged_checkpoint_is_one_clear_error(directory):
    (directory.path / "checkpoint.pt").write_bytes(b"garbage")
    with pytest.raises(LedgerError, match=r"checkpoint.pt must be the file that the ledger"):
        directory.load_checkpoint()
    directory.seal("checkpoint.pt", b"garbage")
    with pytest.raises(RunError, match=r"checkpoint.pt cannot be read"):
        directory.load_checkpoint()


def test_a_failed_write_leaves_the_old_content(directory, monkeypatch):
    path = directory.path / "result.json"
    replace_file(path, b"old")

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match=r"cannot write .*result.json: No space left on device"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert not list(directory.path.glob(".*.new"))


def test_sessions_add_up(directory):
    directory.note_environment({"time": "one"})
    directory.note_environment({"time": "two"})
    assert directory.environment() == [{"time": "one"}, {"time": "two"}]
    assert json.loads((directory.path / "environment.json").read_text())["sessions"]
