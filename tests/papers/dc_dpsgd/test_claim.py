"""DC-DPSGD's published split budget, what its noise certifies, and an instance that breaks it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent
from scipy import optimize, stats
from winsor_papers.dc_dpsgd.attacks import RankInstance
from winsor_papers.dc_dpsgd.claim import READINGS, DcDpsgdRun
from winsor_papers.published import PublishedClaim

from winsor.core.accounting import account
from winsor.core.contract import ConfigurationError, Guarantee
from winsor.core.noise.gaussian import Gaussian
from winsor.gradients.rows import RowsView
from winsor.planning import calibrate


@pytest.fixture(scope="module")
def equal_split():
    return DcDpsgdRun()


def test_the_claim_is_the_sum_of_the_split_and_published_only(equal_split):
    claim = equal_split.claim()
    assert (claim.published_epsilon, claim.delta) == (8.0, 2e-5)
    assert isinstance(claim, PublishedClaim)
    assert not isinstance(claim, Guarantee)
    assert "published, not certified" in f"{claim:.1f}"
    with pytest.raises(TypeError):
        _ = claim + 1


def test_the_noise_of_the_equal_split(equal_split):
    """docs/privacy.md, "Reference numbers": sigma_dp = 0.675."""
    assert equal_split.sigma_gradient == pytest.approx(0.675, rel=2e-3)
    assert equal_split.published_sensitivity == pytest.approx(0.19)


@pytest.mark.parametrize("selection, true", [("rank", 50.9), ("norm", 3.92), ("random", 0.43)])
def test_what_that_noise_certifies(equal_split, selection, true):
    """Rank 50.9, a per-record rule 3.92, coins 0.435 at the smaller sd c1 s.

    docs/privacy.md, "Reference numbers".
    """
    certified = account(equal_split.certified_history(selection), 1e-5).epsilon
    assert certified == pytest.approx(true, rel=6e-3)


def test_the_three_readings_of_the_noise():
    """In units of sigma_dp c1, for p = 0.1 and c2 = 0.1 c1.

    docs/privacy.md, "Published claims that do not hold".
    """
    spreads = {}
    for reading in READINGS:
        run = DcDpsgdRun(2.0, 2.0, steps=10, batch=100, records=1000, reading=reading)
        spreads[reading] = run.noise_std / run.sigma_gradient
    assert spreads["two noises"] == pytest.approx(math.sqrt(1.01))
    assert spreads["per record"] == pytest.approx(math.sqrt(10 * 1 + 90 * 0.01))
    assert spreads["public code"] == pytest.approx(0.135, abs=5e-4)
    with pytest.raises(ConfigurationError, match="reading must be one of"):
        DcDpsgdRun(reading="one noise")


def test_the_certified_run_adds_exactly_the_published_noise():
    run = DcDpsgdRun(2.0, 2.0, steps=10, batch=100, records=1000, reading="public code", c1=3.0)
    for selection in ("rank", "norm", "random"):
        rule = run.rule(selection)
        state = rule.init({"w": torch.zeros(300)}, 100.0)
        parts = rule.bounded(rule.contributions(RowsView({"w": torch.ones(3, 300)}), state), state)
        assert Gaussian(run.noise_multiplier(selection)).std(parts)["grad"] == (
            pytest.approx(run.noise_std)
        )


# --------------------------------------------------------------------- the counterexample


def rank_instance_epsilon(
    noise_std: float, c1: float, c2: float, tail_fraction: float, delta: float
) -> float:
    """Exact epsilon of one full-batch step on an instance where ranking couples records.

    Everybody holds -L e, the target +L e. Traces are even in the gradient, so all have the same
    law and the target is in the tail with probability p, whatever noise they got. Then the sum
    moves by 2 c1 - c2 (the target in, another one out), else by c2, along e: a mixture of
    Gaussians against one, whose likelihood ratio is monotone, so half-lines are the best tests.
    """
    shifts = np.array([2 * c1 - c2, c2]) / noise_std
    weights = np.array([tail_fraction, 1 - tail_fraction])

    def log_ratio(x: float) -> float:
        return float(np.log(weights @ np.exp(shifts * x - shifts**2 / 2)))

    def excess(epsilon: float) -> float:
        above, below = _crossing(log_ratio, epsilon), _crossing(log_ratio, -epsilon)
        present, absent = weights @ stats.norm.sf(above - shifts), stats.norm.sf(above)
        less_present, more_absent = weights @ stats.norm.cdf(below - shifts), stats.norm.cdf(below)
        gain = math.exp(epsilon)
        return float(max(present - gain * absent, more_absent - gain * less_present)) - delta

    return 0.0 if excess(0.0) <= 0 else float(optimize.brentq(excess, 0.0, 700.0))


def _crossing(increasing: Callable[[float], float], level: float) -> float:
    """Where an increasing function meets a level, or the end of the normal's reach before it."""
    low, high = -38.0, 38.0
    if increasing(low) >= level:
        return low
    if increasing(high) <= level:
        return high
    return float(optimize.brentq(lambda x: increasing(x) - level, low, high))


def test_the_law_that_the_attack_names_is_the_instance():
    run = DcDpsgdRun(2.0, 6.0, batch=1000, records=1000, steps=1)
    instance = RankInstance(run)
    exact = rank_instance_epsilon(run.noise_std, run.c1, run.c2, instance.in_tail, 2e-5)
    accounted = account([(instance.law, 1)], 2e-5).epsilon
    assert exact <= accounted <= exact * 1.001


@pytest.mark.parametrize(
    "trace, gradient, exact", [(2.0, 6.0, 8.91), (1.0, 7.0, 11.0), (4.0, 4.0, 4.89)]
)
def test_the_rank_instance_costs_more_than_two_of_the_three_splits_claim(trace, gradient, exact):
    """Full batch and one step, at the claimed delta of 2e-5.

    docs/privacy.md, "Reference numbers".
    """
    sigma = calibrate.noise_multiplier(
        lambda nm: [(GaussianDpEvent(nm), 1)], calibrate.Budget(gradient, 1e-5)
    )
    found = rank_instance_epsilon(sigma * math.hypot(1.0, 0.1), 1.0, 0.1, 0.1, 2e-5)
    assert found == pytest.approx(exact, rel=4e-3)
    assert (found > trace + gradient) == (gradient > 4)


def test_the_instance_is_exact_where_a_closed_form_is_known():
    """A tail of (almost) everybody is one Gaussian of shift 2 c1 - c2."""
    found = rank_instance_epsilon(1.0, 1.0, 0.5, 1 - 1e-12, 1e-5)
    assert found == pytest.approx(account([(GaussianDpEvent(1 / 1.5), 1)], 1e-5).epsilon, rel=1e-6)


def test_the_instance_agrees_with_sampled_outcomes():
    """delta(epsilon) of the mixture, by simulation of the test that the formula says is best."""
    epsilon = rank_instance_epsilon(1.0, 1.0, 0.1, 0.3, 0.05)
    generator = torch.Generator().manual_seed(1)
    draws = 400_000
    noise = torch.randn(draws, generator=generator)
    tail = torch.rand(draws, generator=generator) < 0.3
    present = noise + torch.where(tail, 1.9, 0.1)
    best = max(
        float((present > cut).double().mean()) - math.exp(epsilon) * float(stats.norm.sf(cut))
        for cut in torch.linspace(-1, 4, 501).tolist()
    )
    assert best == pytest.approx(0.05, abs=4 * math.sqrt(0.25 / draws) + 1e-3)
