"""A table turned about zero has the same ranges, turned about zero: no search favours a side.

A search that treats one side only keeps every claim of privacy, so that no audit sees it: ranges
are still paid for, and far too wide, or cut, where columns lie on the other side.
"""

from __future__ import annotations

import numpy as np
import pytest

from winsor.core.contract import Neighbouring
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.tables import winsorised_mean
from winsor.tables.inputs import as_bounds, within
from winsor.tables.linear.scaled import Scaling, learnt_range
from winsor.tables.ranges.coarse import Coarse
from winsor.tables.ranges.distribution import Distribution
from winsor.tables.ranges.zoom import Zoom


def table(n: int = 4000) -> np.ndarray:
    """Columns on one side of zero and on both, with a tail on one side and on both."""
    draw = np.random.default_rng(0)
    return np.column_stack(
        [
            draw.lognormal(7, 0.4, n),
            1e-3 * draw.uniform(0.5, 1.5, n),
            50 + 5 * draw.normal(size=n),
            draw.normal(size=n),
            draw.exponential(size=n) - 0.5,
            np.exp(3 * draw.normal(size=n)),
        ]
    )


def searched(plan, rows, start=None):
    """The released distributions, with next to no noise."""
    door = PrepaidDoor(Ledger({}), Neighbouring.ADD_OR_REMOVE_ONE, bytes(32))
    return plan.release(rows, door, Gaussian(1e-3), start)


def ends(found):
    return np.array([(each.low, each.high) for each in found])


def zoomed(rows):
    return ends(searched(Zoom(rows.shape[1]), rows))


def looked_at_once(rows):
    """Between public bounds, with rows beyond both: shares below and above in place of ends."""
    edges = [np.linspace(-2.0, 2.0, 9)] * rows.shape[1]
    found = searched(Zoom(rows.shape[1], rounds=1), rows, edges)
    return np.array([(-each.below, each.above) for each in found])


def coarse(rows):
    return ends(searched(Coarse(rows.shape[1]), rows))


def learnt(rows):
    found = searched(Zoom(rows.shape[1]), rows)
    return np.array([learnt_range(each)[:2] for each in found])


def scaled(rows):
    """Smallest and largest value of columns brought to [-1, 1] by ranges that cut both tails."""
    k = rows.shape[1]
    quartiles = np.quantile(rows, [0.25, 0.75], axis=0).T
    inside = Scaling.of(as_bounds(quartiles, k), []).apply(rows)
    assert np.abs(inside).max() <= 1.0
    return np.stack([inside.min(axis=0), inside.max(axis=0)], axis=1)


def cut(rows):
    rows = rows[:, :-1]  # where the last column is cut hangs on a few of its rows
    return winsorised_mean(rows, epsilon=1e5, delta=1e-5, random_state=bytes(32)).cuts


@pytest.mark.parametrize("search", [zoomed, looked_at_once, coarse, learnt, scaled, cut])
def test_no_search_favours_a_side(search):
    one, other = search(table()), -search(-table())[:, ::-1]
    width = np.diff(one, axis=1)
    assert (width >= 0).all() and np.abs(one).max() > 0.1
    assert (np.abs(one - other) < 0.25 * width + 1e-6).all()


@pytest.mark.parametrize("finer", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_noise_is_trimmed_at_both_ends(seed, finer):
    """Thirty rows in the middle and forty cells of noise: reading them backwards changes nothing
    but the sign."""
    draw, edges = np.random.default_rng(seed), np.arange(-21.0, 22.0)
    counts = 10 * draw.normal(size=len(edges) + 1)
    counts[20:24] += 1000
    one = Distribution.of(edges, counts, 10.0, 4000, finer)
    other = Distribution.of(edges, counts[::-1], 10.0, 4000, finer)
    assert (one.low, one.high) == (-other.high, -other.low)
    assert (one.below, one.above) == pytest.approx((other.above, other.below))
    assert -6 < one.low < one.high < 6


def test_a_value_is_cut_on_both_sides():
    values = np.array([-1e308, -2.0, -1.0, 0.5, 1.0, 2.0, 1e308, np.inf, -np.inf])
    np.testing.assert_array_equal(within(values), -within(-values))
    assert np.abs(within(values, 1.5)).max() == 1.5


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_range_of_one_sign_stays_on_its_side(sign):
    """Nearly all rows between 30 and 70, or -70 and -30: the range of a blunt look does not cross
    zero, and a closer one begins and ends near the rows."""
    rows = sign * table()[:, 2:3]
    for search in (zoomed, coarse):
        near, far = np.sort(np.abs(search(rows)[0]))
        assert (sign * search(rows) > 0).all()
        assert near < 40 and 60 < far < 300
