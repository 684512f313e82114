"""Algorithm 3 of paper 2 against a transcription of its lines, and how many updates it makes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from winsor_papers.theory import iterative_groups

from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.prepaid import Receipt
from winsor.core.randomness import new_key
from winsor.tables import iterative_mean
from winsor.tables.means.groups import Groups
from winsor.tables.means.updating import combined, iterative_centre, least_constant, lemma_8_steps
from winsor.tails.datasets import moment_rows

REPLACE = Neighbouring.REPLACE_ONE


# ------------------------------------------------------- from the paper's lines alone, numpy only


def estimate(points: np.ndarray, c: np.ndarray) -> tuple[float, np.ndarray]:
    """(23), exactly. For the best choice of 90 % of the points, u leads to the nearest point of
    their convex hull, which lies on a face of at most d points: so u is among the directions to
    the nearest points of the planes through d points or fewer, and the best of those is it."""
    away = points - c
    k, d = away.shape
    best, direction = -math.inf, np.zeros(d)
    for count in range(1, d + 1):
        for face in itertools.combinations(range(k), count):
            base, edges = away[face[0]], away[list(face[1:])] - away[face[0]]
            inside = np.linalg.lstsq(edges.T, -base, rcond=None)[0] if len(edges) else None
            nearest = base if inside is None else base + inside @ edges
            length = np.linalg.norm(nearest)
            for u in (nearest / length, -nearest / length):
                s = np.sort(away @ u)[::-1][math.ceil(0.9 * k) - 1]
                if s > best:
                    best, direction = s, u
    return best, direction


def algorithm_3(rows, groups, noise, radius, c, t_c):
    """Lines 1 to 11; ``groups`` and ``noise`` are the randomness of lines 1 and 3."""
    m = len(rows) / len(groups)
    q = []
    for members, w in zip(groups, noise, strict=True):
        clipped = [min(1.0, radius / np.linalg.norm(rows[i])) * rows[i] for i in members]
        q.append(sum(clipped) / m + w)
    q = np.array(q)
    centres, distances = [], []
    for _ in range(t_c):
        d_l, g_l = estimate(q, c)
        centres.append(c)
        distances.append(d_l)
        c = c + 0.25 * d_l * g_l
    return centres[int(np.argmin(distances))], q


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_algorithm_3_line_by_line(monkeypatch, d, seed):
    n, k, radius, t_c = 200, 10, 4.0, 15
    rng = np.random.default_rng(seed)
    rows = rng.standard_t(2, size=(n, d)) + 1.0
    noise = 0.3 * rng.standard_normal((k, d))
    start = np.full(d, -3.0)

    def release(self, value):
        self._left -= 1
        value += noise
        return value

    monkeypatch.setattr(Receipt, "release", release)
    key = new_key(seed)
    result = iterative_mean(
        rows, rho=0.1, radius=radius, groups=k, grouping="partition", relation="replace_one",
        start=start, updates=t_c, random_state=key,
    )  # fmt: skip
    members = Groups(n, k, "partition", REPLACE).members(key, 0)
    expected, q = algorithm_3(rows, members, noise, radius, start, t_c)
    assert np.allclose(result.group_means, q, rtol=0, atol=1e-6)
    assert np.allclose(result.estimate, expected, rtol=0, atol=1e-6)
    assert result.updates == t_c - 1


def test_the_printed_noise_of_line_3():
    """s^2 = 2 R^2 / (rho m^2), m = n/k."""
    result = iterative_mean(
        np.ones((600, 2)), rho=0.02, radius=3.0, groups=12, grouping="partition",
        relation="replace_one",
    )  # fmt: skip
    assert result.noise_std == pytest.approx(math.sqrt(2 * 3.0**2 / (0.02 * 50**2)), rel=1e-5)
    assert result.rho == pytest.approx(0.02, rel=1e-5)
    with pytest.raises(ConfigurationError, match="unsampled groups only"):
        iterative_mean(np.ones((600, 2)), rho=0.02, radius=3.0, groups=12)
    with pytest.raises(ConfigurationError, match="either epsilon or rho"):
        iterative_mean(np.ones((600, 2)), radius=3.0, groups=12)


# ------------------------------------------------------------------------------------- updates


@pytest.mark.parametrize("d", [2, 5, 10])
@pytest.mark.parametrize("grouping", ["poisson", "partition"])
def test_updates_are_made_by_default(d, grouping):
    for seed in range(5):
        x = moment_rows(2000, d, 3.0, seed=seed)[0]
        result = iterative_mean(
            x, epsilon=1.0, radius=10.0, groups=20, grouping=grouping, random_state=seed
        )
        assert result.updates > 0
        lazy = iterative_mean(
            x, epsilon=1.0, radius=10.0, groups=20, grouping=grouping, random_state=seed,
            start="geometric_median",
        )  # fmt: skip
        assert lazy.guarantee == result.guarantee  # c_1 costs nothing


def test_the_default_number_of_groups_is_that_of_lemma_6():
    x = np.random.default_rng(0).standard_normal((25_000, 1))
    result = iterative_mean(x, epsilon=1.0, radius=4.0, grouping="partition", random_state=0)
    assert len(result.group_means) == iterative_groups(0.05) == 2397
    assert result.updates > 0
    few = iterative_mean(x[:500], epsilon=1.0, radius=4.0, grouping="partition")
    assert len(few.group_means) == 50  # ten records each


@pytest.mark.parametrize("d", [2, 5, 10])
def test_from_outside_the_walk_approaches_the_bulk_and_never_enters_it(d):
    points = np.random.default_rng(d).standard_normal((20, d)) + 5
    found = iterative_centre(points)
    assert found.updates > 0
    assert found.distances[found.updates] == min(found.distances) < found.distances[0] / 4
    # u_l still has 90 % of the points 3/4 d_l ahead of c_{l+1}
    assert all(
        b >= 0.75 * a * (1 - 1e-9)
        for a, b in zip(found.distances, found.distances[1:], strict=False)
    )
    assert len(found.distances) == lemma_8_steps(
        points[np.lexsort(points.T[::-1])], found.distances[0]
    )


def test_it_ends_at_the_edge_of_the_bulk_where_the_geometric_median_is_in_its_middle():
    """The error does not fall with the number of group means: 1.28 of their deviations."""
    errors = {"iterative": [], "geometric_median": []}
    for k in (100, 1000):
        points = np.random.default_rng(k).standard_normal((k, 2))
        for combine, found in errors.items():
            found.append(np.linalg.norm(combined(points, combine).point))
    assert errors["iterative"] == pytest.approx([1.28, 1.28], abs=0.35)
    assert max(errors["geometric_median"]) < 0.3


def test_the_geometric_median_is_never_updated():
    for d in (2, 5):
        points = np.random.default_rng(d).standard_normal((60, d))
        found = combined(points, start="geometric_median")
        assert found.updates == 0
        assert np.array_equal(found.point, combined(points, "geometric_median").point)


def test_identical_group_means_need_no_update():
    found = iterative_centre(np.ones((12, 3)))
    assert (found.updates, found.distances) == (0, (0.0,))
    assert np.array_equal(found.point, np.ones(3))
    mostly = np.zeros((12, 1))
    mostly[0] = -1.0
    assert abs(iterative_centre(mostly).point[0]) < 1e-6


def test_the_constant_of_lemma_6_is_at_least_what_gaussians_need():
    assert least_constant(2397, 2, 0.05) == pytest.approx(
        1.2816 * math.sqrt(2 * 2397 / 4.9957), 1e-4
    )
    assert least_constant(1, 50, 0.05) == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": "inside"}, "start must be one of"),
        ({"start": [1.0, 2.0, 3.0]}, "a finite point of 2 numbers"),
        ({"start": np.nan}, "a finite point"),
        ({"updates": 0}, "positive whole number"),
    ],
)
def test_bad_starts_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        iterative_mean(np.ones((50, 2)), epsilon=1.0, radius=1.0, groups=5, **options)


def test_a_public_start_is_in_the_units_of_the_data():
    x = np.random.default_rng(0).standard_normal((2000, 2)) + 5.0
    options = {"epsilon": 1.0, "radius": 5.0, "groups": 10, "centre": 5.0, "random_state": 0}
    given = iterative_mean(x, start=[5.0, 5.0], **options)
    named = iterative_mean(x, start="centre", **options)
    assert np.allclose(given.estimate, named.estimate)
