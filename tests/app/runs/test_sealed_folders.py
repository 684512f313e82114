"""Folders of train, compare and tune: every change is found, nothing in them runs, none hangs.

Long: benchmarks/tampering.py and benchmarks/fuzz.py.
"""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from fuzzing import FAULTS, forge, outcome
from sealed_folders import (
    canary,
    canary_of_torch,
    command,
    dying_trials,
    files_of,
    fuzzed_folder,
    head_of,
    honest_folders,
    make,
    readers,
    tampered_folder,
    without_result,
)

from winsor.app.runs.verifying import disagreements


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return honest_folders(tmp_path_factory.mktemp("folders"))


def test_honest_folders_raise_no_alarm(folders):
    for name, path in folders.items():
        assert disagreements(path, head_of(path)) == [], name
        assert command("verify", path)[0] == 0, name


def test_every_change_is_found(folders, tmp_path):
    missed = []
    for number in range(96):
        name, way, file, path = tampered_folder(folders, number, tmp_path)
        if not disagreements(path, head_of(folders[name])):
            missed.append((number, name, way, file))
        shutil.rmtree(tmp_path / str(number))
    assert missed == []


@pytest.mark.parametrize("name", ["train", "train, kept", "compare", "tune", "tune, all"])
def test_a_result_that_was_deleted_is_missed(folders, name, tmp_path):
    path = shutil.copytree(folders[name], tmp_path / "copy")
    without_result(path)
    code, words = command("verify", path, "--head", head_of(folders[name]))
    assert code == 1 and "is missing, although the ledger names it" in words


def test_no_file_runs_code(folders, tmp_path):
    """A canary in the place of every file, named by the ledger as a forger would, and not."""
    mark = tmp_path / "ran"
    for name, path in folders.items():
        for file in files_of(path):
            for number, content in enumerate((canary(mark), canary_of_torch(mark))):
                copy = shutil.copytree(path, tmp_path / "copy")
                target = copy / file.relative_to(path)
                target.write_bytes(content)
                if number:
                    forge(target)
                for line in readers(copy, name):
                    if line[0] != "audit":
                        assert outcome(line)[0] not in FAULTS, (name, file.name, line)
                assert not mark.exists(), (name, file)
                shutil.rmtree(copy)


def test_fuzzed_files_end_in_one_clear_line(folders, tmp_path):
    for name, path in folders.items():
        for file in files_of(path):
            lines = fuzzed_folder(
                folders, name, file.relative_to(path).as_posix(), 0, tmp_path / "case"
            )
            for line in lines[:3]:
                end, words = outcome(line)
                assert end not in FAULTS, (name, file.name, line[0], words)
            shutil.rmtree(tmp_path / "case")


def test_an_audit_verifies_first(folders, tmp_path):
    path = shutil.copytree(folders["train"], tmp_path / "copy")
    text = (path / "config.json").read_text()
    (path / "config.json").write_text(text.replace('"delta": 0.001', '"delta": 0.002'))
    code, words = command("audit", "run", path, "--quick")
    assert code == 2 and "config.json is not the file that the ledger names" in words


def test_a_killed_tuning_goes_on_without_a_pickle(tmp_path):
    whole = make("tune, all", tmp_path / "whole")
    with dying_trials(2):
        make("tune, all", tmp_path / "killed")
    killed = tmp_path / "killed" / "tune, all"
    assert b"\x80" not in (killed / "sealed" / "trials").read_bytes()[32:40]
    code, words = command("tune", "--run", killed, "--quiet")
    assert code == 0, words
    results = [json.loads((path / "result.json").read_text()) for path in (whole, killed)]
    assert results[0] == results[1] and disagreements(killed) == []
    weights = [torch.load(path / "model.pt", weights_only=True) for path in (whole, killed)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_trials_that_were_deleted_are_not_run_again(folders, tmp_path):
    path = shutil.copytree(folders["tune, stopped"], tmp_path / "copy")
    (path / "sealed" / "trials").unlink()
    for _ in range(2):  # nor the second time
        code, words = command("tune", "--run", path, "--quiet")
        assert code == 2 and "must hold the trials that the ledger has paid for" in words


@pytest.mark.parametrize("name", ["train, kept", "tune"])
def test_a_kill_just_before_the_result_is_resumed(folders, name, tmp_path):
    """The ledger has named the result, which is not there: an honest moment, if it can go on."""
    path = shutil.copytree(folders[name], tmp_path / "copy")
    (path / "result.json").unlink()
    kind = name.split(",")[0]
    code, words = command(kind, "--run", path, "--quiet")
    if kind == "tune":  # its sealed trials are gone, so this was no kill
        assert code == 2 and "result.json is missing" in words
    else:
        assert code == 0 and disagreements(path) == []
