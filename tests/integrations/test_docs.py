"""The pages for users of other trainers run as they stand."""

import re
from pathlib import Path

import pytest
import tiny_transformers as tiny
import torch
from torch.utils.data import DataLoader, TensorDataset

DOCS = Path(__file__).parents[2] / "docs"


def run_blocks(library, names):
    text = (DOCS / "coming-from-another-library.md").read_text()
    blocks = re.findall(rf"```python {library}\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 2
    for number, code in enumerate(blocks):
        exec(compile(code, f"{library} [{number}]", "exec"), names)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_the_page_for_transformers_runs(tmp_path, capsys):
    names = {
        "folder": str(tmp_path), "model": tiny.gpt(), "same_model": tiny.gpt(), "torch": torch,
        "private_rows": tiny.Sentences(), "public_rows": tiny.Sentences(8, first=500),
        "collate": tiny.padded,
    }  # fmt: skip
    run_blocks("transformers", names)
    assert 7.5 < names["trainer"].spent().epsilon <= 8
    assert names["again"].spent().steps == 10
    assert "certified" in capsys.readouterr().out
    own = tiny.trainer(kind=names["FirstWord"], args=tiny.arguments(max_steps=1))
    own.train()
    assert own.spent().steps == 1


@pytest.mark.filterwarnings(
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning",
    "ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning",
)
def test_the_page_for_lightning_runs(tmp_path, capsys):
    x = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    rows = [TensorDataset(part, (part[:, 0] > 0).long()) for part in (x[:150], x[150:])]
    names = {
        "folder": str(tmp_path), "private_rows": rows[0], "public_loader": DataLoader(rows[1], 25),
        "__name__": "page",
    }  # fmt: skip
    run_blocks("lightning", names)
    assert 2.8 < names["module"].spent().epsilon <= 3
    assert "certified" in capsys.readouterr().out
