"""A published claim can be printed and read by name, and used as a number by nobody."""

import math
import operator

import numpy as np
import pytest
from winsor_papers import PublishedClaim

from winsor.core.contract import Guarantee, Neighbouring

CLAIM = PublishedClaim(4.8, 1e-5, "ModelMix", "Corollary 4.1", ("worst case not proven",))
GUARANTEE = Guarantee(4.3, 1e-5, Neighbouring.ADD_OR_REMOVE_ONE, "rdp", 5000)
MARK = "published, not certified"


@pytest.mark.parametrize(
    "text",
    [str(CLAIM), repr(CLAIM), f"{CLAIM}", f"{CLAIM:.1f}", f"{CLAIM:8.3e}", "%s" % CLAIM],  # noqa: UP031
)
def test_every_text_says_what_it_is(text):
    assert MARK in text
    assert "ModelMix" in text


def test_format_applies_to_epsilon():
    assert f"{CLAIM:.3f}".startswith("epsilon 4.800 ")


def test_a_bad_format_is_an_error_and_not_a_silent_number():
    with pytest.raises(ValueError, match="format"):
        format(CLAIM, "what")


@pytest.mark.parametrize("convert", [float, int, complex, round, math.floor, math.sqrt, abs, hex])
def test_it_is_not_a_number(convert):
    with pytest.raises(TypeError):
        convert(CLAIM)


def test_the_refusal_says_what_to_do():
    with pytest.raises(TypeError, match="published_epsilon"):
        float(CLAIM)


@pytest.mark.parametrize("other", [1.0, 3, np.float64(2.0), GUARANTEE, CLAIM])
@pytest.mark.parametrize(
    "operation",
    [operator.lt, operator.le, operator.gt, operator.ge, operator.add, operator.sub, operator.mul,
     operator.truediv, operator.pow],
)  # fmt: skip
def test_it_neither_compares_nor_computes(operation, other):
    with pytest.raises(TypeError):
        operation(CLAIM, other)
    with pytest.raises(TypeError):
        operation(other, CLAIM)


def test_it_cannot_hide_among_certified_values():
    assert not isinstance(CLAIM, Guarantee)
    assert CLAIM != GUARANTEE
    assert CLAIM != 4.8
    with pytest.raises(TypeError):
        min([4.3, CLAIM])
    with pytest.raises(TypeError):
        sum([CLAIM])
    with pytest.raises(TypeError):
        np.array([CLAIM, 4.3], float)
    with pytest.raises(TypeError):
        np.ones(2) * CLAIM


def test_it_is_frozen_and_equal_by_value():
    with pytest.raises(AttributeError):
        CLAIM.published_epsilon = 1.0
    assert PublishedClaim(4.8, 1e-5, "ModelMix", "Corollary 4.1", CLAIM.doubts) == CLAIM
    assert CLAIM.published_epsilon == 4.8
