"""Distance and direction from a point to the bulk of a cloud: problem (23) of paper 2.

    max s  subject to  <Q_j - c, u> >= s  for at least 90 % of the j,  |u| = 1

A mixed-integer problem; this is the ascent of the project's privacy notes. For a fixed set of kept
points the best u points to the point of their convex hull nearest to c, so: keep the ceil(0.9 k)
largest projections, move u to that nearest point, repeat. The objective never decreases. Several
starts; the best one wins.

The answer is a function of the *set* of the Q_j, bit for bit: they are sorted first. (The text
after (23) describes the direction with the opposite sign; (25) is right: from c to the mean.)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_TOLERANCE = 1e-9
_ROUNDS = 60
_HULL_STEPS = 400


def lexicographic(points: Array) -> Array:
    """The rows in lexicographic order: one order for every permutation of them."""
    return points[np.lexsort(points.T[::-1])]


def distance_and_direction(points: Array, centre: Array) -> tuple[float, Array]:
    """(d, u) of (23), with ``points`` already in `lexicographic` order; d is never negative."""
    cloud = points - centre
    keep = math.ceil(0.9 * len(cloud))
    best, direction = -math.inf, np.zeros(cloud.shape[1])
    for start in _starts(cloud):
        value, u = _ascend(cloud, start, keep)
        if value > best:
            best, direction = value, u
    return max(best, 0.0), direction


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
    """The point of the convex hull nearest to the origin: Frank-Wolfe with away steps on the Gram
    matrix, so that a step costs O(k) whatever the dimension."""
    gram = points @ points.T
    weights = np.zeros(len(points))
    start = int(np.argmin(gram.diagonal()))
    weights[start] = 1.0
    slopes = gram[start].copy()  # gram @ weights
    for _ in range(_HULL_STEPS):
        square = float(weights @ slopes)  # |v|^2
        toward = int(np.argmin(slopes))
        away = int(np.argmax(np.where(weights > 0, slopes, -np.inf)))
        if square - slopes[toward] <= 1e-12 * max(square, 1e-300):
            break
        if square - slopes[toward] >= slopes[away] - square:
            step, limit, change = 1.0, 1.0, gram[toward] - slopes
            rate = float(slopes[toward] - square)
            curvature = float(gram[toward, toward] - 2 * slopes[toward] + square)
        else:
            limit = float(weights[away] / max(1 - weights[away], 1e-300))
            step, change = -1.0, slopes - gram[away]
            rate = float(square - slopes[away])
            curvature = float(gram[away, away] - 2 * slopes[away] + square)
        size = min(limit, -rate / curvature) if curvature > 0 else limit
        index = toward if step > 0 else away
        weights *= 1 - step * size
        weights[index] += step * size
        weights[weights < 1e-15] = 0.0
        slopes += size * change
    return weights @ points
