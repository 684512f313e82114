"""Cyclic Poisson: groups by the rows' own coins, one group a step, paid in rounds."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting import dp_event

from winsor.core.contract import ConfigurationError, Neighbouring, UnsupportedRelation
from winsor.core.events.joint import GaussianEvent
from winsor.core.randomness import new_key
from winsor.core.sampling.cyclic import CyclicPoisson
from winsor.core.sampling.samplers import Poisson

KEY = new_key(seed=5)
ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
LOCAL = GaussianEvent(add_remove=1.2, replace=0.6)


def test_a_row_never_returns_within_a_round():
    sampler = CyclicPoisson(200, 4, 0.2)
    group_of = {}
    for step in range(400):
        for row in sampler.indices(KEY, step).tolist():
            assert group_of.setdefault(row, step % 4) == step % 4
    assert len(group_of) == 200


def test_rows_are_drawn_at_the_group_rate():
    sampler, rounds = CyclicPoisson(60, 3, 0.1), 4000
    seen = np.zeros((rounds, 60))
    for step in range(3 * rounds):
        rows = sampler.indices(KEY, step)
        assert len(set(rows.tolist())) == len(rows)
        seen[step // 3, rows] = 1
    assert np.abs(seen.mean(0) - 0.3).max() < 5 * np.sqrt(0.21 / rounds)
    assert abs((seen[:, 0] * seen[:, 1]).mean() - 0.09) < 5 * np.sqrt(0.09 / rounds)


def test_groups_are_uniform_over_keys_and_independent():
    places = np.zeros((3000, 2), dtype=int)
    for seed in range(3000):
        for group in range(4):
            rows = CyclicPoisson(2, 4, 0.25).indices(new_key(seed), group)  # rate one: all of it
            places[seed, rows] = group
    for row in range(2):
        share = np.bincount(places[:, row], minlength=4) / 3000
        assert np.abs(share - 0.25).max() < 5 * np.sqrt(0.1875 / 3000)
    assert abs((places[:, 0] == places[:, 1]).mean() - 0.25) < 5 * np.sqrt(0.1875 / 3000)


def test_the_average_batch_has_the_expected_size():
    sampler = CyclicPoisson.of_batch_size(1000, 50, 8)
    sizes = [len(sampler.indices(KEY, step)) for step in range(800)]
    assert sampler.expected_size == 50.0
    assert np.mean(sizes) == pytest.approx(50.0, rel=0.02)


def test_batches_are_a_function_of_key_and_step():
    sampler = CyclicPoisson(500, 5, 0.05)
    assert np.array_equal(sampler.indices(KEY, 13), sampler.indices(KEY, 13))
    assert not np.array_equal(sampler.indices(KEY, 13), sampler.indices(KEY, 18))
    assert not np.array_equal(sampler.indices(KEY, 13), sampler.indices(new_key(seed=6), 13))


def test_a_round_is_paid_with_its_first_step():
    sampler = CyclicPoisson(100, 3, 0.1)
    paid = dp_event.PoissonSampledDpEvent(pytest.approx(0.3), dp_event.GaussianDpEvent(1.2))
    nothing = dp_event.NoOpDpEvent()
    events = [sampler.event(LOCAL, ADD, step) for step in range(5)]
    assert events == [paid, nothing, nothing, paid, nothing]
    assert sampler.history(LOCAL, ADD, 7) == [(paid, 3)]


def test_one_band_is_poisson():
    sampler = CyclicPoisson(100, 1, 0.1)
    assert sampler.amplify(LOCAL, ADD) == Poisson(100, 0.1).amplify(LOCAL, ADD)
    assert sampler.amplify(LOCAL, REPLACE) == Poisson(100, 0.1).amplify(LOCAL, REPLACE)
    assert sampler.event(LOCAL, ADD, 7) == sampler.amplify(LOCAL, ADD)


def test_more_bands_refuse_replace_one():
    with pytest.raises(UnsupportedRelation, match="bands=1"):
        CyclicPoisson(100, 2, 0.1).amplify(LOCAL, REPLACE)


def test_all_of_a_group_is_plain_noise():
    sampler = CyclicPoisson(100, 10, 0.1)
    assert sampler.amplify(LOCAL, ADD) == dp_event.GaussianDpEvent(1.2)


@pytest.mark.parametrize(
    ("n", "bands", "q"),
    [(0, 1, 0.1), (10, 0, 0.1), (10, 2.0, 0.1), (10, 2, 0.0), (10, 2, 0.51), (10, 2, float("nan"))],
)
def test_bad_settings_are_refused(n, bands, q):
    with pytest.raises(ConfigurationError, match="Got"):
        CyclicPoisson(n, bands, q)
