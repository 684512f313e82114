"""The bound holds for the numbers that the machine sums, also where float32 loses digits."""

from __future__ import annotations

import pytest
import torch

from winsor.gradients.parameter_rows import Factors, Outer, Rows
from winsor.rules.rule import clip_weights

CONSTANTS = [0.1, 0.3, 1 / 3, 0.7]


@pytest.mark.parametrize("value", CONSTANTS)
@pytest.mark.parametrize("length", [1000, 1025, 1 << 14, (1 << 20) + 3])
def test_a_clipped_row_is_never_longer_than_its_bound(length, value):
    rows = Rows(torch.full((2, length), value))
    weight = clip_weights(rows.square().sqrt(), 1.0)
    clipped = rows.values[0].double() * weight[0].double()
    assert 0.999 < float(clipped.norm()) <= 1.0


@pytest.mark.parametrize("value", CONSTANTS)
@pytest.mark.parametrize("count", [1000, 1025, 5000, 100_000])
def test_one_row_moves_a_long_sum_by_no_more_than_its_bound(count, value):
    x = torch.full((count, 4), value)
    weights = clip_weights(Rows(x).square().sqrt(), 1.0)

    def total(rows):
        out = torch.empty(4)
        Rows(x[:rows]).weighted(weights[:rows], out)
        return out.double()

    # the sum itself is a float32: its last digit is all that is left
    last_digit = float(total(count).norm()) * 2.0**-23
    assert float((total(count) - total(count - 1)).norm()) <= 1.0 + last_digit


@pytest.mark.parametrize("kind", ["outer", "factors"])
def test_long_products_are_those_of_float64(kind):
    generator = torch.Generator().manual_seed(0)
    left = torch.rand(20_000, 5, generator=generator)
    right = torch.rand(20_000, 7, generator=generator)
    weights = torch.rand(20_000, generator=generator)
    piece = Outer(Rows(left), Rows(right))
    if kind == "factors":
        piece = Factors(left.view(20_000, 1, 5), right.view(20_000, 1, 7))
    out = torch.empty(5, 7)
    piece.weighted(weights, out)
    exact = (left.double() * weights.double()[:, None]).T @ right.double()
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("length", [257, 784, 1023, 1024, 1025])
@pytest.mark.parametrize("order", ["rising", "falling", "one large", "alike", "across"])
def test_norms_are_within_the_rounding_that_rules_allow_for(order, length):
    """Orders in which a running sum in float32 would lose most."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.rand(64, length, generator=generator)
    if order in ("rising", "falling"):
        rows = rows.sort(1, descending=order == "falling").values
    elif order == "one large":
        rows[:, ::length] = 30.0
    elif order == "alike":
        rows = rows[:, :1].expand(64, length).contiguous()
    else:  # rows that are not neighbours in memory
        rows = rows.sort(1).values.T.contiguous().T
    found = Rows(rows).square().double().sqrt()
    exact = rows.double().norm(dim=1)
    assert float(((found - exact).abs() / exact).max()) < 8e-6
