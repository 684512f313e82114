"""Changed run directories are found, honest ones are not. Long: benchmarks/tampering.py."""

from __future__ import annotations

import shutil

import pytest
from tampering import OF_FINISHED, honest_runs, tampered

from winsor.app.runs.verifying import disagreements

NAMES = ["flat", "calibrated", "kept checkpoint"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return honest_runs(tmp_path_factory.mktemp("honest"), NAMES)


def test_honest_runs_raise_no_alarm(runs):
    assert {name: disagreements(path) for name, path in runs.items()} == {name: [] for name in runs}


def test_every_tampering_is_found(runs, tmp_path):
    seen = set()
    for number in range(60):
        name, way, path = tampered(runs, number, tmp_path)
        assert disagreements(path), (number, name, way)
        seen.add(way)
        shutil.rmtree(path)
    assert len(seen) >= len(OF_FINISHED) - 3


def test_an_edited_configuration_is_not_resumed(runs, tmp_path):
    from winsor.app.runs.directory import RunDirectory
    from winsor.app.runs.execute import execute
    from winsor.app.runs.progress import Quiet
    from winsor.core.contract import LedgerError

    path = shutil.copytree(runs["flat, stopped"], tmp_path / "run")
    text = (path / "config.json").read_text()
    (path / "config.json").write_text(text.replace('"evaluations": 4', '"evaluations": 5'))
    with pytest.raises(LedgerError, match="config.json must be the file that the ledger"):
        execute(RunDirectory(path).config(), path, Quiet())
