"""Compensated clipping: a Pareto tail keeps its weight, flat at large indices, and the bound."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from winsor.rules.compensated import Compensated

from winsor.core.contract import ConfigurationError
from winsor.rules.flat import Flat
from winsor.rules.power import Power

LENGTHS = torch.tensor([0.0, 1e-20, 0.01, 0.5, 0.999, 1.0, 3.0, 1e30])


@pytest.mark.parametrize("index", [1.6, 2.5, 4.0])
def test_a_pareto_tail_and_short_rows_are_lowered_by_the_same_factor(index):
    """Quantiles in the middle of equal shares stand for a sample without chance."""
    shares = (torch.arange(10**6, dtype=torch.float64) + 0.5) / 10**6
    tail = 2.0 * shares ** (-1 / index)
    rule = Compensated(2.0, index)
    kept = float((rule.weight_of_norm(tail) * tail).mean() / tail.mean())
    short = float(rule.weight_of_norm(torch.tensor([1e-6]))[0])
    assert kept == pytest.approx(short, rel=0.01)
    flat = float((Flat(2.0).weight_of_norm(tail) * tail).mean() / tail.mean())
    assert flat < 0.8  # which gives short rows the weight 1


def test_a_large_index_is_flat_clipping_and_an_index_near_one_squares():
    for index, other in ((1e9, Flat(1.0)), (1 + 1e-9, Power(1.0, 2.0))):
        torch.testing.assert_close(
            Compensated(1.0, index).weight_of_norm(LENGTHS), other.weight_of_norm(LENGTHS)
        )


@given(st.floats(1.001, 50), st.floats(1e-3, 1e3))
def test_no_length_exceeds_the_threshold(index, threshold):
    lengths = torch.cat([LENGTHS, LENGTHS[:-1] * threshold])
    weights = Compensated(threshold, index).weight_of_norm(lengths)
    bent = weights.double() * lengths.double() * (1 + 8e-6)
    assert bent.isfinite().all()
    assert float(bent.max()) <= threshold


@pytest.mark.parametrize("index", [1.0, 0.5, float("inf"), float("nan")])
def test_an_index_without_a_mean_is_refused(index):
    with pytest.raises(ConfigurationError, match="tail_index"):
        Compensated(1.0, index)
