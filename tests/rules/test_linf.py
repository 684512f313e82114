"""l2 + l-inf clipping: both bounds, at every scale."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from winsor.core.contract import ConfigurationError
from winsor.gradients.rows import RowsView
from winsor.rules.coordinates import LInf

PARAMETERS = {"w": torch.zeros(3, 2), "b": torch.zeros(4)}


def summed(rule, rows):
    state = rule.init(PARAMETERS, 4.0)
    part = rule.bounded(rule.contributions(RowsView(rows), state), state)["grad"]
    return part, torch.cat([part.value["w"].flatten(), part.value["b"]])


def test_algorithm_2_by_hand():
    rows = {"w": torch.zeros(1, 3, 2), "b": torch.tensor([[6.0, 8.0, 0.0, 0.0]])}
    _, value = summed(LInf(5.0, 2), rows)  # l2: (3, 4); then 5/sqrt(2) = 3.5355
    torch.testing.assert_close(
        value[6:8], torch.tensor([3.0, 3.5355339]).double(), rtol=1.2e-4, atol=0
    )


@given(st.integers(1, 10), st.floats(-44, 37), st.integers(0, 500), st.booleans())
def test_both_bounds_hold(p, exponent, seed, spiky):
    generator = torch.Generator().manual_seed(seed)
    row = torch.randn(1, 10, generator=generator) * 10.0**exponent
    if spiky:
        row[:, 1:] *= 1e-6
    part, value = summed(LInf(0.3, p), {"w": row[:, :6].view(1, 3, 2), "b": row[:, 6:]})
    assert value.double().norm() <= 0.3
    assert part.coordinate_bound == pytest.approx(0.3 / p**0.5)
    assert value.double().abs().max() <= part.coordinate_bound
    assert (part.sensitivity.add_remove, part.sensitivity.replace) == (0.3, 0.6)


def test_constants_are_checked():
    with pytest.raises(ConfigurationError, match="max_grad_norm must be"):
        LInf(-1.0)
    for p in (0, 2.5, -3):
        with pytest.raises(ConfigurationError, match="p must be a positive whole number"):
            LInf(1.0, p)
    with pytest.raises(ConfigurationError, match="p must be at most the number"):
        LInf(1.0, 11).init(PARAMETERS, 4.0)
