"""Difference clipping: what it adds back, what it costs, and the mutant with the realised size."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from winsor.rules.centred import Centred

from winsor.core.contract import Released
from winsor.gradients.rows import RowsView

SHAPES = {"w": torch.zeros(3)}
STEADY = torch.tensor([30.0, 0.0, 0.0])


def played(rule, matrix, state):
    parts = rule.bounded(rule.contributions(RowsView({"w": matrix}), state), state)
    release = Released({"grad": {"w": parts["grad"].value["w"].clone()}}, {}, 0)
    return rule.after(release, state)


def test_it_finds_a_mean_that_is_longer_than_the_threshold():
    rule = Centred(1.0, rate=0.2, longest=100.0)
    state = rule.init(SHAPES, 8.0)
    rows = STEADY + torch.randn(8, 3, generator=torch.Generator().manual_seed(0)) * 0.1
    for _ in range(200):
        gradient, state = played(rule, rows, state)
    torch.testing.assert_close(gradient.values["grad"]["w"], rows.sum(0), rtol=1e-3, atol=1e-3)


def test_with_its_centre_at_zero_it_is_flat():
    rule = Centred(1.0)
    state = rule.init(SHAPES, 4.0)
    rows = torch.tensor([[3.0, 0.0, 4.0], [0.1, 0.2, 0.0]])
    gradient, _ = played(rule, rows, state)
    expected = torch.tensor([0.6, 0.0, 0.8]) + rows[1]
    torch.testing.assert_close(gradient.values["grad"]["w"], expected, rtol=1e-4, atol=1e-4)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), st.floats(0.01, 10))
def test_a_record_moves_the_sum_by_at_most_the_threshold_wherever_the_centre_is(row, threshold):
    rule = Centred(threshold)
    state = rule.init(SHAPES, 4.0) | {"centre": {"w": torch.tensor([5.0, -3.0, 100.0])}}
    others = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    more = torch.cat([others, torch.tensor([row])])
    one, other = (
        rule.contributions(RowsView({"w": matrix}), state)["grad"]["w"].double()
        for matrix in (others, more)
    )
    assert float((one - other).norm()) <= threshold * (1 + 1e-4) + 1e-5 * len(more)


def test_the_centre_is_added_for_the_expected_size_not_for_the_rows_that_came():
    rule = Centred(1.0)
    centre = {"w": torch.tensor([2.0, 0.0, 0.0])}
    state = rule.init(SHAPES, 4.0) | {"centre": centre}
    for count in (0, 1, 7):
        gradient, _ = played(rule, centre["w"].repeat(count, 1), state)
        torch.testing.assert_close(gradient.values["grad"]["w"], 4 * centre["w"])


def test_the_centre_stays_within_its_length():
    rule = Centred(1.0, rate=0.9, longest=0.5)
    state = rule.init(SHAPES, 1.0)
    for _ in range(20):
        _, state = played(rule, STEADY[None], state)
    assert float(state["centre"]["w"].norm()) <= 0.5 * (1 + 1e-6)
