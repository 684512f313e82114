"""L1 clipping: both bounds, at every scale, and what each kind of noise makes of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from winsor.core.contract import ConfigurationError
from winsor.gradients.rows import RowsView
from winsor.rules.coordinates import L1

PARAMETERS = {"w": torch.zeros(3, 2), "b": torch.zeros(4)}


def summed(rule, rows):
    state = rule.init(PARAMETERS, 4.0)
    part = rule.bounded(rule.contributions(RowsView(rows), state), state)["grad"]
    return part, torch.cat([part.value["w"].flatten(), part.value["b"]])


def tree(matrix):
    return {"w": matrix[:, :6].view(-1, 3, 2), "b": matrix[:, 6:]}


def test_by_hand():
    rows = {"w": torch.zeros(1, 3, 2), "b": torch.tensor([[6.0, -8.0, 6.0, 0.0]])}
    _, value = summed(L1(10.0), rows)  # L1 norm 20: halved
    torch.testing.assert_close(
        value[6:], torch.tensor([3.0, -4.0, 3.0, 0.0]).double(), rtol=1.2e-4, atol=0
    )
    _, value = summed(L1(10.0, p=3), rows)  # and then cut to 10/3
    cut = 10 / 3
    torch.testing.assert_close(
        value[6:], torch.tensor([3.0, -cut, 3.0, 0.0]).double(), rtol=1.2e-4, atol=0
    )


def test_short_rows_are_left_alone():
    rows = tree(torch.full((1, 10), -0.05))
    _, value = summed(L1(1.0), rows)
    assert torch.equal(value, torch.full((10,), -0.05))


@given(st.integers(1, 10), st.floats(-44, 37), st.integers(0, 500), st.booleans())
def test_both_bounds_hold(p, exponent, seed, spiky):
    generator = torch.Generator().manual_seed(seed)
    row = torch.randn(1, 10, generator=generator) * 10.0**exponent
    if spiky:
        row[:, 1:] *= 1e-6
    part, value = summed(L1(0.3, p), tree(row))
    assert value.double().abs().sum() <= 0.3
    assert value.double().abs().max() <= 0.3 / p
    assert part.coordinate_bound == (None if p == 1 else pytest.approx(0.3 / p))
    l2 = part.sensitivity.add_remove
    assert value.double().norm() <= l2 == pytest.approx(0.3 / p**0.5)
    assert (part.sensitivity.l1, part.sensitivity.replace) == (0.3, 2 * l2)


@given(st.integers(0, 500))
def test_neighbouring_batches_differ_by_the_bound_in_l1(seed):
    generator = torch.Generator().manual_seed(seed)
    scales = 10.0 ** (6 * torch.rand(5, 1, generator=generator) - 3)
    rows = torch.randn(5, 10, generator=generator) * scales
    other = torch.cat([rows[:-1], -1e5 * rows[-1:]])
    whole, without, replaced = (
        summed(L1(0.7, 2), tree(batch))[1].double() for batch in (rows, rows[:-1], other)
    )
    assert (whole - without).abs().sum() <= 0.7 * (1 + 1e-5)
    assert (whole - replaced).abs().sum() <= 1.4 * (1 + 1e-5)


def test_constants_are_checked():
    with pytest.raises(ConfigurationError, match="max_grad_norm must be"):
        L1(-1.0)
    for p in (0, 2.5, -3):
        with pytest.raises(ConfigurationError, match="p must be a positive whole number"):
            L1(1.0, p)
    with pytest.raises(ConfigurationError, match="p must be at most the number"):
        L1(1.0, 11).init(PARAMETERS, 4.0)
