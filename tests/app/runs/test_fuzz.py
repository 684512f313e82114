"""Damaged files of every format: one clear line each. The long version is benchmarks/fuzz.py."""

from __future__ import annotations

import pytest
from fuzzing import FAULTS, REPORTED, ROWS, Material, hostile_npz, meet, outcome

CASES = 6
NAMES = ["toml", *ROWS, "npy (tails)", "ledger", "checkpoint", *REPORTED, "compare.json"]


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    return Material(tmp_path_factory.mktemp("material"))


def test_every_format_is_fuzzed(material):
    assert sorted(material.formats()) == sorted(NAMES)


@pytest.mark.filterwarnings("default")  # a damaged file may make a reader warn before it refuses
@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_end_in_one_clear_line(material, name, tmp_path):
    for number in range(CASES):
        for end, words in meet(material.formats()[name], 10_000 + number, tmp_path / "case"):
            assert end not in FAULTS, f"case {number}: {words}"


NONSENSE = {
    "optimizer.lr": {"lr = 0.5": "lr = 1e400"},
    "optimizer.momentum": {"momentum = 0.9": "momentum = nan"},
    "rule.max_grad_norm": {"max_grad_norm = 1.0": "max_grad_norm = inf"},
    "budget.delta": {"delta = 0.001": "delta = nan"},
    "budget.noise_multiplier": {"noise_multiplier = 1.5": "noise_multiplier = -inf"},
    "training.batch_size": {"batch_size = 40": "batch_size = -40"},
    "training.steps": {"steps = 12": "steps = 2000000000"},
    "training.threads": {"steps = 12": "steps = 12\nthreads = 100000"},
    "training.num_workers": {"num_workers = 0": "num_workers = 100000"},
    "model.hidden": {'name = "linear"': 'name = "mlp"\nhidden = [0]'},
    "data.options.features": {"features = 5": "features = 0"},
    "data.options.rows": {"rows = 240": f"rows = {10**30}"},
    "data.classes": {"classes = 3": "classes = 99999999999"},
    "data.seed": {"[data]": "[data]\nseed = -1", "seed = 0\ntask": "task"},
    "data.divide": {"divide = 1.0": "divide = nan"},
    "data.subtract": {"subtract = 0.0": "subtract = inf"},
}


@pytest.mark.parametrize("setting", NONSENSE)
def test_nonsense_numbers_are_refused_by_name(setting, tmp_path):
    from tiny_runs import table

    from winsor.app.runs.config import from_table

    text = from_table(table()).to_toml()
    for old, new in NONSENSE[setting].items():
        assert old in text, old
        text = text.replace(old, new, 1)
    (tmp_path / "c.toml").write_text(text)
    end, words = outcome(["train", str(tmp_path / "c.toml"), "--run", str(tmp_path / "run")])
    assert (end, setting in words) == ("refused", True), words


def test_numbers_and_tables_without_end_are_refused(tmp_path):
    for text in ("seed = " + "9" * 5000, "a = " + "[" * 5000, "a." * 3000 + "b = 1"):
        (tmp_path / "c.toml").write_text(text)
        assert outcome(["train", str(tmp_path / "c.toml")])[0] == "refused"


def test_hostile_archives_are_measured_first(material, tmp_path, monkeypatch):
    import random

    import numpy as np

    def never(*arguments, **options):
        raise AssertionError("read before it was measured")

    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", never)
    (tmp_path / "c.toml").write_text(material.configuration("bomb.npz"))
    command = ["train", str(tmp_path / "c.toml"), "--run", str(tmp_path / "run"), "--quiet"]
    bombs = 0
    for number in range(12):
        content = hostile_npz(random.Random(number))
        (tmp_path / "bomb.npz").write_bytes(content)
        end, words = outcome(command)
        bombs += "unpack" in words
        assert end == "refused" or "read before" in words, words
    assert bombs
