"""The README's PyTorch example runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor

README = Path(__file__).parent.parent / "README.md"


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
