"""Paper 3: the steps of its main proof, against transcriptions and against what they speak of."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from winsor_papers import theory as th

from winsor.core.contract import ConfigurationError


@given(gap=st.floats(0, 100), steps=st.floats(1, 1e6), failure=st.floats(1e-6, 0.5))
def test_proposition_4_2(gap, steps, failure):
    found = th.sgd_values(gap=gap, steps=steps, failure=failure, constant=3.0)
    assert found.value == pytest.approx(2 * gap + 3 * math.log(steps / failure))
    assert found.is_order


@given(beta=st.floats(0.1, 10), gap=st.floats(0, 100), n=st.floats(2, 1e6))
def test_proposition_4_3(beta, gap, n):
    found = th.largest_gradient(beta_1=beta, gap=gap, n=n, steps=100, failure=0.1)
    logs = sum(math.sqrt(math.log(value)) for value in (10, 100, n))
    assert found.value == pytest.approx(math.sqrt(2 * beta * gap) + logs)


@pytest.mark.parametrize("failure", [0.3, 0.05, 0.001])
def test_lemma_a_9_holds_for_an_exponential(failure):
    """|X| = beta + Exp(K), and the worst event: everything but its upper tail."""
    level, scale = 2.0, 3.0
    x = level + scale * np.random.default_rng(0).exponential(size=1_000_000)
    cut = np.quantile(x, 1 - failure)
    bound = th.expected_from_conditional(
        conditional=float(x[x <= cut].mean()), level=level, scale=scale, failure=failure
    )
    assert x.mean() <= bound.value
    assert bound.value == pytest.approx(
        x[x <= cut].mean() + failure * level + failure * math.log(8 / failure) * scale
    )


def runs_of_dp_sgd(steps, clip, size, d, sigma, count=400):
    """f(w_T) - f* for f = |w - 1|^2/2, all rows alike, eta = 1/L = 1, clipped to C."""
    rng = np.random.default_rng(0)
    w = np.zeros((count, d))
    for _ in range(steps):
        gradient = w - 1
        norms = np.linalg.norm(gradient, axis=1, keepdims=True)
        clipped = gradient * np.minimum(1, clip / norms)
        w = w - (clipped + clip * sigma / size * rng.standard_normal(w.shape))
    return ((w - 1) ** 2).sum(1) / 2


@pytest.mark.parametrize("sigma", [1.0, 50.0])
def test_lemma_b_1_holds_for_runs_of_dp_sgd(sigma):
    risks = runs_of_dp_sgd(6, 0.5, 10, 4, sigma)
    setting = {"gap": 2.0, "steps": 6, "clip": 0.5, "smoothness": 1.0, "batch_size": 10, "d": 4,
               "noise_multiplier": sigma}  # fmt: skip
    found = th.pessimistic_risk(**setting)
    assert found.level == pytest.approx(2 * 2.0 + 36 * 0.25)
    assert found.scale == pytest.approx(36 * 0.25 * 4 * sigma**2 / (0.5 * 100))
    for share in (0.0, 0.5, 1.0, 2.0):
        excess = share * found.scale
        assert np.mean(risks >= found.level + excess) <= found.probability(excess)
    slope = th.pessimistic_risk(**setting, gradient=True)
    assert (slope.level, slope.scale) == pytest.approx((2 * found.level, 2 * found.scale))
    assert np.mean(2 * risks >= slope.level + slope.scale) <= slope.probability(slope.scale)


@pytest.mark.parametrize(
    "call",
    [
        lambda: th.sgd_values(gap=-1, steps=10, failure=0.1),
        lambda: th.largest_gradient(beta_1=0, gap=1, n=10, steps=10, failure=0.1),
        lambda: th.expected_from_conditional(conditional=1, level=1, scale=1, failure=1.0),
        lambda: th.pessimistic_risk(gap=1, steps=0, clip=1, smoothness=1, batch_size=1, d=1,
                                    noise_multiplier=1),
    ],
)  # fmt: skip
def test_bad_numbers_are_refused(call):
    with pytest.raises(ConfigurationError, match="must"):
        call()
