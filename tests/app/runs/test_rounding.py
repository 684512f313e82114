"""A printed bound is a bound."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from winsor.app.runs.summary import rounded_up


@given(st.floats(1e-12, 1e12), st.integers(1, 8))
def test_never_below_and_hardly_above(value, digits):
    shown = float(rounded_up(value, digits))
    assert value <= shown * (1 + 1e-15)
    assert shown <= value + 10 ** (math.floor(math.log10(value)) - digits + 1) * (1 + 1e-9)


def test_special_values():
    assert rounded_up(0.0) == "0"
    assert rounded_up(math.inf) == "infinite"
    assert rounded_up(9.999) == "10.0"
