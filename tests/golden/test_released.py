"""No released value changes: see `released.py`."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEAR = 1e-6
"""Numbers pass through BLAS and LAPACK; `tests/golden/same_bits.py` asks for every digit."""


def load():
    spec = importlib.util.spec_from_file_location("released", HERE / "released.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GOLDEN = load()
STORED = json.loads(GOLDEN.STORED.read_text())


def same(found, stored):
    """Texts and whole numbers exactly, other numbers nearly."""
    if isinstance(stored, dict):
        return found.keys() == stored.keys() and all(same(found[k], stored[k]) for k in stored)
    if isinstance(stored, list):
        return len(found) == len(stored) and all(map(same, found, stored))
    if isinstance(stored, float) and isinstance(found, float):
        if not math.isfinite(stored):
            return repr(found) == repr(stored)
        return math.isclose(found, stored, rel_tol=NEAR, abs_tol=NEAR)
    return type(found) is type(stored) and found == stored


@pytest.mark.parametrize("family", [family.__name__ for family in GOLDEN.FAMILIES])
def test_values_are_those_stored(family):
    found = json.loads(json.dumps(GOLDEN.values((family,))))
    stored = {name: value for name, value in STORED.items() if name.startswith(f"{family}/")}
    assert found.keys() == stored.keys()
    exactly = family in [one.__name__ for one in GOLDEN.EXACT] and family != "doors"
    changed = {
        name: (value, stored[name])
        for name, value in found.items()
        if not (value == stored[name] if exactly else same(value, stored[name]))
    }
    assert not changed


def test_every_rule_is_trained():
    assert {f"weights/{rule!r}" for rule in GOLDEN.every_rule()} <= STORED.keys()


def test_differences_are_seen():
    assert same({"a": [1.0, "x", 2]}, {"a": [1.0 + 1e-9, "x", 2]})
    for other in ({"a": [1.001, "x", 2]}, {"a": [1.0, "y", 2]}, {"a": [1.0, "x", 3]}, {"b": 1}):
        assert not same(other, {"a": [1.0, "x", 2]})
    assert same([math.nan, math.inf], [math.nan, math.inf])
    assert not same([0.0], [math.nan])
