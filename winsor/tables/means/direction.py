"""Distance and direction from a point to the bulk of a cloud: problem (23) of paper 2.

    max s  subject to  <Q_j - c, u> >= s  for at least 90 % of the j,  |u| = 1

A mixed-integer problem. For a fixed set of kept points the best u points to the point of their
convex hull nearest to c. Below 20 points at most one may be left out: every choice is tried, and
the answer is exact. From 20 on this is the ascent of the project's privacy notes: keep the
ceil(0.9 k) largest projections, move u to that nearest point, repeat. The objective never
decreases. Several starts, among them the direction of the last update; the best one wins.

The answer is a function of the *set* of the Q_j, bit for bit: they are sorted first. (The text
after (23) describes the direction with the opposite sign; (25) is right: from c to the mean.)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

Array = NDArray[np.float64]

_TOLERANCE = 1e-9
_ROUNDS = 60


def lexicographic(points: Array) -> Array:
    """The rows in lexicographic order: one order for every permutation of them."""
    return points[np.lexsort(points.T[::-1])]


def distance_and_direction(
    points: Array, centre: Array, hint: Array | None = None
) -> tuple[float, Array]:
    """(d, u) of (23), with ``points`` already in `lexicographic` order; d is never negative.

    ``hint`` is a unit vector that may be near u; d is at least what it attains.
    """
    cloud = points - centre
    keep = math.ceil(0.9 * len(cloud))
    if keep >= len(cloud) - 1:
        return _exact(cloud, keep)
    best, direction = -math.inf, np.zeros(cloud.shape[1])
    for start in _starts(cloud) if hint is None else [*_starts(cloud), hint]:
        value, u = _ascend(cloud, start, keep)
        if value > best:
            best, direction = value, u
    return max(best, 0.0), direction


def _exact(cloud: Array, keep: int) -> tuple[float, Array]:
    """The best over every choice of the kept points, all of them or all but one.

    Leaving out a point that the nearest point of the hull does not rest on changes nothing. Only
    the geometry of the k points matters, so all choices are tried in their own k dimensions.
    """
    points = cloud
    if cloud.shape[1] > len(cloud):
        points = np.asarray(np.linalg.qr(cloud.T, mode="r")).T
    (best, weights), kept = _nearest(points), np.arange(len(cloud))
    if keep < len(cloud):
        for left_out in np.flatnonzero(weights):
            others = np.flatnonzero(np.arange(len(cloud)) != left_out)
            nearest, its_weights = _nearest(points[others])
            if float(nearest @ nearest) > float(best @ best):
                best, kept, weights = nearest, others, its_weights
    if not best.any():
        return 0.0, np.zeros(cloud.shape[1])
    answer = weights @ cloud[kept] / weights.sum()
    length = float(np.linalg.norm(answer))
    return length, answer / length if length > 0 else answer


def _starts(cloud: Array) -> list[Array]:
    """Coordinate median, mean, and both signs of the leading principal direction."""
    candidates = [np.median(cloud, axis=0), cloud.mean(axis=0)]
    centred = cloud - candidates[1]
    leading = np.linalg.svd(centred, full_matrices=False)[2][0]
    candidates += [leading, -leading]
    lengths = [float(np.linalg.norm(v)) for v in candidates]
    return [v / length for v, length in zip(candidates, lengths, strict=True) if length > 0]


def _ascend(cloud: Array, u: Array, keep: int) -> tuple[float, Array]:
    value, kept = _kept(cloud, u, keep)
    for _ in range(_ROUNDS):
        nearest = nearest_in_hull(cloud[kept])
        length = float(np.linalg.norm(nearest))
        if length == 0:
            break
        proposal = nearest / length
        new_value, new_kept = _kept(cloud, proposal, keep)
        if new_value <= value + _TOLERANCE * abs(value):
            break
        value, kept, u = new_value, new_kept, proposal
    return value, u


def _kept(cloud: Array, u: Array, keep: int) -> tuple[float, NDArray[np.int64]]:
    """The objective at u, and the points that attain it."""
    projections = cloud @ u
    order = np.argsort(-projections, kind="stable")[:keep]
    return float(projections[order[-1]]), np.sort(order)


def nearest_in_hull(points: Array) -> Array:
    """The point of the convex hull nearest to the origin, exactly; zero if the origin is inside."""
    return _nearest(points)[0]


def _nearest(points: Array) -> tuple[Array, Array]:
    """The nearest point of the hull, and the weights of the points that it rests on.

    With t = sum(w), |sum_j w_j a_j|^2 + (t - 1)^2 over w >= 0 is least where w/t gives the nearest
    point (for every t > 0 the first term is t^2 times its square): non-negative least squares.
    """
    scale = float(np.abs(points).max())
    if scale == 0:
        return np.zeros(points.shape[1]), np.ones(len(points))
    columns: Array = points.T / scale
    if len(columns) > 2 * len(points):  # only the geometry of the k points matters
        columns = np.asarray(np.linalg.qr(columns, mode="r"))
    system = np.vstack([columns, np.ones(len(points))])
    goal = np.zeros(len(system))
    goal[-1] = 1.0
    weights = optimize.nnls(system, goal)[0]
    nearest = weights @ points / weights.sum()
    if float(np.linalg.norm(nearest)) > 1e-12 * scale:
        return nearest, weights
    return np.zeros_like(nearest), weights
