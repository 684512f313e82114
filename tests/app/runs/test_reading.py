"""Complaints name the key; what is accepted arrives with the right type."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from winsor.app.runs.reading import Part, bind, read, value_of
from winsor.core.contract import ConfigurationError


@dataclass(frozen=True)
class Inner:
    ratio: float = 1.0


@dataclass(frozen=True)
class Outer:
    count: int
    inner: Inner = field(default_factory=Inner)
    part: Part = field(default_factory=lambda: Part("none"))
    names: list[str] = field(default_factory=list)
    pair: tuple[float, float] = (0.0, 1.0)
    either: int | list[str] | None = None
    free: dict[str, Any] = field(default_factory=dict)


def test_everything_is_read():
    found = read(
        Outer,
        {
            "count": 2e3,
            "inner": {"ratio": 2},
            "part": {"name": "sgd", "lr": 0.1},
            "names": ["a", "b"],
            "pair": [1, 2],
            "either": ["x"],
            "free": {"anything": [1, {"b": 2}]},
        },
    )
    assert found == Outer(
        2000,
        Inner(2.0),
        Part("sgd", {"lr": 0.1}),
        ["a", "b"],
        (1.0, 2.0),
        ["x"],
        {"anything": [1, {"b": 2}]},
    )
    assert isinstance(found.count, int) and isinstance(found.inner.ratio, float)


def test_a_part_may_be_just_a_name():
    assert read(Outer, {"count": 1, "part": "adam"}).part == Part("adam")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "count must be given"),
        ({"count": 1, "cuont": 2}, r"cuont is not a setting. Did you mean 'count'\?"),
        ({"count": 1, "inner": {"ratoi": 2}}, r"inner.ratoi is not a setting.*of \[inner\]"),
        ({"count": 1, "inner": {"ratio": "2"}}, "inner.ratio must be a number. Got '2' instead"),
        ({"count": 1.5}, "count must be a whole number. Got 1.5 instead"),
        ({"count": True}, "count must be a whole number. Got True instead"),
        ({"count": float("inf")}, "count must be a whole number. Got inf instead"),
        ({"count": float("nan")}, "count must be a whole number. Got nan instead"),
        ({"count": 1, "inner": 3}, "inner must be a table of settings. Got 3 instead"),
        ({"count": 1, "part": {"lr": 1}}, "part.name must be given"),
        ({"count": 1, "part": {"name": 4}}, "part.name must be text. Got 4 instead"),
        ({"count": 1, "part": 4}, "part must be a name or a table"),
        ({"count": 1, "names": "a"}, "names must be a list of text. Got 'a' instead"),
        ({"count": 1, "names": ["a", 2]}, r"names\[1\] must be text. Got 2 instead"),
        ({"count": 1, "pair": [1]}, "pair must be a list of 2 values"),
        ({"count": 1, "either": "x"}, "either must be a whole number or a list of text"),
        ({"count": 1, "free": 1}, "free must be a table"),
    ],
)
def test_complaints_name_the_key(table, message):
    with pytest.raises(ConfigurationError, match=message):
        read(Outer, table)


def maker(model: object, *, lr: float, nesterov: bool = False) -> float:
    return lr


def test_options_follow_the_signature():
    assert bind(maker, {"lr": 1}, "optimizer") == {"lr": 1.0}
    with pytest.raises(ConfigurationError, match="optimizer.lr must be given"):
        bind(maker, {}, "optimizer")
    with pytest.raises(ConfigurationError, match=r"optimizer.momentun is not a setting"):
        bind(maker, {"lr": 1, "momentun": 0.9}, "optimizer")
    with pytest.raises(ConfigurationError, match="optimizer.nesterov must be true or false"):
        bind(maker, {"lr": 1, "nesterov": 1}, "optimizer")
    with pytest.raises(ConfigurationError, match="optimizer.model is not a setting"):
        bind(maker, {"lr": 1, "model": 1}, "optimizer")


def test_options_of_a_dataclass_may_hold_tables():
    assert bind(Outer, {"count": 1, "inner": {"ratio": 3}}, "rule")["inner"] == Inner(3.0)


def test_a_function_with_free_keywords_takes_anything():
    assert bind(lambda **options: options, {"a": 1}, "model") == {"a": 1}


def test_unknown_hints_pass_values_through():
    assert value_of(object, {"a": 1}, "x") == {"a": 1}
