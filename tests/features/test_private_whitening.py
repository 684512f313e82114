"""Whitening by released moments: it flattens, it is paid for, and no row moves its sums further."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import winsor
from winsor.audit import replay
from winsor.core.contract import ConfigurationError, ProtocolError
from winsor.features import PrivateWhitening
from winsor.features import private_whitening as module
from winsor.features.moments import LEVELS, MEAN_SHARE, MOST

SENSITIVITY = math.hypot(1, MEAN_SHARE)


def table(n=4000, d=12, long=5.0):
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    rows[:, 0] = long * rows[:, 0] + 0.5 * rows[:, 1] + 3.0
    return rows


def whitening(**options):
    return PrivateWhitening(**{"noise_multiplier": 3.0, "delta": 1e-5, "seed": 1, **options})


def test_the_long_direction_is_shortened_and_rows_are_centred():
    rows = table()
    white = whitening(bound=8.0).fit(rows)
    out = white(rows)
    before, after = (torch.linalg.eigvalsh(torch.cov(each.T)) for each in (rows, out))
    assert before[-1] / before[0] > 20
    assert after[-1] / after[0] < 4
    assert out.mean(0).abs().max() < 0.2
    assert 0.7 < out.square().mean() < 1.4


def test_later_rounds_reach_lower():
    """With as much noise in each round, the second begins with shorter rows."""
    rows = table(d=40, long=30.0)
    one, two = (whitening(rounds=k, bound=32.0).fit(rows) for k in (1, 2))
    longest = [float(torch.linalg.eigvalsh(torch.cov(w(rows).T))[-1]) for w in (one, two)]
    assert longest[1] < longest[0]


def test_noise_alone_shows_no_direction():
    rows = table(n=200, d=30, long=1.0) * 1e-6
    white = whitening(noise_multiplier=20.0, rounds=1).fit(rows)
    assert len(white.rounds_[0].shrunk) <= 2  # the edge is that of many coordinates


def test_all_rounds_are_in_the_ledger_and_compose():
    rows = table()
    white = PrivateWhitening(epsilon=1.0, delta=1e-5, rounds=3, seed=0).fit(rows)
    assert 0.98 < white.guarantee_.epsilon <= 1.0 and white.guarantee_.steps == 3
    assert len(white.ledger_) == 3
    assert "sqrt(1 + w^2)" in " ".join(white.guarantee_.conditions)
    other = whitening(seed=2).fit(rows)
    assert winsor.total(white, other).epsilon > white.guarantee_.epsilon


@given(st.integers(0, 2**31), st.floats(1e-3, 1e9), st.sampled_from([None, 1.0, 50.0]))
@settings(max_examples=40, deadline=None)
def test_one_row_moves_the_sums_by_at_most_the_sensitivity(seed, size, bound):
    generator = torch.Generator().manual_seed(seed)
    rows = size * torch.randn(7, 5, generator=generator)
    white = whitening(bound=bound)
    white.rounds_ = []
    moved = white._sums(rows, bound or 2.0) - white._sums(rows[:-1], bound or 2.0)
    assert np.linalg.norm(moved) <= SENSITIVITY * (1 + 1e-9)


def test_a_row_in_the_second_round_moves_no_more_and_nothing_but_itself():
    """Behind a transform, wherever it stands among rows of several chunks."""
    rows = table(n=2500, d=9)
    white = whitening(bound=8.0, rounds=1).fit(rows)
    whole = white._sums(rows, 3.0)
    for place in (0, 1023, 1024, 2499):
        without = torch.cat([rows[:place], rows[place + 1 :]])
        alone = white._sums(rows[place : place + 1], 3.0)
        np.testing.assert_allclose(whole - white._sums(without, 3.0), alone, atol=1e-9)
        assert np.linalg.norm(alone) <= SENSITIVITY * (1 + 1e-9)


def test_sums_are_exact_for_the_largestwhole_numbers():
    """A chunk of rows at the largest integer: single precision must not round."""
    d = 2
    rows = torch.full((module.AT_ONCE, d), 1e30)
    rows[:, 1] = 0.0
    found = module.whole_numbers(rows.double(), 1e-3)
    assert float(found.abs().max()) <= MOST
    assert MOST**2 * module.AT_ONCE < 2**24
    assert float(found.norm(dim=1).max()) <= LEVELS * math.sqrt(d)


def test_a_broken_row_counts_as_none():
    rows = table(20)
    white = whitening()
    white.rounds_ = []
    before = white._sums(rows, 5.0)
    for broken in (math.inf, math.nan):
        more = torch.cat([rows, torch.full((1, rows.shape[1]), broken)])
        np.testing.assert_array_equal(white._sums(more, 5.0), before)


def test_blocks_of_columns_give_the_plain_product(monkeypatch):
    rows = table(n=50, d=11)
    white = whitening()
    white.rounds_ = []
    whole = white._sums(rows, 4.0)
    monkeypatch.setattr(module, "BLOCK", 4)
    np.testing.assert_array_equal(white._sums(rows, 4.0), whole)
    integers = module.whole_numbers(rows.double(), 4.0).double() / (LEVELS * math.sqrt(11))
    mean, moments = torch.from_numpy(whole[:11] / MEAN_SHARE), module.symmetric(whole[11:], 11)
    torch.testing.assert_close(mean, integers.sum(0))
    torch.testing.assert_close(moments, integers.T @ integers)


def test_what_it_refuses():
    with pytest.raises(ConfigurationError, match="either epsilon or noise_multiplier"):
        PrivateWhitening(delta=1e-5)
    with pytest.raises(ProtocolError, match="fitted"):
        whitening()(table(3))
    with pytest.raises(ConfigurationError, match="coordinates"):
        whitening().fit(torch.zeros(10, 2, 2))
    with pytest.raises(ConfigurationError, match="rounds"):
        whitening(rounds=0)
    with pytest.raises(ConfigurationError, match="bound"):
        whitening(bound=-1.0)


def test_a_seed_belongs_to_its_rows():
    """The same seed on other rows draws other noise; on the same rows the same."""
    rows = table(300)
    one, again, other = (whitening().fit(each) for each in (rows, rows, rows + 1e-3))
    assert torch.equal(one.rounds_[0].mean, again.rounds_[0].mean)
    gap = (one.rounds_[0].mean - other.rounds_[0].mean).abs()
    assert gap.max() > 0.05


def test_replay_finds_nothing():
    """No row moves a round further than was paid for, and nothing else of it is left behind."""

    def train(rows):
        white = PrivateWhitening(noise_multiplier=3.0, delta=1e-3, bound=2.0).fit(rows)
        return [(one.mean, one.directions, one.shrunk) for one in white.rounds_], white.size_

    report = replay(train, table(n=40, d=5))
    report.assert_passed()
    assert report.releases == 2 and report.largest_share > 0.5


def test_replay_finds_rows_that_are_not_cut(monkeypatch):
    def uncut(rows, bound):
        return torch.nan_to_num(rows).clamp(-99, 99).trunc()

    monkeypatch.setattr(module, "whole_numbers", uncut)

    def train(rows):
        return PrivateWhitening(noise_multiplier=3.0, delta=1e-3, bound=0.01).fit(rows).size_

    assert not replay(train, table(n=40, d=5)).passed
