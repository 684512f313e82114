"""What the README prints runs: every Python block, and every command."""

from __future__ import annotations

import re

import chromium
import numpy as np
import pytest
import readme
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.app.commands.main import main

README = readme.README


def test_the_ten_line_example_runs(capsys):
    section = README.read_text().split("## In a PyTorch loop")[1]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)
    assert len(code.strip().splitlines()) <= 10
    x = torch.randn(2000, 20, generator=torch.Generator().manual_seed(0))
    train = TensorDataset(x, (x[:, 0] > 0).long())
    names = {"torch": torch, "winsor": winsor, "F": F, "train": train}
    exec(compile(code, str(README), "exec"), names)
    assert 0.995 * 3 <= names["private"].spent().epsilon <= 3
    assert "certified" in capsys.readouterr().out


def test_every_block_runs_one_after_the_other(tmp_path, monkeypatch, capsys):
    """As printed, imports included; `test_wheel.py` does it with an installed wheel."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "readme"}
    exec(compile(readme.program(), str(README), "exec"), names)
    assert names["private"].spent().epsilon <= 3
    assert names["classifier"].epsilon_ <= 1
    assert names["estimate"].guarantee.epsilon <= 1
    assert "certified" in capsys.readouterr().out


def test_no_block_is_left_out():
    text = README.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == text.count("```python") >= 5
    printed = [line for block in blocks for line in block.splitlines() if line]
    assert [line for line in readme.program().splitlines() if line] == printed
    assert len(readme.commands()) == text.count("\nwinsor ") >= 8


@pytest.mark.parametrize("words", readme.commands(), ids=" ".join)
def test_commands_have_the_options_that_readme_shows(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    assert end.value.code == 0
    help_text = capsys.readouterr().out
    for option in (word for word in words if word.startswith("--")):
        assert option in help_text


SMALLER = {"epochs = 40": "epochs = 4", "epochs = 20": "epochs = 2", "[1, 2, 3]": "[1]"}
"""The configurations are those of the repository, with fewer epochs and seeds."""
NARROWER = {"audit": ["--only", "Flat"]}
"""All of them take minutes; what they say is tested in tests/audit."""


def test_every_command_runs_one_after_the_other(tmp_path, monkeypatch, capsys):
    """As printed, in a folder with the examples of the repository and the files of the blocks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").mkdir()
    for source in (README.parent / "examples").glob("*.toml"):
        text = source.read_text()
        for old, new in SMALLER.items():
            text = text.replace(old, new)
        (tmp_path / "examples" / source.name).write_text(text)
    rows = np.random.default_rng(0).normal(size=(600, 20)).astype(np.float32)
    names = {"np": np, "x": torch.as_tensor(rows), "table": rows, "labels": (rows[:, 0] > 0) * 1}
    files = re.search(r"## The command line.*?```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(compile(files.group(1), str(README), "exec"), names)
    for words in readme.commands():
        if "--pdf" in words:
            chromium.executable()
        with pytest.raises(SystemExit) as end:
            main([*words, *NARROWER.get(words[0], [])])
        assert end.value.code == 0, (words, capsys.readouterr().err)
    assert (tmp_path / "runs" / "digits" / "report.pdf").exists()
    assert "noise multiplier" in capsys.readouterr().out


def test_the_first_two_commands_are_targets_of_make():
    made = (README.parent / "Makefile").read_text()
    lines = [line.split("#")[0].split() for _, language, line in readme.fenced() if not language]
    targets = [words[1] for words in lines if words[:1] == ["make"]]
    assert targets == ["demo", "test"]
    assert all(re.search(rf"^{target}:", made, re.MULTILINE) for target in targets)
    known = {("make",), ("winsor",), (".",)}
    assert {tuple(words[:1]) for words in lines if words} == known  # nothing else is printed
