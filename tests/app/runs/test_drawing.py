"""Persons, and every way of drawing, from a TOML file."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from dp_accounting.dp_event import NoOpDpEvent
from tiny_runs import table

from winsor.app.report.statement import make_statement
from winsor.app.runs.config import DataSettings, from_table
from winsor.app.runs.data import load_data
from winsor.app.runs.directory import RunDirectory
from winsor.app.runs.execute import execute
from winsor.app.runs.progress import Quiet
from winsor.app.runs.verifying import disagreements
from winsor.core.accounting import certify
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.events.allocation import AllocationDpEvent
from winsor.core.ledger.ledger import Ledger
from winsor.training.saving.state import StepBudget
from winsor.training.spending import Spending

PERSONS = 60
RELATION = Neighbouring.ADD_OR_REMOVE_ONE


def visits(path, name="person"):
    """A .csv of 60 patients with one to five visits each."""
    draw = np.random.default_rng(0)
    lines = [f"{name},age,height,ill"]
    for person in range(PERSONS):
        for _ in range(1 + person % 5):
            a, b = draw.normal(size=2)
            lines.append(f"p{person:02d},{a:.4f},{b:.4f},{int(a > 0)}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def data_of(source, **changes):
    return {"source": source, "classes": 2, "target": "ill", "unit": "person", "options": {}} | (
        changes
    )


def go(path, **changes):
    return execute(from_table(table(**changes)), path, Quiet())


# ------------------------------------------------------------------------------------------ units


def test_a_column_says_who_is_protected(tmp_path):
    source = visits(tmp_path / "visits.csv")
    training = {"steps": 6, "batch_size": 12, "rows_per_unit": 3}
    result = go(tmp_path / "run", data=data_of(source), training=training)
    ledger = Ledger.read(RunDirectory(tmp_path / "run").ledger)
    assert result["units"] == ledger.config["n"]
    assert 30 < result["units"] < PERSONS
    assert "rows" not in result  # how many rows persons have is nobody's business
    assert ledger.config["rows_per_unit"] == 3
    assert disagreements(tmp_path / "run") == []
    config = RunDirectory(tmp_path / "run").config()
    said = make_statement(config, ledger, {}, True, 10)
    assert said.unit.startswith("one person with all rows, up to 3 of them in a step")
    assert "adding or removing one person" in said.promise
    assert "whether a given person took part" in said.meaning
    assert not any("k times" in item for item in said.not_covered)


def test_nobody_is_on_both_sides(tmp_path):
    source = visits(tmp_path / "visits.csv")
    settings = DataSettings(source, target="ill", classes=2, unit="person", held_out_fraction=0.4)
    data = load_data(settings)
    assert data.shape == (2,)  # the identifier is no feature
    assert len(data.unit) == data.size
    inside = {tuple(row.tolist()) for row in data.train.tensors[0]}
    whole = load_data(DataSettings(source, target="ill", classes=2, unit="person",
                                   held_out_fraction=0.0))  # fmt: skip
    sides = {}
    for row, person in zip(whole.train.tensors[0], whole.unit, strict=True):
        sides.setdefault(person, set()).add(tuple(row.tolist()) in inside)
    assert all(len(side) == 1 for side in sides.values())
    assert 0 < sum(side == {False} for side in sides.values()) < PERSONS


def test_a_person_s_side_does_not_depend_on_who_else_is_there(tmp_path):
    source = visits(tmp_path / "visits.csv")
    kept = [
        line for line in (tmp_path / "visits.csv").read_text().splitlines() if "p07" not in line
    ]
    (tmp_path / "fewer.csv").write_text("\n".join(kept) + "\n")
    options = {"target": "ill", "classes": 2, "unit": "person", "held_out_fraction": 0.4}
    one = set(load_data(DataSettings(source, **options)).unit)
    other = set(load_data(DataSettings(str(tmp_path / "fewer.csv"), **options)).unit)
    assert one - {"p07"} == other


def test_an_npz_array_and_a_second_source(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, who_train=np.arange(50) // 5, x_test=x[:7],
             y_test=y[:7])  # fmt: skip
    data = load_data(DataSettings(str(tmp_path / "a.npz"), classes=2, unit="who"))
    assert (data.protected, data.size, data.held_out_size) == (10, 50, 7)
    source = visits(tmp_path / "visits.csv")
    both = load_data(DataSettings(source, held_out=source, target="ill", classes=2, unit="person"))
    assert both.held_out[0][0].shape == (2,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unit": "patient", "features": ["age"]}, "data.unit must be a column"),
        ({"source": "synthetic", "classes": 3}, "data.unit must be a column"),
    ],
)
def test_a_unit_that_is_not_there_is_refused(tmp_path, changes, words):
    source = visits(tmp_path / "visits.csv")
    with pytest.raises(ConfigurationError, match=words):
        go(tmp_path / "run", data=data_of(source) | changes)


@pytest.mark.parametrize("gap", ["", " ", "NA", "null", "NaN"])
def test_a_row_of_nobody_is_refused(tmp_path, gap):
    source = visits(tmp_path / "visits.csv")
    text = (tmp_path / "visits.csv").read_text()
    (tmp_path / "visits.csv").write_text(text.replace("p03,", f"{gap},", 1))
    with pytest.raises(ConfigurationError, match="name somebody.*'person' with gaps"):
        load_data(DataSettings(source, target="ill", classes=2, unit="person"))


# --------------------------------------------------------------------------------- ways of drawing


@pytest.mark.parametrize(
    ("sampling", "mechanism"),
    [
        ("allocation", {"name": "gaussian"}),
        ("loader", {"name": "gaussian"}),
        ("cyclic", {"name": "banded", "bands": 3}),
        ("cyclic", {"name": "banded", "bands": 3, "optimised": True}),
    ],
)
def test_every_way_of_drawing_runs_and_agrees_with_its_files(tmp_path, sampling, mechanism):
    training = {"steps": 12, "batch_size": 37, "sampling": sampling}  # no divisor of n
    result = go(tmp_path / "run", training=training, mechanism=mechanism)
    assert result["steps"] == 12
    assert disagreements(tmp_path / "run") == []
    ledger = Ledger.read(RunDirectory(tmp_path / "run").ledger)
    spent = certify(ledger.history(), 1e-3, RELATION).epsilon
    assert result["epsilon"] == pytest.approx(spent)
    said = make_statement(RunDirectory(tmp_path / "run").config(), ledger, {}, True, 10)
    words = {"allocation": "one step of each epoch", "loader": "no amplification"}
    assert words.get(sampling, "3 groups") in said.sampler


def test_a_target_is_spent_with_chosen_bands(tmp_path):
    result = go(
        tmp_path / "run", training={"steps": 12, "batch_size": 20, "sampling": "cyclic"},
        mechanism={"name": "banded"}, budget={"epsilon": 8.0, "noise_multiplier": None},
    )  # fmt: skip
    assert 7.8 < result["epsilon"] <= 8.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training": {"sampling": "cyclic"}}, "banded"),
        ({"mechanism": {"name": "banded", "bands": 3}}, "cyclic"),
        (
            {"mechanism": {"name": "banded", "bands": 0}, "training": {"sampling": "cyclic"}},
            "bands",
        ),
        ({"mechanism": {"name": "banded", "band": 3}}, "mechanism.band"),
        ({"training": {"rows_per_unit": 0}}, "rows_per_unit"),
        ({"training": {"within_unit": "median"}}, "within_unit"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_written(tmp_path, changes, words):
    with pytest.raises(ConfigurationError, match=words):
        go(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_what_is_shown_covers_epochs_that_are_yet_to_begin():
    """Steps within an epoch cost nothing more, and an account that went on with those would show
    less than the next epoch spends."""
    event, steps, block = AllocationDpEvent(5, 1.0), 60, 5
    ledger = Ledger({})
    shown = Spending(ledger, RELATION, StepBudget(1e-4, steps), False, block=block)
    for step in range(steps):
        ledger.record("run", step, NoOpDpEvent() if step % block else event)
        bound = shown.at_most()
        if step % block == 0:
            paid = certify([(event, step // block + 1)], 1e-4, RELATION).epsilon
            assert bound >= paid * (1 - 1e-9)
    assert bound <= certify([(event, steps // block + 1)], 1e-4, RELATION).epsilon * (1 + 1e-9)


def test_the_settings_survive_a_round_trip():
    config = from_table(
        table(training={"sampling": "cyclic"}, mechanism={"name": "banded", "bands": 4})
    )
    assert from_table(json.loads(json.dumps(config.to_table()))) == config


def test_weights_are_finite(tmp_path):
    go(tmp_path / "run", training={"steps": 12, "batch_size": 40, "sampling": "allocation"})
    state = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    assert all(bool(value.isfinite().all()) for value in state.values())
