"""Rules and mechanisms by name."""

from __future__ import annotations

import dataclasses

import pytest

from winsor import rules
from winsor.app.runs.parts import build_mechanism, build_rule
from winsor.app.runs.reading import Part
from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.core.contract import ConfigurationError
from winsor.rules.quantile import QuantileTracker


@pytest.mark.parametrize("name", ["per_layer", "PerLayer", "per-layer"])
def test_rules_in_any_spelling(name):
    rule = build_rule(Part(name, {"max_grad_norm": 1, "shares": [0.5, 0.5]}))
    assert rule == rules.PerLayer(1.0, shares=(0.5, 0.5))


def test_tables_inside_a_rule_become_what_the_rule_wants():
    rule = build_rule(Part("quantile", {"max_grad_norm": 2.0, "tracker": {"target": 0.3}}))
    assert rule == rules.Quantile(2.0, QuantileTracker(target=0.3))


@pytest.mark.parametrize("example", rules.all_examples(), ids=repr)
def test_every_example_can_be_written_in_a_file(example):
    """By its own fields, as plain values."""
    assert build_rule(Part(type(example).__name__, plain_values(example))) == example


def plain_values(thing):
    """A dataclass as a table; one that is a kind of something says which, by name."""
    found = {}
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        if dataclasses.is_dataclass(value):
            kind = {"name": type(value).__name__} if type(value).__base__ is not object else {}
            value = {**kind, **plain_values(value)}
        found[field.name] = list(value) if isinstance(value, tuple) else value
    return found


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Part("flatt"), "rule.name must be one of .*Flat"),
        (Part("flat"), "rule.max_grad_norm must be given"),
        (Part("flat", {"clip": 1.0}), "rule.clip is not a setting"),
        (Part("flat", {"max_grad_norm": "1"}), "rule.max_grad_norm must be a number"),
        (Part("flat", {"max_grad_norm": -1.0}), "rule: .*max_grad_norm must be"),
        (
            Part("embedding", {"c_embedded": 1, "c_residual": 1, "basis": {"name": "fourier"}}),
            "rule.basis.name must be one of RandomBasis",
        ),
        (Part("quantile", {"tracker": {"targte": 1}}), "rule.tracker.targte is not a setting"),
    ],
)
def test_bad_rules(part, message):
    with pytest.raises(ConfigurationError, match=message):
        build_rule(part)


def test_mechanisms():
    assert build_mechanism(Part("gaussian")) == "gaussian"
    assert build_mechanism(Part("Laplace")) == "laplace"
    mixed = build_mechanism(Part("model_mix", {"tau_over_lr": [[0, 0.1], [50, 0.2]]}))
    assert mixed == ModelMix(((0, 0.1), (50, 0.2)))
    assert build_mechanism(Part("modelmix", {"tau_over_lr": 0.1})) == ModelMix(0.1)
    for part, message in (
        (Part("gauss"), "mechanism.name must be gaussian, laplace, modelmix or banded"),
        (Part("gaussian", {"std": 1.0}), "mechanism.std is not a setting"),
        (Part("modelmix", {"tau_over_lr": -1.0}), "mechanism: tau_over_lr must be finite"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            build_mechanism(part)
