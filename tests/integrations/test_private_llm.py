"""The example with a real model, in small: a tiny model in its place, a few rows."""

import csv
import gzip
import importlib.util
import json
from pathlib import Path

import pytest
import tiny_llama

FILE = Path(__file__).parents[2] / "examples" / "private_llm.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("private_llm", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folders(tmp_path):
    """Rows in the files of E2E, and a model that knows their words."""
    rows = [
        (f"name[Inn {i}], eatType[pub]", f"Inn {i} is a pub near the river .") for i in range(40)
    ]
    for part in ("train", "dev", "test_w_refs"):
        with gzip.open(tmp_path / f"e2e_{part}.csv.gz", "wt", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("mr", "ref"), *rows])
    return tmp_path, tiny_llama.write(tmp_path / "model", rows)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_it_trains_measures_and_goes_on(example, folders, capsys):
    data, model = folders
    out = data / "out"
    given = [
        str(data), "--out", str(out), "--model", str(model), "--steps", "2", "--batch", "8",
        "--physical", "4", "--looked-at", "4", "--prompts", "2", "--delta", "1e-3",
        "--rate", "0.1", "--plain-rate", "0.1",  # losses are told to four digits
    ]  # fmt: skip
    for name in ("zero-shot", "epsilon-8", "not-private"):
        example.main([*given, "--only", name])
    found = [
        json.loads((out / f"{n}.json").read_text())
        for n in ("zero-shot", "epsilon-8", "not-private")
    ]
    assert "certified" in found[1]["spent"]
    assert [count for _, count in found[1]["ledger"]] == [2]  # one kind of step, twice
    assert found[0]["loss"] != found[1]["loss"] != found[2]["loss"]
    assert all(0 <= one["bleu"] <= 1 and one["peak_memory_mb"] > 0 for one in found)
    example.show(found)
    assert "epsilon-8" in capsys.readouterr().out
    (out / "epsilon-8.json").unlink()  # stopped after its last checkpoint: nothing is paid twice
    example.main([*given, "--only", "epsilon-8"])
    again = json.loads((out / "epsilon-8.json").read_text())
    assert again["spent"] == found[1]["spent"] and again["loss"] == found[1]["loss"]
