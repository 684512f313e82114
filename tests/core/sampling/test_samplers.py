"""Samplers: the law of the batches, their reproducibility, and how they amplify."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting import dp_event

from winsor.core.contract import ConfigurationError, Neighbouring, UnsupportedRelation
from winsor.core.events.joint import GaussianEvent
from winsor.core.randomness import new_key
from winsor.core.sampling.samplers import FixedSize, FullBatch, Poisson

KEY = new_key(seed=1)
ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
LOCAL = GaussianEvent(add_remove=1.2, replace=0.6)


def test_poisson_includes_each_record_independently_at_rate_q():
    sampler = Poisson(50, 0.2)
    member = np.zeros((4000, 50))
    for step in range(4000):
        rows = sampler.indices(KEY, step)
        assert len(set(rows.tolist())) == len(rows)
        member[step, rows] = 1
    # frequencies of single records and of pairs, each within five standard errors
    assert np.abs(member.mean(0) - 0.2).max() < 5 * np.sqrt(0.16 / 4000)
    pair = (member[:, 0] * member[:, 1]).mean()
    assert abs(pair - 0.04) < 5 * np.sqrt(0.04 * 0.96 / 4000)
    assert abs(member.sum(1).var() - 8.0) < 1.0  # binomial, not fixed


def test_batches_depend_on_key_and_step_only():
    sampler = Poisson(1000, 0.05)
    assert np.array_equal(sampler.indices(KEY, 3), sampler.indices(KEY, 3))
    assert not np.array_equal(sampler.indices(KEY, 3), sampler.indices(KEY, 4))
    assert not np.array_equal(sampler.indices(KEY, 3), sampler.indices(new_key(seed=2), 3))
    assert new_key() != new_key()


def test_fixed_size_draws_distinct_rows():
    rows = FixedSize(20, 7).indices(KEY, 0)
    assert len(rows) == len(set(rows.tolist())) == 7
    assert np.array_equal(FullBatch(5).indices(KEY, 9), np.arange(5))


def test_amplification_is_the_samplers():
    assert Poisson(100, 0.1).amplify(LOCAL, ADD) == dp_event.PoissonSampledDpEvent(
        0.1, dp_event.GaussianDpEvent(1.2)
    )
    # opposite shifts of the add/remove size: the accountant's REPLACE_ONE handles them
    assert Poisson(100, 0.1).amplify(LOCAL, REPLACE) == Poisson(100, 0.1).amplify(LOCAL, ADD)
    assert FullBatch(100).amplify(LOCAL, ADD) == dp_event.GaussianDpEvent(1.2)
    assert FullBatch(100).amplify(LOCAL, REPLACE) == dp_event.GaussianDpEvent(0.6)
    assert FixedSize(100, 10).amplify(LOCAL, REPLACE) == dp_event.SampledWithoutReplacementDpEvent(
        100, 10, dp_event.GaussianDpEvent(0.6)
    )


def test_fixed_size_refuses_add_remove():
    with pytest.raises(UnsupportedRelation, match="replace_one only"):
        FixedSize(100, 10).amplify(LOCAL, ADD)


def test_a_random_shift_becomes_a_mixture():
    local = GaussianEvent(2.0, 1.0, mixture=((0.25, 4.0), (0.75, 1.0)))
    event = Poisson(100, 0.1).amplify(local, ADD)
    assert isinstance(event, dp_event.MixtureOfGaussiansDpEvent)
    assert event.sensitivities == (0.0, 1.0, 0.25)
    assert event.sampling_probs == pytest.approx((0.9, 0.025, 0.075))


@pytest.mark.parametrize(
    "build",
    [
        lambda: Poisson(0, 0.1),
        lambda: Poisson(10, 0.0),
        lambda: Poisson(10, 1.5),
        lambda: Poisson(10, float("nan")),
        lambda: Poisson.of_batch_size(10, 11),
        lambda: FixedSize(10, 0),
        lambda: FixedSize(10, 11),
        lambda: FixedSize(10, 2.5),
        lambda: FullBatch(-1),
    ],
)
def test_bad_sizes_are_refused(build):
    with pytest.raises(ConfigurationError, match="Got"):
        build()
