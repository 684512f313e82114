"""AClip: the formula, the attained bound of 2 lambda, and totals that are not finite."""

from __future__ import annotations

import pytest
import torch

from winsor.core.contract import ConfigurationError
from winsor.gradients.rows import RowsView
from winsor.rules.averaged import Averaged, clip_to_ball

WEIGHT = {"w": torch.zeros(2)}


def part_of(rule, rows, expected_size=4.0):
    state = rule.init(WEIGHT, expected_size)
    sums = rule.contributions(RowsView({"w": torch.tensor(rows).reshape(-1, 2)}), state)
    return rule.bounded(sums, state)["grad"]


def test_the_mean_is_clipped_once_in_units_of_the_sum():
    part = part_of(Averaged(2.5), [[30.0, 0.0], [0.0, 40.0]])  # mean (7.5, 10), norm 12.5
    torch.testing.assert_close(
        part.value["w"], torch.tensor([6.0, 8.0]).double(), rtol=1.1e-4, atol=0
    )
    short = part_of(Averaged(2.5), [[3.0, 0.0], [0.0, 4.0]])
    torch.testing.assert_close(short.value["w"], torch.tensor([3.0, 4.0]).double())


def test_the_mean_is_normalised_by_the_expected_size_not_by_the_realised_one():
    once, twice = part_of(Averaged(10.0), [[1.0, 0.0]]), part_of(Averaged(10.0), [[1.0, 0.0]] * 2)
    torch.testing.assert_close(2 * once.value["w"], twice.value["w"])


def test_one_record_can_move_the_mean_by_two_lambda_and_that_is_what_is_claimed():
    rule, others = Averaged(0.5), [[-1e3, 0.0]] * 3
    without, with_record = part_of(rule, others), part_of(rule, [*others, [1e9, 0.0]])
    moved = float((without.value["w"] - with_record.value["w"]).norm())
    claimed = with_record.sensitivity
    assert claimed.add_remove == claimed.replace == 2 * 0.5 * 4.0
    assert 0.999 * claimed.add_remove <= moved <= claimed.add_remove


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_total_that_is_not_finite_becomes_zero(bad):
    part = part_of(Averaged(1.0), [[bad, 0.0], [bad, 1.0]])
    assert part.value["w"].eq(0).all()


def test_huge_totals_are_clipped_not_lost():
    value = clip_to_ball({"w": torch.tensor([3e30, 4e30]), "b": torch.zeros(())}, 1.0)
    torch.testing.assert_close(value["w"], torch.tensor([0.6, 0.8]), rtol=1.1e-4, atol=0)
    assert torch.cat([value["w"], value["b"][None]]).double().norm() <= 1.0


def test_the_constant_is_checked():
    with pytest.raises(ConfigurationError, match="max_mean_norm must be"):
        Averaged(0.0)
