"""Search spaces: what can be drawn, how it is written, what is refused."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pytest
from scipy import stats

from winsor.core.contract import ConfigurationError
from winsor.tuning import Choice, Integer, LogUniform, Space, Uniform

TOML = """
lr = { log_uniform = [0.01, 1.0] }
momentum = { uniform = [0.0, 0.9] }
depth = { integer = [1, 3] }
rule = { choice = ["flat", "automatic"] }
steps = 100
"""


def draws(space, count=500):
    rng = np.random.default_rng(0)
    return [space.draw(rng) for _ in range(count)]


def test_every_kind_of_law():
    space = Space.of(
        {
            "a": Uniform(1.0, 2.0),
            "b": LogUniform(0.01, 100.0),
            "c": Integer(2, 4),
            "d": Choice(("x", "y")),
            "e": ["one", 2, None],
            "f": stats.loguniform(1e-3, 1.0),
            "g": stats.randint(5, 8),
            "h": "always",
        }
    )
    found = draws(space)
    assert all(1 <= s["a"] <= 2 and 0.01 <= s["b"] <= 100 for s in found)
    assert {s["c"] for s in found} == {2, 3, 4}
    assert {s["d"] for s in found} == {"x", "y"} and {s["e"] for s in found} == {"one", 2, None}
    assert all(1e-3 <= s["f"] <= 1 for s in found) and {s["g"] for s in found} == {5, 6, 7}
    assert {s["h"] for s in found} == {"always"}
    assert np.median([s["b"] for s in found]) == pytest.approx(1.0, rel=0.7)
    assert isinstance(found[0]["c"], int) and isinstance(found[0]["g"], int)
    json.dumps(space.describe())


def test_spaces_in_toml():
    space = Space.of(tomllib.loads(TOML))
    found = draws(space)
    assert {s["rule"] for s in found} == {"flat", "automatic"}
    assert {s["steps"] for s in found} == {100} and {s["depth"] for s in found} == {1, 2, 3}
    assert space.describe() == Space.of(tomllib.loads(TOML)).describe()


def test_two_scipy_distributions_are_told_apart():
    one, other = (Space.of({"x": stats.uniform(0, top)}).describe() for top in (1, 2))
    assert one != other


def test_a_known_setting_takes_its_share_and_comes_as_a_whole():
    laws = {"lr": LogUniform(0.1, 10.0), "clip": Uniform(0.5, 2.0)}
    space = Space.of(laws).with_known({"lr": 1.0, "clip": 1.0}, share=0.25)
    found = draws(space, 2000)
    known = [s for s in found if s == {"lr": 1.0, "clip": 1.0}]
    assert len(known) / len(found) == pytest.approx(0.25, abs=0.03)
    assert all((s["lr"] == 1.0) == (s["clip"] == 1.0) for s in found)
    said = {json.dumps(one.describe()) for one in (Space.of(laws), space)}
    assert len(said) == 2  # a tuning does not go on in the other


@pytest.mark.parametrize(
    "make",
    [
        lambda: Uniform(1.0, 1.0),
        lambda: LogUniform(0.0, 1.0),
        lambda: Integer(3, 2),
        lambda: Choice(()),
        lambda: Space.of({}),
        lambda: Space.of("lr"),
        lambda: Space.of({"x": {"normal": [0, 1]}}),
        lambda: Space.of({"x": {"uniform": [5.0]}}),
        lambda: Space.of({"x": {"log_uniform": ["a", "b"]}}),
        lambda: Space.of({"x": {"integer": [0.5, 2.5]}}),
        lambda: Space.of({"x": {"uniform": 3}}),
        lambda: Space.of({"x": {"choice": 3}}),
        lambda: Space.of({"x": {"choice": "flat"}}),
        lambda: Space.of({"x": [1, 2]}).with_known({"y": 1}, 0.5),
        lambda: Space.of({"x": [1, 2]}).with_known({"x": 1}, 1.0),
    ],
)
def test_impossible_spaces_are_refused(make):
    with pytest.raises(ConfigurationError):
        make()
