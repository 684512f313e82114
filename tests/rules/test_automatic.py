"""AUTO-S and NSGD: the formula, the bound at every scale, and rows of length zero."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from winsor.core.contract import ConfigurationError
from winsor.gradients.rows import RowsView
from winsor.rules.automatic import NSGD, Automatic


def clipped_row(rule, row):
    view = RowsView({"w": row[None]})
    return rule.contributions(view, rule.init({"w": row}, 1.0))["grad"]["w"]


def test_the_formula():
    norms = torch.tensor([0.0, 0.5, 10.0], dtype=torch.float64)
    torch.testing.assert_close(
        Automatic(2.0, 0.5).weight_of_norm(norms), 2.0 / (norms + 0.5), rtol=1.1e-4, atol=0
    )
    torch.testing.assert_close(
        NSGD(1.0, 0.1).weight_of_norm(norms), 1.0 / (norms + 0.1), rtol=1.1e-4, atol=0
    )


@given(
    st.sampled_from([Automatic(1.0, 0.01), NSGD(3.0, 0.0), NSGD(0.1, 2.0)]),
    st.floats(-44, 37),
    st.integers(0, 1000),
)
def test_no_row_contributes_more_than_the_threshold(rule, exponent, seed):
    row = torch.randn(50, generator=torch.Generator().manual_seed(seed)) * 10.0**exponent
    assert clipped_row(rule, row).double().norm() <= rule.max_grad_norm


def test_without_regulariser_only_the_direction_is_left():
    row = torch.tensor([3.0, -4.0]) * 1e-8
    torch.testing.assert_close(
        clipped_row(NSGD(1.0, 0.0), row), torch.tensor([0.6, -0.8]).double(), rtol=1.1e-4, atol=0
    )
    assert clipped_row(NSGD(1.0, 0.0), torch.zeros(2)).eq(0).all()


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_constants_are_checked(bad):
    with pytest.raises(ConfigurationError, match="max_grad_norm must be"):
        Automatic(bad)
    with pytest.raises(ConfigurationError, match="gamma must be"):
        Automatic(1.0, bad)
    if bad != 0:
        with pytest.raises(ConfigurationError, match="regulariser must be"):
            NSGD(1.0, bad)
