"""Rules are found by looking into the folder, and reached by name."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys

import pytest

import winsor.rules
from winsor.core.contract import ConfigurationError
from winsor.rules.flat import Flat
from winsor.rules.rule import Rule

EXPECTED = {
    "Automatic",
    "Averaged",
    "Discriminative",
    "Flat",
    "LInf",
    "NSGD",
    "PSAC",
    "PerLayer",
    "Quantile",
}


def test_every_rule_is_found():
    assert set(winsor.rules.all_rules()) >= EXPECTED
    assert set(dir(winsor.rules)) >= EXPECTED


def test_examples_are_rules_of_the_listed_classes():
    examples = winsor.rules.all_examples()
    assert {type(rule) for rule in examples} == set(winsor.rules.all_rules().values())
    for rule in examples:
        assert isinstance(rule, Rule)


def test_rules_are_attributes_of_the_package():
    assert winsor.rules.Flat is Flat
    with pytest.raises(AttributeError, match="no rule 'Nonsense'"):
        _ = winsor.rules.Nonsense
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = winsor.rules.nonsense


@pytest.mark.parametrize("name", ["per_layer", "PerLayer", "per-layer", "perlayer"])
def test_names_may_be_spelled_freely(name):
    assert winsor.rules.by_name(name, max_grad_norm=2.0) == winsor.rules.PerLayer(2.0)


def test_unknown_names_and_options_are_refused():
    with pytest.raises(ConfigurationError, match=r"rule must be one of Flat, .*Got 'fat'"):
        winsor.rules.by_name("fat")
    with pytest.raises(ConfigurationError, match=r"options of 'flat' do not fit.*treshold"):
        winsor.rules.by_name("flat", treshold=1.0)


@pytest.mark.parametrize("name", winsor.rules.ARCHIVED)
def test_a_rule_that_was_archived_is_refused_with_its_new_place(name):
    with pytest.raises(ConfigurationError, match=r"archived in 0.3.*2026-11-edge/rules"):
        winsor.rules.by_name(name.lower())
    with pytest.raises(AttributeError, match=r"no rule .*WINSOR_RULES"):
        getattr(winsor.rules, name)


def test_a_rule_is_loaded_without_the_others():
    code = (
        "import sys; from winsor import rules; rules.by_name('flat', max_grad_norm=1.0);"
        "rules.PerLayer; print(sorted(m for m in sys.modules if m.startswith('winsor.rules.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={name: value for name, value in os.environ.items() if name != "WINSOR_RULES"},
    )  # fmt: skip
    loaded = ast.literal_eval(done.stdout)
    assert loaded == [f"winsor.rules.{name}" for name in ("flat", "per_layer", "rule")]


def test_every_rule_documents_itself():
    """The documentation page of a rule is made of these sections."""
    for name in EXPECTED - {"Flat"}:
        text = inspect.getmodule(winsor.rules.all_rules()[name]).__doc__
        for section in ("When to use", "Cost", "Guarantee", "References"):
            assert f"\n{section}\n{'-' * len(section)}\n" in text, (name, section)
