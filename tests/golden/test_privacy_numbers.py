"""No privacy number changes unless CHANGELOG says so: see `privacy_numbers.py`."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def load():
    spec = importlib.util.spec_from_file_location("golden", HERE / "privacy_numbers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("family", ["plans", "runs", "estimators"])
def test_numbers_are_those_stored(family):
    golden = load()
    stored = json.loads(golden.STORED.read_text())
    found = json.loads(json.dumps(golden.numbers((family,))))
    wanted = {"plans": ("plan ", "mixing "), "runs": ("run ",)}.get(family)
    assert found.keys() == {
        name
        for name in stored
        if name.startswith(wanted or ("logistic", "ridge", "clipped", "iterative"))
    }
    for name, value in found.items():
        assert text_of(value) == text_of(stored[name]), name
        # other processors sum in another order; on the machine that stored them: bit for bit
        assert numbers_of(value) == pytest.approx(numbers_of(stored[name]), rel=1e-11), name


NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?")


def text_of(value):
    """A number, or an event with its numbers, without them."""
    return NUMBER.sub("#", json.dumps(value))


def numbers_of(value):
    return [float(number) for number in NUMBER.findall(json.dumps(value))]
