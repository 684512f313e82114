"""Axes by released moments: both spectra flatten, it is paid for, no row moves its sums further."""

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
from winsor.features import PrivateAxes
from winsor.features import private_axes as module
from winsor.features.moments import LEVELS, MEAN_SHARE

SENSITIVITY = math.sqrt(MEAN_SHARE**2 + 2)


def maps(n=3000, channels=6, side=3):
    """One loud channel, one loud place, and a mean."""
    rows = torch.randn(n, channels, side, side, generator=torch.Generator().manual_seed(0))
    rows[:, 0] *= 4
    rows[:, :, 0, 0] *= 3
    return rows + 0.5


def axes(**options):
    return PrivateAxes(**{"noise_multiplier": 3.0, "delta": 1e-5, "seed": 1, **options})


def spread(rows, axis):
    """Largest over smallest variance along channels (1) or places (2)."""
    found = rows.flatten(2).var(0).mean(2 - axis)
    return float(found.max() / found.min())


def test_both_spectra_are_flattened_and_rows_have_one_norm():
    rows = maps()
    flat = axes(bound=20.0, power=1.0).fit(rows)(rows)
    assert flat.shape == rows.shape
    assert spread(rows, 1) > 10 and spread(flat, 1) < 2
    assert spread(rows, 2) > 4 and spread(flat, 2) < 2
    torch.testing.assert_close(flat.flatten(1).norm(dim=1), torch.full((3000,), math.sqrt(54)))


def test_a_smaller_power_flattens_less():
    rows = maps()
    spreads = [spread(axes(bound=20.0, power=p).fit(rows)(rows), 1) for p in (0.0, 0.5, 1.0)]
    assert spreads[0] > 2 * spreads[1] > 2 * spreads[2]


def test_places_may_be_flattened_less_than_channels():
    rows = maps()
    both = axes(bound=20.0, power=1.0).fit(rows)(rows)
    less = axes(bound=20.0, power=1.0, place_power=0.0).fit(rows)(rows)
    assert spread(both, 2) < 2 < spread(rows, 2) / 2 < spread(less, 2)
    assert spread(less, 1) < 2
    with pytest.raises(ConfigurationError, match="place_power"):
        axes(place_power=1.5)


def test_one_release_is_in_the_ledger_and_composes():
    rows = maps()
    found = PrivateAxes(epsilon=1.0, delta=1e-5, seed=0).fit(rows)
    assert 0.98 < found.guarantee_.epsilon <= 1.0 and found.guarantee_.steps == 1
    assert "sqrt(w^2 + 2)" in " ".join(found.guarantee_.conditions)
    assert winsor.total(found, axes().fit(rows)).epsilon > found.guarantee_.epsilon


@given(st.integers(0, 2**31), st.floats(1e-3, 1e9), st.sampled_from([1.0, 50.0]))
@settings(max_examples=40, deadline=None)
def test_one_row_moves_the_sums_by_at_most_the_sensitivity(seed, size, bound):
    rows = size * torch.randn(7, 3, 2, 2, generator=torch.Generator().manual_seed(seed))
    moved = axes()._sums(rows, bound) - axes()._sums(rows[:-1], bound)
    assert np.linalg.norm(moved) <= SENSITIVITY * (1 + 1e-9)


def test_the_sensitivity_is_reached():
    """A row of one coordinate: both matrices and the mean are as long as they can be."""
    row = torch.zeros(1, 3, 2, 2)
    row[0, 0, 0, 0] = 1e6
    d = 12
    reached = np.linalg.norm(axes()._sums(row, 1e-3))
    longest = min(127, LEVELS * math.sqrt(d)) / (LEVELS * math.sqrt(d))
    assert reached == pytest.approx(SENSITIVITY * longest, rel=0.1)


def test_a_row_adds_itself_wherever_it_stands():
    rows = maps(n=1203)
    whole = axes()._sums(rows, 5.0)
    for place in (0, module.AT_ONCE - 1, module.AT_ONCE, 1202):
        without = torch.cat([rows[:place], rows[place + 1 :]])
        alone = axes()._sums(rows[place : place + 1], 5.0)
        np.testing.assert_allclose(whole - axes()._sums(without, 5.0), alone, atol=1e-9)


def test_a_broken_row_counts_as_none():
    rows = maps(20)
    for broken in (math.inf, math.nan):
        more = torch.cat([rows, torch.full((1, 6, 3, 3), broken)])
        np.testing.assert_array_equal(axes()._sums(more, 5.0), axes()._sums(rows, 5.0))


def test_the_released_matrices_are_the_moments():
    rows = maps(n=4000)
    found = axes(noise_multiplier=1e-3, bound=30.0, power=1.0).fit(rows)
    torch.testing.assert_close(found.mean_, rows.mean(0), rtol=0, atol=0.4)
    centred = (rows - rows.mean(0)).flatten(2)
    within = torch.einsum("ncp,ndp->cd", centred, centred)
    expected = torch.linalg.eigvalsh(within)
    reached = torch.linalg.eigvalsh(found.channels_ @ within @ found.channels_)
    assert expected[-1] / expected[0] > 10 and reached[-1] / reached[0] < 1.5


def test_what_it_refuses():
    with pytest.raises(ConfigurationError, match="either epsilon or noise_multiplier"):
        PrivateAxes(delta=1e-5)
    with pytest.raises(ProtocolError, match="fitted"):
        axes()(maps(3))
    with pytest.raises(ConfigurationError, match="places"):
        axes().fit(torch.zeros(10, 2))
    with pytest.raises(ConfigurationError, match="power"):
        axes(power=1.5)
    with pytest.raises(ConfigurationError, match="bound"):
        axes(bound=-1.0)


def test_numbers_that_were_kept_give_the_same_transform():
    rows = maps(300)
    fitted, loaded = axes().fit(rows), axes()
    loaded.load_state_dict(fitted.state_dict(), fitted.ledger_)
    assert torch.equal(loaded(rows), fitted(rows))
    assert loaded.guarantee_.epsilon == fitted.guarantee_.epsilon
    with pytest.raises(ConfigurationError, match="paid for a PrivateNorm"):
        winsor.features.PrivateNorm(1.0, 1e-5).load_state_dict({}, fitted.ledger_)


def test_replay_finds_nothing():
    def train(rows):
        found = PrivateAxes(noise_multiplier=3.0, delta=1e-3, bound=2.0).fit(rows)
        return found.mean_, found.channels_, found.places_

    report = replay(train, maps(n=40))
    report.assert_passed()
    assert report.releases == 1 and report.largest_share > 0.3


def test_replay_finds_rows_that_are_not_cut(monkeypatch):
    def uncut(rows, bound):
        return torch.nan_to_num(rows).clamp(-99, 99).trunc()

    monkeypatch.setattr(module, "whole_numbers", uncut)

    def train(rows):
        return PrivateAxes(noise_multiplier=3.0, delta=1e-3, bound=0.01).fit(rows).mean_

    assert not replay(train, maps(n=40)).passed
