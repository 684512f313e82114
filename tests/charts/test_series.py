"""Thinning keeps the outline; means over seeds are means."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from winsor.charts.series import MOST_POINTS, Series, over_seeds, thin

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400)


@given(VALUES, st.integers(4, 60))
def test_thinning_keeps_ends_extremes_and_order(values, most):
    points = [(float(i), y) for i, y in enumerate(values)]
    kept = thin(points, most)
    assert len(kept) <= max(most, 1)
    assert set(kept) <= set(points) and list(kept) == sorted(kept)
    assert kept[0] == points[0] and kept[-1] == points[-1]
    assert {max(values), min(values)} <= {y for _, y in kept}


def test_many_steps_become_few_points():
    points = [(float(i), float(i % 13)) for i in range(20_000)]
    assert len(thin(points)) <= MOST_POINTS


def test_over_seeds():
    runs = [[(1.0, 2.0), (2.0, 4.0), (3.0, 9.0)], [(1.0, 4.0), (2.0, 0.0)]]
    found = over_seeds("a", runs, 3)
    assert found.points == ((1.0, 3.0), (2.0, 2.0))
    assert found.band == ((1.0, 2.0, 4.0), (2.0, 0.0, 4.0))
    assert over_seeds("a", [runs[0], []], 0).points == tuple(runs[0])
    assert over_seeds("a", [[]], 0) == Series("a", ())
