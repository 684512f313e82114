"""What the documents show works, and every setting is in the tour."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.app.runs.compare import Comparison
from winsor.app.runs.config import (
    BudgetSettings,
    CompareSettings,
    Config,
    DataSettings,
    RecordSettings,
    TrainingSettings,
    from_table,
)
from winsor.app.runs.execute import execute
from winsor.app.runs.parts import check
from winsor.app.runs.progress import Quiet
from winsor.app.runs.reading import Part, read

ROOT = Path(__file__).parents[3]
SECTIONS = {
    "data": DataSettings,
    "budget": BudgetSettings,
    "training": TrainingSettings,
    "record": RecordSettings,
    "compare": CompareSettings,
}


def load(name: str) -> dict:
    return tomllib.loads((ROOT / "examples" / name).read_text())


def test_every_setting_is_in_the_tour():
    tour = (ROOT / "docs" / "tour.md").read_text()
    names = [field.name for field in dataclasses.fields(Config) if field.name not in SECTIONS]
    names += [
        f"{s}.{field.name}" for s, kind in SECTIONS.items() for field in dataclasses.fields(kind)
    ]
    missing = [name for name in names if f"`{name}`" not in tour]
    assert missing == []


def test_every_setting_in_the_tour_exists():
    tour = (ROOT / "docs" / "tour.md").read_text().split("## All settings")[1]
    for section, name in re.findall(r"`(data|budget|training|record|compare)\.(\w+)`", tour):
        assert name in {field.name for field in dataclasses.fields(SECTIONS[section])}, name


def test_the_pieces_of_configuration_in_the_tour_can_be_read():
    tour = (ROOT / "docs" / "tour.md").read_text()
    pieces = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", tour, re.DOTALL)]
    data = [piece["data"] for piece in pieces if "data" in piece]
    assert len(data) == 3 and [read(DataSettings, table, "data") for table in data]
    assert any("model" in piece for piece in pieces)


def test_the_example_trains(tmp_path):
    table = load("digits.toml")
    check(from_table(table))
    table["training"] = {**table["training"], "epochs": 4}
    table["reproducible_noise"] = True
    result = execute(from_table(table), tmp_path / "run", Quiet())
    assert result["held_out"]["accuracy"] > 0.4
    assert result["epsilon"] <= table["budget"]["epsilon"]


def test_the_comparison_is_valid():
    found = Comparison.from_table(load("compare.toml"), ROOT)
    assert len(found.variants) == 4 and found.seeds == (1, 2, 3)


def test_the_migration_from_opacus_is_short_and_runs(capsys):
    page = (ROOT / "docs" / "coming-from-another-library.md").read_text()
    text = page.split("## Opacus")[1]
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    assert len(code.strip().splitlines()) < 10
    x = torch.randn(2000, 6, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Linear(6, 2)
    names = {
        "winsor": winsor,
        "F": F,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.5),
        "dataset": TensorDataset(x, (x[:, 0] > 0).long()),
    }
    exec(compile(code, "coming-from-another-library.md", "exec"), names)
    assert 7.9 < names["private"].spent().epsilon <= 8
    assert "certified" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["replace_batchnorm"])
def test_names_of_the_migration_table_exist(name):
    assert hasattr(winsor.gradients, name)


def test_the_image_example_says_all_that_its_accuracy_rests_on():
    """All training rows, moments released before the first step, from zero, at a falling rate."""
    config = from_table(load("fashion_mnist.toml"))
    assert (config.features.name, config.schedule.name) == ("scattering", "linear")
    assert config.model.options == {"zeros": True}
    assert [part.name for part in config.prepare] == ["axes"]
    assert config.training.sampling == "full"
    assert (config.budget.epsilon, config.budget.delta) == (3.0, 1e-5)
    check(dataclasses.replace(config, features=Part("none")))
    text = (ROOT / "examples" / "fashion_mnist.toml").read_text()
    results = ROOT / "benchmarks" / "results"
    cells = json.loads((results / "records.json").read_text())
    cell = cells["fashion_mnist | tuned | 0"]
    assert cell["axes"] == [config.prepare[0].options[k] for k in ("noise_multiplier", "power")]
    assert cell["setting"]["steps"] == config.training.steps
    assert cell["setting"]["threshold"] == config.rule.options["max_grad_norm"]
    length = config.rule.options["max_grad_norm"] * config.optimizer.options["lr"]
    assert cell["setting"]["length"] == length
    assert f"{cell['accuracy']:.1f} %" in text
    full = json.loads((results / "gallery.json").read_text())["images"]
    assert f"{100 * float(dict(full['results'])['accuracy']):.1f} %" in text
