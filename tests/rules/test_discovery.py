"""Rules are found by looking into the folder, and reached by name."""

from __future__ import annotations

import inspect

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
    "Microbatch",
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


def test_every_rule_documents_itself():
    """The documentation page of a rule is made of these sections."""
    for name in EXPECTED - {"Flat"}:
        text = inspect.getmodule(winsor.rules.all_rules()[name]).__doc__
        for section in ("When to use", "Cost", "Guarantee", "References"):
            assert f"\n{section}\n{'-' * len(section)}\n" in text, (name, section)
