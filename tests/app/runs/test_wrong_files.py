"""Files as people have them: mistakes end in one line, leave nothing behind, and show no row.

What was mended is run with the same command, in the same directory.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from winsor.app.commands.main import main

TOML = """name = "t"
[data]
source = "SOURCE"
classes = 2
[model]
name = "linear"
[rule]
name = "flat"
max_grad_norm = 1.0
[optimizer]
name = "sgd"
lr = 0.1
[budget]
epsilon = 3.0
delta = 1e-4
[training]
steps = 2
batch_size = 20
"""
SECRET = "4711.25"
VALUES = np.random.default_rng(0).normal(size=(200, 2))
ROWS = [f"{a:.3f},{b:.3f},{int(a > 0)}" for a, b in VALUES]
TABLE = "\n".join(["a,b,y", *ROWS, ""])


def with_row(row: str) -> str:
    return TABLE.replace(ROWS[7], row)


TABLES = {  # content of the table, and words of the one line that comes back
    "a gap": (with_row(f",{SECRET},1"), "'a' of .* has gaps"),
    "a gap in words": (with_row(f"N/A,{SECRET},1"), "'a' of .* has gaps"),
    "words": (with_row(f"secret {SECRET},0.5,1"), "'a' of .* has words"),
    "thousands": (with_row(f'"1,{SECRET}",0.5,1'), "'a' of .* has words"),
    "a label that is missing": (with_row(f"{SECRET},0.5,"), "labels that are text, or missing"),
    "labels in words": (TABLE.replace(",1\n", ",yes\n"), r'for instance \["no", "yes"\]'),
    "labels from one": (TABLE.replace(",1\n", ",2\n"), "listed as they are written"),
    "no header": ("\n".join([f"{SECRET},0,1", *ROWS]), "names of columns in its first line"),
    "semicolons": (TABLE.replace(",", ";"), "separated by commas. Got semicolons"),
    "decimal commas": (TABLE.replace(",", ";").replace(".", ","), "with points in numbers"),
    "tabs": (TABLE.replace(",", "\t"), "Got tabs"),
    "no rows": ("a,b,y\n", "must have rows"),
    "nothing": ("", "must have rows"),
    "another encoding": (TABLE.encode("utf-16"), "Save it as CSV, UTF-8"),
    "too few values in a line": (with_row(SECRET), "Got 1 in line 9"),
    "the same name twice": (TABLE.replace("a,b,y", "a,a,y"), "different names"),
}
CONFIGURATIONS = {  # what is written instead of what, and words of the line
    "another table's setting": ("steps = 2", "steps = 2\nepsilon = 3", "Did you mean 'budget.eps"),
    "another name for it": ("lr = 0.1", "learning_rate = 0.1", "Did you mean 'lr'"),
    "another table's name": ("[budget]", "[privacy]", "Did you mean 'budget'"),
    "a path of Windows": ("SOURCE", "C:\\data\\rows.csv", "Write paths with /"),
    "no quotes": ('"flat"', "flat", "Text stands in quotes"),
    "YAML": ("lr = 0.1", "lr: 0.1", "key = value"),
    "twice": ("steps = 2", "steps = 2\nsteps = 3", "stands there twice"),
    "a heading twice": ("[rule]", "[data]\n[rule]", "under one heading"),
    "a file that is missing": ("SOURCE", "nowhere.csv", "relative to the folder of the conf"),
    "held-out rows that are missing": (
        "classes = 2", 'classes = 2\nheld_out = "nowhere.csv"', "data.held_out must be a file",
    ),
    "another column": ("classes = 2", 'classes = 2\ntarget = "z"', "it has a, b, y"),
    "delta above 1/n": ("delta = 1e-4", "delta = 0.1", "delta must be below 1/n"),
    "batches beyond n": ("batch_size = 20", "batch_size = 2000", "at most n = "),
    "negative noise": ("epsilon = 3.0", "noise_multiplier = -1", "positive finite number"),
    "pictures for a table": (
        "[model]", '[features]\nname = "oriented_gradients"\n[model]', "images must"
    ),
}  # fmt: skip


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    """Runs a configuration on a table: the exit code and what was said."""
    monkeypatch.chdir(tmp_path)

    def run(table: str | bytes = TABLE, toml: str = TOML) -> tuple[int, str]:
        content = table if isinstance(table, bytes) else table.encode()
        (tmp_path / "rows.csv").write_bytes(content)
        (tmp_path / "t.toml").write_bytes(toml.replace("SOURCE", "rows.csv").encode())
        with pytest.raises(SystemExit) as end:
            main(["train", "t.toml", "--run", "run", "--quiet"])
        return int(end.value.code or 0), capsys.readouterr().err

    return run


def refused(said: tuple[int, str], words: str, tmp_path) -> None:
    code, line = said
    assert code == 2 and line.startswith("winsor: error: ") and line.count("\n") == 1, line
    assert re.search(words, line), line
    assert SECRET not in line
    assert not (tmp_path / "run").exists(), "nothing is left behind"


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_does_not_fit_ends_in_one_line(name, train, tmp_path):
    table, words = TABLES[name]
    refused(train(table), words, tmp_path)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_that_does_not_fit_ends_in_one_line(name, train, tmp_path):
    old, new, words = CONFIGURATIONS[name]
    assert old in TOML
    refused(train(toml=TOML.replace(old, new)), words, tmp_path)


@pytest.mark.parametrize(
    ("table", "toml"),
    [
        (TABLE.replace("\n", "\r\n"), TOML.replace("\n", "\r\n")),
        ("\ufeff" + TABLE, "\ufeff" + TOML),
        (TABLE.replace(",", ", "), TOML),
    ],
    ids=["line ends of Windows", "marks of Windows", "spaces after commas"],
)
def test_what_other_systems_write_is_read(table, toml, train):
    assert train(table, toml) == (0, "")


def test_the_same_command_after_the_mistake_is_mended(train, tmp_path):
    refused(train(toml=TOML.replace("delta = 1e-4", "delta = 0.1")), "below 1/n", tmp_path)
    assert train() == (0, "")
    assert (tmp_path / "run" / "result.json").exists()


def test_files_that_were_there_stay(train, tmp_path):
    """A directory that somebody else uses is not cleaned up."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert train(toml=TOML.replace("delta = 1e-4", "delta = 0.1"))[0] == 2
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "run" / "config.json").exists()
