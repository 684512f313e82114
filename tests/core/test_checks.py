"""One wording per check, and the one policy for delta."""

from __future__ import annotations

import math

import numpy as np
import pytest

from winsor.core import checks
from winsor.core.contract import ConfigurationError, Neighbouring


@pytest.mark.parametrize("value", [1, 0.5, np.float32(2), np.int64(3)])
def test_positive_numbers_of_all_libraries_pass(value):
    assert checks.positive("x", value) == float(value)


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, True, None, [1.0]])
def test_what_is_not_positive_is_refused_in_one_wording(value):
    with pytest.raises(ConfigurationError) as refused:
        checks.positive("x", value, "Try 1.")
    assert str(refused.value) == (
        f"x must be a positive finite number. Got {value!r} instead. Try 1."
    )


def test_a_number_in_quotes_is_met_with_the_number():
    with pytest.raises(ConfigurationError, match=r"Got '1' instead\. Write it without quotes: x=1"):
        checks.positive("x", "1")


@pytest.mark.parametrize("value", [0, 1.5, 2.0, True, "3"])
def test_whole_numbers(value):
    assert checks.whole("k", np.int64(3)) == 3
    with pytest.raises(ConfigurationError, match="k must be a positive whole number. Got"):
        checks.whole("k", value)
    with pytest.raises(ConfigurationError, match="k must be a whole number >= 4. Got"):
        checks.whole("k", value, least=4)


def test_whole_numbers_as_people_write_them():
    assert checks.written_whole("n", 6e4) == 60_000
    assert checks.written_whole("n", None) is None
    for value in (1.5, math.inf, math.nan, 0.0):
        with pytest.raises(ConfigurationError, match="n must be a positive whole number"):
            checks.written_whole("n", value)


@pytest.mark.parametrize("value", [0, 1, -0.1, math.nan, True])
def test_probabilities(value):
    with pytest.raises(ConfigurationError, match="p must be strictly between 0 and 1"):
        checks.probability("p", value)


def test_fractions_may_be_zero():
    assert checks.fraction("f", 0) == 0
    with pytest.raises(ConfigurationError, match=r"f must be in \[0, 1\)"):
        checks.fraction("f", 1.0)


def test_a_misspelt_choice_is_recognised():
    with pytest.raises(ConfigurationError, match="one of red, green. Got 'gren' instead. Did you"):
        checks.choice("colour", "gren", ("red", "green"))
    with pytest.raises(ConfigurationError, match="Did you mean 'replace_one'?"):
        checks.as_relation("replace-one")
    assert checks.as_relation("replace_one") is Neighbouring.REPLACE_ONE


@pytest.mark.parametrize("n", [1, 2, 10, 50_000, 10**9])
def test_the_default_delta_is_below_one_over_n(n):
    assert 0 < checks.as_delta(None, n) < 1 / n
    assert checks.as_delta(checks.as_delta(None, n), n) == checks.as_delta(None, n)


def test_a_delta_of_one_over_n_must_be_said():
    with pytest.raises(ConfigurationError, match="allow_large_delta=True"):
        checks.as_delta(0.01, 100)
    assert checks.as_delta(0.01, 100, allow_large=True) == 0.01
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(ConfigurationError, match="delta must be strictly between 0 and 1"):
            checks.as_delta(delta, 100, allow_large=True)
