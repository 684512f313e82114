"""Block-drawn Poisson batches have the law that the account assumes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from winsor.core.randomness import new_key
from winsor.core.sampling.samplers import FullBatch
from winsor.tables.linear.batches import BlockPoisson, sampler_of

KEY = new_key(0)


def test_inclusion_is_bernoulli_q_independent_over_records_and_steps():
    n, q, steps = 40, 0.15, 4000
    sampler = BlockPoisson(n, q)
    joined = np.zeros((steps, n))
    for row, batch in zip(joined, sampler.batches(KEY, 0, steps), strict=True):
        assert (np.diff(batch) > 0).all()  # sorted, no record twice
        row[batch] = 1
    assert stats.binomtest(int(joined.sum()), n * steps, q).pvalue > 1e-3
    per_record = joined.sum(0)
    assert stats.chisquare(per_record).pvalue > 1e-3
    sizes = joined.sum(1)
    assert sizes.var() == pytest.approx(n * q * (1 - q), rel=0.1)
    neighbours = np.corrcoef(joined[:, :-1].ravel(), joined[:, 1:].ravel())[0, 1]
    steps_apart = np.corrcoef(joined[:-1].ravel(), joined[1:].ravel())[0, 1]
    assert max(abs(neighbours), abs(steps_apart)) < 0.01
    ends = joined[:, [0, -1]].mean(0)  # the seams between steps are no different
    assert np.abs(ends - q).max() < 0.025


@pytest.mark.parametrize("q", [1e-4, 0.02, 0.5, 0.97])
def test_mean_size(q):
    sampler = BlockPoisson(1000, q)
    total = sum(len(batch) for batch in sampler.batches(KEY, 0, 300))
    assert stats.binomtest(total, 300_000, q).pvalue > 1e-3


def test_a_batch_is_a_function_of_key_and_step():
    sampler = BlockPoisson(500, 0.3)
    assert sampler.drawn_together < 1000
    all_of_them = list(sampler.batches(KEY, 0, 1000))
    for first in (0, 3, sampler.drawn_together - 1, sampler.drawn_together, 700):
        later = list(sampler.batches(KEY, first, 50))
        assert all(np.array_equal(a, b) for a, b in zip(later, all_of_them[first:], strict=False))
        assert len(later) == 50
    assert np.array_equal(sampler.indices(KEY, 437), all_of_them[437])
    assert not np.array_equal(sampler.indices(new_key(1), 437), all_of_them[437])


def test_large_batches_are_whole():
    assert isinstance(sampler_of(10, 10), FullBatch)
    assert isinstance(sampler_of(10, 1e9), FullBatch)
    assert sampler_of(10, 5) == BlockPoisson(10, 0.5)
