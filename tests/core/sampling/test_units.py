"""Identifiers: a missing one must not make a person of its own, nor split another."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pytest

from winsor.core.contract import ConfigurationError
from winsor.core.sampling.units import UnitRows

pandas = pytest.importorskip("pandas")
NAN = float("nan")


class Odd:
    """Equal to nothing."""

    def __eq__(self, other):
        raise ArithmeticError("secret")

    __hash__ = None


MISSING = {
    "NaN": [1.0, NAN],
    "NaN among objects": np.array([7.0, NAN, 3.0, 7.0, NAN, 5.0, 7.0], object),
    "NaN among texts": ["a", NAN],
    "NaN among text objects": np.array(["a", NAN], object),
    "NaN among bytes": [b"a", NAN],
    "complex": [1j, complex(NAN, 0)],
    "None": [1, None],
    "None among texts": np.array(["a", None]).astype(str),
    "NaT": np.array(["2020-01-01", "NaT"], "M8[D]"),
    "NaT of a duration": np.array([1, "NaT"], "m8[s]"),
    "NaT of pandas": [pandas.Timestamp("2020"), pandas.NaT],
    "NA": pandas.Series([1, None], dtype="Int64"),
    "NA of an array": pandas.array([1, None]),
    "NA of texts": pandas.Series(["a", None], dtype="string"),
    "NA as text": np.array(["a", str(pandas.NA)]),
    "a category": pandas.Series(["a", None], dtype="category"),
    "masked": np.ma.array([1, 2], mask=[False, True]),
    "empty": ["a", ""],
    "empty bytes": [b"a", b""],
    "decimal": [decimal.Decimal(1), decimal.Decimal("NaN")],
    "signalling": [decimal.Decimal(1), decimal.Decimal("sNaN")],
    "pairs": np.array([("a", NAN), None], object)[:1],
    "records": np.array([(1, 2.0), (1, NAN)], [("a", int), ("b", float)]),
    "raises": np.array([Odd(), Odd()], object),
}
KNOWN = {
    "numbers": ([3, 1, 3], 2),
    "texts": (["b", "a", "b"], 2),
    "a series": (pandas.Series(["x", "y", "x"]), 2),
    "no gaps": (pandas.Series([1, 2, 1], dtype="Int64"), 2),
    "objects": (np.array([3.0, 1, 3], object), 2),
    "dates": ([datetime.date(2020, 1, 1)] * 2, 1),
    "bytes": ([b"x", b"y"], 2),
    "unmasked": (np.ma.array([1, 2]), 2),
    "a surname": (["Nan", "Null", "Nan"], 2),
}


@pytest.mark.parametrize("ids", MISSING.values(), ids=MISSING)
def test_a_missing_identifier_is_refused(ids):
    with pytest.raises(ConfigurationError, match="unit must give an identifier") as caught:
        UnitRows(ids, 1)
    assert not any(word in str(caught.value) for word in ("2020", "7.0", "secret", "1 of", "'a'"))


@pytest.mark.parametrize(("ids", "units"), KNOWN.values(), ids=KNOWN)
def test_known_ones_are_numbered(ids, units):
    assert UnitRows(ids, 1).n == units


def test_a_mixture_is_refused_without_quoting_it():
    with pytest.raises(ConfigurationError, match="sorted"):
        UnitRows(np.array([1, "secret"], object), 1)
