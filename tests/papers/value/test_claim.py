"""Algorithm 3 as printed claims an epsilon that only its f_i reading has."""

from __future__ import annotations

import pytest
import torch
from winsor_papers.published import PublishedClaim
from winsor_papers.value.claim import ValueRun, as_printed, printed_scale

from winsor.contrib.value.value import Value
from winsor.contrib.value.wgc import WeakGrowth
from winsor.core.accounting import account
from winsor.core.contract import Guarantee
from winsor.core.noise.gaussian import Gaussian
from winsor.gradients.rows import RowsView

RUN = ValueRun(2.0, 1e-5, 0.02, 500, max_grad_norm=0.5)


def test_the_claim_is_marked_and_is_no_number():
    claim = RUN.claim()
    assert isinstance(claim, PublishedClaim)
    assert not isinstance(claim, Guarantee)
    assert "published, not certified" in f"{claim}"
    with pytest.raises(TypeError):
        float(claim)
    with pytest.raises(TypeError):
        _ = claim < 3.0


def test_reading_f_i_certifies_the_published_epsilon_with_the_same_noise():
    spent = account(RUN.certified_history(), RUN.delta)
    assert spent.epsilon <= RUN.published_epsilon
    assert spent.epsilon == pytest.approx(RUN.published_epsilon, rel=5e-3)
    rule = RUN.rule()
    assert rule == Value(0.5)
    state = rule.init({"w": torch.zeros(2)}, 8.0)
    parts = rule.bounded(rule.contributions(RowsView({"w": torch.ones(3, 2)}), state), state)
    std = Gaussian(RUN.noise_multiplier).std(parts)
    assert std["grad"] == pytest.approx(RUN.noise_multiplier * RUN.max_grad_norm)


def test_the_printed_scale_is_one_number_by_hand():
    losses = torch.tensor([1.0, 5.0])
    growth = WeakGrowth(2.0, 3.0)
    assert float(printed_scale(losses, growth, 1.0)) == pytest.approx(1 / 3)
    assert float(printed_scale(losses, growth, 1.0, lower=1.0)) == pytest.approx(7**-0.5)
    assert float(printed_scale(losses, growth, 10.0)) == 1.0


def test_the_printed_sum_is_not_bounded_by_anything():
    """One row with a large gradient among many with a small loss moves the sum by its size."""
    rows, losses = torch.zeros(1000, 2), torch.zeros(1000)
    rows[0, 0], losses[0] = 50.0, 1250.0  # (x.w - y)^2/2 with x = 1: gradient 50
    with_it = as_printed(RowsView({"w": rows}, losses), WeakGrowth(2.0), 1.0)
    without = as_printed(RowsView({"w": rows[1:]}, losses[1:]), WeakGrowth(2.0), 1.0)
    assert (with_it["w"] - without["w"]).norm() > 30
