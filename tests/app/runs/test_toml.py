"""What is written reads back."""

from __future__ import annotations

import tomllib

import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from winsor.app.runs.config import without_none

# TOML has 64-bit whole numbers, and text without lone surrogates.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = (
    TEXT
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)


@given(st.dictionaries(TEXT, VALUES | st.dictionaries(TEXT, VALUES, max_size=4), max_size=5))
def test_round_trip(table):
    assert tomllib.loads(tomli_w.dumps(without_none(table))) == table


def test_none_is_left_out():
    table = {"a": None, "b": {"c": None, "d": {"e": None, "f": 1}}}
    assert tomllib.loads(tomli_w.dumps(without_none(table))) == {"b": {"d": {"f": 1}}}
