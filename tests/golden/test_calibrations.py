"""No calibration changes: see `calibrations.py`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REL = 1e-9
"""Other processors and other numpys add in another order; `tests/golden/same_bits.py` asks for
every digit, on one machine."""


def load():
    spec = importlib.util.spec_from_file_location("calibrations", HERE / "calibrations.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GOLDEN = load()
STORED = json.loads(GOLDEN.STORED.read_text())


def same(found, stored):
    """Numbers nearly, whole numbers and texts exactly."""
    if isinstance(stored, list):
        return len(found) == len(stored) and all(map(same, found, stored))
    if isinstance(stored, str) and "0x" in stored:
        return float.fromhex(found) == pytest.approx(float.fromhex(stored), rel=REL, abs=0)
    return found == stored


@pytest.mark.parametrize("family", [family.__name__ for family in GOLDEN.FAMILIES])
def test_calibrations_are_those_stored(family):
    found = json.loads(json.dumps(GOLDEN.values((family,))))
    stored = {name: value for name, value in STORED.items() if name.startswith(f"{family}/")}
    assert found.keys() == stored.keys()
    changed = {
        name: (value, stored[name])
        for name, value in found.items()
        if not same(value, stored[name])
    }
    assert not changed


def test_there_are_two_hundred():
    assert len(STORED) >= 200


def test_a_difference_beyond_rounding_is_seen():
    value = (1.25).hex()
    assert same(value, (1.25 * (1 + 1e-11)).hex())
    assert not same(value, (1.25 * (1 + 1e-7)).hex())
    assert not same(["refused: X"], ["refused: Y"])
    assert not same([3, value], [4, value])
