"""Configurations: read from TOML, refused with the key's path, and the same after a round trip."""

from __future__ import annotations

import dataclasses
import json
import tomllib

import pytest
from tiny_runs import table

from winsor import gradients
from winsor.app.runs.assemble import settings_of_make_private
from winsor.app.runs.config import (
    ENGINES,
    ITERATES,
    BudgetSettings,
    Config,
    TrainingSettings,
    differences,
    from_table,
)
from winsor.app.runs.reading import load_table
from winsor.core.contract import ConfigurationError
from winsor.training.iterates import KINDS
from winsor.training.make_private import Arguments


def test_a_configuration_survives_json_and_toml():
    config = from_table(table(training={"epochs": 3.0, "steps": None}))
    assert from_table(json.loads(json.dumps(config.to_table()))) == config
    assert from_table(tomllib.loads(config.to_toml())) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": {"epsilon": -1.0}}, "budget.epsilon must be a positive finite number"),
        ({"budget": {"epsilon": float("inf")}}, "budget.epsilon must be a positive finite number"),
        ({"budget": {"delta": 1.0}}, "budget.delta must be strictly between 0 and 1"),
        ({"budget": {"relation": "neighbours"}}, "budget.relation must be one of add_or_remove"),
        ({"budget": {"noise_multiplier": None}}, "budget.epsilon or budget.noise_multiplier"),
        ({"training": {"batch_size": 0}}, "training.batch_size must be a positive finite number"),
        ({"training": {"epochs": 1.0}}, "training.epochs or training.steps must be given, and"),
        ({"training": {"sampling": "shuffle"}}, "training.sampling must be one of poisson"),
        ({"training": {"sampling": "full"}}, 'batch_size must be given, except with .* "full"'),
        ({"training": {"loss": "hinge"}}, "training.loss must be one of"),
        ({"data": {"task": "ranking"}}, "data.task must be one of"),
        ({"data": {"held_out_fraction": 1.0}}, r"data.held_out_fraction must be in \[0, 1\)"),
        ({"data": {"classes": 1}}, "data.classes must be at least 2"),
        ({"data": {"divide": [1.0, 0.0]}}, "data.divide must be finite and not zero"),
        ({"record": {"rows": 0}}, "record.rows must be a positive finite number"),
        ({"name": " "}, "name must be a text that is not empty"),
        ({"trainig": {}}, r"trainig is not a setting. Did you mean 'training'\?"),
    ],
)
def test_bad_values_are_refused_by_name(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        from_table(table(**changes))


def test_files_are_found_relative_to_the_configuration(tmp_path):
    config = from_table(table(data={"source": "rows.csv", "held_out": "more.npz"}), tmp_path)
    assert config.data.source == str(tmp_path / "rows.csv")
    assert config.data.held_out == str(tmp_path / "more.npz")
    assert from_table(table(data={"source": "package.module:name"}), tmp_path).data.source == (
        "package.module:name"
    )


def test_differences_name_the_settings():
    one, two = from_table(table()), from_table(table(optimizer={"lr": 0.1}, seed=4))
    assert differences(one.to_table(), two.to_table()) == [
        "optimizer.lr: 0.5 there, 0.1 here",
        "seed: 0 there, 4 here",
    ]
    assert differences(one.to_table(), one.to_table()) == []
    assert one.digest() != two.digest()


def test_a_file_that_is_no_toml(tmp_path):
    path = tmp_path / "config.toml"
    with pytest.raises(ConfigurationError, match="cannot read the configuration"):
        load_table(path)
    path.write_text("name = [")
    with pytest.raises(ConfigurationError, match="is not valid TOML"):
        load_table(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="is not valid TOML"):
        load_table(path)


def test_every_setting_has_a_type_the_reader_knows():
    """A field of another kind would be accepted unchecked."""
    from typing import get_type_hints

    from winsor.app.runs.reading import value_of

    for hint in get_type_hints(Config).values():
        with pytest.raises(ConfigurationError):
            value_of(hint, object(), "x")


# ---------------------------------------------------------------- the same names as `make_private`


def test_names_that_are_refused_before_torch_is_loaded_are_those_of_the_library():
    assert tuple(KINDS) == ITERATES
    assert {"auto", *gradients.ENGINES} == set(ENGINES)


FROM_ELSEWHERE = {
    "model", "optimizer", "dataset", "rule", "mechanism", "scheduler", "unit", "ball", "ledger",
    "seed", "after", "after_in_ledger",
}  # fmt: skip
"""Arguments of `make_private` that are built from other tables of a configuration."""
OF_CODE_ONLY = {
    "collate_fn", "resume", "public_buffers", "sampling_rate", "group_size", "fixed_shapes"
}  # fmt: skip
"""Arguments of `make_private` that a configuration file does not have."""


def test_every_argument_of_make_private_is_a_setting_or_has_its_place():
    kinds = (BudgetSettings, TrainingSettings)
    settings = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    arguments = set(Arguments.__annotations__)
    assert arguments - settings == FROM_ELSEWHERE | OF_CODE_ONLY
    passed = settings_of_make_private(from_table(table(training={"iterate": "ema"})))
    assert set(passed) == arguments & settings
    assert passed["iterate"] == "ema" and passed["delta"] == 1e-3
