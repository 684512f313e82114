"""Ranges without peeking: what histograms find, and how far one record moves them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.tables import Distribution, Zoom, as_bounds, private_bins
from winsor.tables.ranges.grid import signed_log_grid
from winsor.tables.ranges.zoom import counts_between

KEY = bytes(range(32))


def released(table, multiplier=1.0, **options):
    zoom = Zoom(table.shape[1], **options)
    door = PrepaidDoor(Ledger({}), Neighbouring.ADD_OR_REMOVE_ONE, KEY)
    return zoom.release(table, door, Gaussian(multiplier)), door


def test_it_finds_where_the_rows_are_in_any_unit():
    rng = np.random.default_rng(0)
    n = 20_000
    table = np.column_stack(
        [
            rng.normal(size=n),
            rng.lognormal(7, 2, size=n),
            1990 + 10 * rng.random(n),
            rng.random(n) < 0.1,
            -1e3 + 10 * rng.normal(size=n),
        ]
    )
    found, door = released(table, 20.0)
    for column, each in zip(table.T, found, strict=True):
        levels = np.array([0.25, 0.5, 0.75])
        ranks = (column[:, None] <= each.quantile(levels)).mean(axis=0)
        low, high = np.quantile(column, [0.001, 0.999])
        assert each.low <= np.quantile(column, 0.02)
        assert each.high >= np.quantile(column, 0.98)
        if len(np.unique(column)) > 2:
            assert np.abs(ranks - levels).max() < 0.05
            assert each.high - each.low < 4 * (high - low) + 100
    assert found[3].high < 2  # an indicator is not taken for a claim
    assert len(door.ledger) == 3


def test_noise_alone_does_not_stretch_a_range():
    """Among a thousand empty cells the largest noise is above three deviations."""
    table = np.random.default_rng(0).normal(size=(3000, 30))
    found, _ = released(table, 30.0)
    assert max(each.high - each.low for each in found) < 100


def test_a_range_is_seldom_stretched_by_noise():
    """Years in a cell of the grid from 256 to 4,096: a few dozen empty cells beside them."""
    wide = 0
    for seed in range(30):
        table = np.random.default_rng(seed).uniform(1950, 2010, size=(4000, 4))
        door = PrepaidDoor(Ledger({}), Neighbouring.ADD_OR_REMOVE_ONE, seed.to_bytes(32, "little"))
        found = Zoom(4).release(table, door, Gaussian(10.0))
        wide += sum(each.quantile(0.998) - each.quantile(0.002) > 90 for each in found)
        assert all(each.low < 1953 and each.high > 2007 for each in found)
    assert wide <= 3


def test_a_small_group_far_out_stays_in_the_range():
    counts = np.r_[0.0, 5.0, -3.0, 900.0, 1000.0, 900.0, 2.0, -4.0, 60.0, 1.0, 0.0]
    found = Distribution.of(np.arange(10.0), counts, 10.0, 2861, finer=True)
    assert (found.low, found.high) == (2.0, 8.0)
    likely = np.r_[0.0, 5.0, -3.0, 900.0, 1000.0, 900.0, 2.0, -4.0, 55.0 - 5.0, 1.0, 0.0]
    near = Distribution.of(np.arange(10.0), likely / 2, 10.0, 1430, finer=True)
    assert near.high == 5.0  # two deviations, but three cells away


number = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(
    st.lists(st.tuples(number, number, number), min_size=1, max_size=12),
    st.tuples(number, number, number),
    st.tuples(number, number, number),
)
@settings(max_examples=200, deadline=None)
def test_a_record_moves_the_counts_by_no_more_than_stated(rows, one, other):
    edges = [signed_log_grid(), np.array([0.0, 1.0]), np.array([-1.0, 0.0, 5.0])]
    width = max(map(len, edges)) + 1
    without = counts_between(np.array(rows), edges, width)
    with_one = counts_between(np.array([*rows, one]), edges, width)
    with_other = counts_between(np.array([*rows, other]), edges, width)
    bound = Zoom(3).sensitivity
    assert np.linalg.norm(with_one - without) <= bound.add_remove * (1 + 1e-12)
    assert np.linalg.norm(with_one - with_other) <= bound.replace * (1 + 1e-12)
    assert np.linalg.norm(with_one - without) == pytest.approx(np.sqrt(3))  # and it is attained


def test_the_number_of_releases_does_not_depend_on_the_data():
    for table in (np.zeros((50, 2)), np.full((50, 2), 1e300), np.eye(50)[:, :2]):
        _, door = released(table)
        assert len(door.ledger) == 3


@pytest.mark.parametrize("n", [200, 100_000])
def test_bins_have_about_equal_mass(n):
    x = np.random.default_rng(0).exponential(size=(n, 1))
    found = private_bins(x, bins=4, epsilon=5.0, random_state=0)
    shares = np.bincount(np.searchsorted(found.edges[0], x[:, 0]), minlength=6)[1:5] / n
    assert np.abs(shares - 0.25).max() < (0.2 if n == 200 else 0.03)
    assert found.guarantee.epsilon <= 5.0


def test_given_bounds_need_one_round():
    x = np.random.default_rng(0).random((5000, 2))
    assert len(private_bins(x, epsilon=1.0, bounds=(0, 1), random_state=0).ledger) == 1
    assert len(private_bins(x, epsilon=1.0, bounds=[(0, 1), None], random_state=0).ledger) == 3


def test_a_distribution_reads_back():
    each = Distribution(np.array([0.0, 1.0, 3.0]), np.array([0.5, 0.5]))
    assert each.quantile([0.0, 0.25, 0.5, 1.0]).tolist() == [0.0, 0.5, 1.0, 3.0]
    assert each.cells(2).tolist() == [0.0, 1.0, 3.0]
    mean, deviation = each.mean_and_deviation()
    assert mean == pytest.approx(1.25)
    assert deviation == pytest.approx(np.sqrt(0.5 * (1 / 3) + 0.5 * (4 + 1 / 3) - 1.25**2))


@pytest.mark.parametrize("bounds", [(1, 0), [(0, 1)], "ab", [(0, np.inf), (0, 1)], 3])
def test_odd_bounds_are_refused(bounds):
    with pytest.raises(ConfigurationError, match="bounds"):
        as_bounds(bounds, 2)
