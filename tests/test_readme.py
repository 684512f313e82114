"""What the README prints runs: every Python block, and every command."""

from __future__ import annotations

import re

import numpy as np
import pytest
import readme
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.cli.main import main

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


def test_cheap_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("norms.npz", norms=np.random.default_rng(0).weibull(1.0, 2000))
    plan = next(words for words in readme.commands() if words[0] == "plan")
    for words in (plan, ["tails", "norms.npz"]):
        assert words in readme.commands()
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 0
    assert "noise multiplier" in capsys.readouterr().out
