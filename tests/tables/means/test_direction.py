"""The solver of (23) and the medians."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from winsor.tables.means.updating import (
    COMBINATIONS,
    combined,
    coordinate_median,
    distance_and_direction,
    geometric_median,
    lexicographic,
    nearest_in_hull,
)

SEEDS = st.integers(0, 2**32 - 1)


def cloud(seed: int, k: int = 30, d: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(2, size=(k, d))


@given(SEEDS)
def test_every_combination_is_bitwise_permutation_invariant(seed):
    points = cloud(seed)
    shuffled = np.random.default_rng(seed + 1).permutation(points)
    for combine in COMBINATIONS:
        assert np.array_equal(combined(points, combine).point, combined(shuffled, combine).point)


@given(SEEDS, st.floats(0, 20))
def test_the_answer_is_feasible_and_beats_its_starts(seed, shift):
    points = lexicographic(cloud(seed) + shift)
    distance, direction = distance_and_direction(points, np.zeros(4))
    assert distance >= 0
    if distance > 0:
        assert np.linalg.norm(direction) == pytest.approx(1.0)
        projections = points @ direction
        assert np.count_nonzero(projections >= distance - 1e-9) >= 27
    for start in (np.median(points, axis=0), points.mean(axis=0)):
        unit = start / np.linalg.norm(start)
        assert distance >= np.sort(points @ unit)[3] - 1e-9


@given(SEEDS)
def test_lemma_7_on_a_clean_cloud(seed):
    """With every point within r of mu, |d - |c - mu|| <= r, and the direction points to mu."""
    rng = np.random.default_rng(seed)
    mu = rng.standard_normal(4) * 5
    points = mu + 0.1 * rng.standard_normal((40, 4))
    radius = np.linalg.norm(points - mu, axis=1).max()
    distance, direction = distance_and_direction(lexicographic(points), np.zeros(4))
    length = np.linalg.norm(mu)
    assert abs(distance - length) <= radius + 1e-9
    if length >= 4 * radius:
        assert direction @ mu / length >= 0.5


@given(SEEDS, st.integers(2, 12), st.integers(1, 15))
def test_nearest_point_of_the_hull(seed, k, d):
    points = np.random.default_rng(seed).standard_normal((k, d)) + 0.5
    nearest = nearest_in_hull(points)
    square = nearest @ nearest
    # Optimality (Wolfe): no point of the hull is on the near side of the supporting plane.
    assert (points @ nearest >= square - 1e-7).all()
    # Membership: it is a convex combination of the points.
    weights = optimize.linprog(
        np.zeros(k),
        A_eq=np.vstack([points.T, np.ones(k)]),
        b_eq=np.append(nearest, 1.0),
        bounds=(0, None),
    )
    assert weights.status == 0 or square < 1e-18


def test_the_origin_inside_the_hull_is_its_own_nearest_point():
    assert not nearest_in_hull(np.array([[1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0]])).any()
    assert not nearest_in_hull(np.zeros((3, 2))).any()


def test_corrupted_groups_do_not_move_the_robust_combinations():
    """5 of 60 groups far away ruin the mean only."""
    errors = {combine: [] for combine in COMBINATIONS}
    for seed in range(5):
        points = np.random.default_rng(seed).standard_normal((60, 10))
        points[:5] += 30
        for combine in COMBINATIONS:
            middle = combined(points, combine, start="geometric_median").point
            errors[combine].append(np.linalg.norm(middle))
    mean = {combine: np.mean(values) for combine, values in errors.items()}
    assert mean["mean"] > 7
    assert max(mean["iterative"], mean["coordinate_median"], mean["geometric_median"]) < 1


def test_the_iteration_walks_from_a_bad_start():
    """Lemma 8 from far away: the distance estimate shrinks to the spread of the cloud."""
    points = lexicographic(np.random.default_rng(0).standard_normal((200, 3)))
    centre = np.full(3, 50.0)
    for _ in range(60):
        distance, direction = distance_and_direction(points, centre)
        centre = centre + 0.25 * distance * direction
    assert np.linalg.norm(centre) < 2


@given(SEEDS)
def test_geometric_median_minimises_the_sum_of_distances(seed):
    points = cloud(seed, k=15, d=3)
    found = geometric_median(points)
    total = lambda c: np.linalg.norm(points - c, axis=1).sum()  # noqa: E731
    best = optimize.minimize(total, found + 0.1, method="Nelder-Mead", options={"xatol": 1e-9})
    assert total(found) <= best.fun + 1e-6


@pytest.mark.parametrize(
    "points",
    [
        np.zeros((5, 2)),
        np.array([[0.0], [0.0], [0.0], [9.0]]),
        np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]),
    ],
)
def test_geometric_median_where_points_coincide(points):
    assert np.allclose(geometric_median(points), 0.0, atol=1e-9)


def test_coordinate_median():
    assert coordinate_median(np.array([[0.0, 5.0], [1.0, 4.0], [9.0, 3.0]])).tolist() == [1.0, 4.0]
