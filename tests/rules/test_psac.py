"""DP-PSAC: the formula, its hump, and the bound at every scale."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from winsor.core.contract import ConfigurationError
from winsor.gradients.rows import RowsView
from winsor.rules.automatic import PSAC


def test_the_formula():
    norms = torch.tensor([0.0, 0.2, 5.0])
    expected = 2.0 / (norms + 0.1 / (norms + 0.1))
    torch.testing.assert_close(
        PSAC(2.0, 0.1).weight_of_norm(norms), expected.double(), rtol=1.2e-4, atol=0
    )


def test_the_weight_is_largest_where_the_docstring_says():
    norms = torch.linspace(0, 3, 3001)
    weights = PSAC(1.0, 0.1).weight_of_norm(norms)
    assert abs(float(norms[weights.argmax()]) - (0.1**0.5 - 0.1)) < 2e-3
    assert abs(float(weights[0]) - 1) < 1.2e-4


@given(st.floats(0.001, 10), st.floats(-44, 37), st.integers(0, 1000))
def test_no_row_contributes_more_than_the_threshold(r, exponent, seed):
    rule = PSAC(0.7, r)
    row = torch.randn(50, generator=torch.Generator().manual_seed(seed)) * 10.0**exponent
    clipped = rule.contributions(RowsView({"w": row[None]}), {})["grad"]["w"]
    assert clipped.double().norm() <= 0.7


def test_constants_are_checked():
    with pytest.raises(ConfigurationError, match="max_grad_norm must be"):
        PSAC(0.0)
    with pytest.raises(ConfigurationError, match="r must be"):
        PSAC(1.0, -0.1)
