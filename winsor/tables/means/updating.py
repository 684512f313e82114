"""From k noisy group means to one centre: the iterative update, and the medians beside it.

    d_l, u_l   max s  subject to  <Q_j - c_l, u> >= s  for at least 90 % of the j,  |u| = 1     (23)
    c_{l+1} = c_l + d_l u_l / 4,   l = 1..t_c;    the answer is the c_l with the smallest d_l

Paper 2 (Zhao et al. 2025), Algorithm 3, lines 5 to 10. (23) is a mixed-integer problem: for a fixed
set of kept points the best u points to the point of their convex hull nearest to c. Below 20 points
at most one may be left out, and every choice is tried. From 20 on, keep the ceil(0.9 k) largest
projections, move u to that nearest point, repeat: the objective never decreases, and the best of
several starts wins. (The text after (23) has the direction with the opposite sign; (25) is right.)

The paper leaves c_1 open. ``"outside"``, the default, is the lower corner of the box around the
group means; ``"centre"`` is the origin; ``"geometric_median"`` lies in the bulk, where nothing is
ever updated. t_c is that of Lemma 8, 2 ln(|c_1 - mu| / (4 r_0)) / ln(256/233), and at least ten;
the distance is at most d_1 + r_0 (24), and r_0 is (21) with ln(1/beta) = k/800 (Lemma 6) and the
spread of the group means. From outside, d_{l+1} >= 3/4 d_l: the walk ends at the edge of the bulk,
about 1.28 standard deviations of a group mean away from the middle however many groups there are.
That is within the 6 r_0 of Lemma 8, whose constant must be large for that reason
(`least_constant`); the geometric median of the same group means is nearer.

Guarantee
---------
Everything here is a function of released group means and public values, and of their set only (they
are sorted first, so bit for bit): post-processing, whatever c_1 and t_c are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from winsor.core.checks import choice, whole
from winsor.core.contract import ConfigurationError

Array = NDArray[np.float64]

_TOLERANCE = 1e-9
_ROUNDS = 60


def lexicographic(points: Array) -> Array:
    """Return the rows in lexicographic order: one order for every permutation of them."""
    return points[np.lexsort(points.T[::-1])]


def distance_and_direction(
    points: Array, centre: Array, hint: Array | None = None
) -> tuple[float, Array]:
    """Return (d, u) of (23), with ``points`` already in `lexicographic` order; d is never negative.

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
    """Return the point of the convex hull nearest to the origin, exactly; zero if the origin is
    inside."""
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


def coordinate_median(points: Array) -> Array:
    """Return median of each coordinate."""
    return np.median(lexicographic(points), axis=0)


def geometric_median(points: Array, *, tolerance: float = 1e-10, rounds: int = 500) -> Array:
    """Return argmin_c sum_j |Q_j - c| by Weiszfeld's iteration, with the step of Vardi & Zhang
    (2000) where an iterate meets one of the points."""
    cloud = lexicographic(points)
    centre = np.median(cloud, axis=0)
    scale = float(np.abs(cloud - centre).mean()) or 1.0
    for _ in range(rounds):
        moved = _weiszfeld(cloud, centre, 1e-12 * scale)
        if float(np.linalg.norm(moved - centre)) <= tolerance * scale:
            return moved
        centre = moved
    return centre


def _weiszfeld(cloud: Array, centre: Array, touching: float) -> Array:
    gaps = cloud - centre
    lengths = np.sqrt(np.einsum("ij,ij->i", gaps, gaps))
    apart = lengths > touching
    met = int(np.count_nonzero(~apart))
    if not apart.any():
        return centre
    inverse = 1 / lengths[apart]
    pull = inverse @ gaps[apart]
    strength = float(np.linalg.norm(pull))
    if strength <= met:  # the points met here outweigh the others: this is the minimiser
        return centre
    step = pull / inverse.sum()
    return centre + (step if met == 0 else step * (1 - met / strength))


STEP = 0.25  # eta of Lemma 8
COMBINATIONS = ("iterative", "coordinate_median", "geometric_median", "mean")
STARTS = ("outside", "centre", "geometric_median")
FEWEST = 10  # updates that are tried even where Lemma 8 asks for none


@dataclass(frozen=True)
class Centre:
    """One point for all group means.

    ``updates`` counts the updates that led to it (None for a combination without updates);
    ``distances`` are d_1, d_2, ... of every point that was visited.
    """

    point: Array
    updates: int | None = None
    distances: tuple[float, ...] = ()


def combined(
    means: Array,
    combine: str = "iterative",
    start: str | ArrayLike = "outside",
    steps: int | None = None,
) -> Centre:
    """Return one centre from the (k, d) noisy group means; ``start`` is c_1 and ``steps`` is
    t_c."""
    match combine:
        case "mean":
            return Centre(lexicographic(means).mean(axis=0))
        case "coordinate_median":
            return Centre(coordinate_median(means))
        case "geometric_median":
            return Centre(geometric_median(means))
    return iterative_centre(means, start, steps)


def iterative_centre(
    means: Array, start: str | ArrayLike = "outside", steps: int | None = None
) -> Centre:
    """Run lines 5 to 10 of Algorithm 3 from c_1 = ``start`` with t_c = ``steps`` (None: Lemma
    8)."""
    cloud = lexicographic(means)
    centre = _first(cloud, start)
    distances: list[float] = []
    best, answer, updates = math.inf, centre, 0
    direction: Array | None = None
    while True:
        distance, direction = distance_and_direction(cloud, centre, direction)
        if distance < best:
            best, answer, updates = distance, centre, len(distances)
        distances.append(distance)
        if steps is None:
            steps = lemma_8_steps(cloud, distance)
        # d_l = 0: no direction has 90 % of the group means ahead, and c_l stays where it is.
        if distance == 0 or len(distances) >= steps:
            return Centre(answer, updates, tuple(distances))
        centre = centre + STEP * distance * direction


def lemma_8_steps(cloud: Array, distance: float) -> int:
    """Return t_c of Lemma 8 from d_1 = ``distance`` and the spread of the group means; at least
    ten."""
    k, d = cloud.shape
    accuracy = math.sqrt((d + k / 800) / k) * _spread(cloud)
    if distance == 0 or accuracy == 0:  # identical group means have no spread to stop at
        return FEWEST if distance == 0 else 1000
    from winsor.tails.theorems import iterative_inner_steps

    return max(FEWEST, iterative_inner_steps(distance + accuracy, accuracy))


def least_constant(groups: int, d: int, beta: float) -> float:
    """Return a lower bound on C_0 of Lemma 6: what (22) asks of group means that are exactly
    Gaussian.

    There 10 % of the projections exceed 1.28 standard deviations, so r_0 is at least that; the
    noise term of (21) is C_0 sqrt((d + ln(1/beta)) / (2k)) of them.
    """
    quantile = float(stats.norm.ppf(0.9))
    return max(1.0, quantile * math.sqrt(2 * groups / (d + math.log(1 / beta))))


def checked_updating(
    combine: str, start: str | ArrayLike, steps: int | None, d: int
) -> str | Array:
    """Return c_1 as a name or a point of d numbers; refuse what `combined` could not use."""
    choice("combine", combine, COMBINATIONS)
    if steps is not None:
        whole("updates", steps)
    if isinstance(start, str):
        return choice("start", start, STARTS)
    point = np.asarray(start, dtype=np.float64)
    if point.shape not in ((), (d,)) or not np.isfinite(point).all():
        raise ConfigurationError(
            f"start must be one of {', '.join(STARTS)} or a finite point of {d} numbers. Got "
            f"{start!r} instead. It is c_1 of Algorithm 3 and must be public."
        )
    return np.broadcast_to(point, (d,)).copy()


def _first(cloud: Array, start: str | ArrayLike) -> Array:
    """c_1: a public point, or a function of the set of group means."""
    known = checked_updating("iterative", start, None, cloud.shape[1])
    if not isinstance(known, str):
        return known
    if known == "outside":
        return cloud.min(axis=0)
    return geometric_median(cloud) if known == "geometric_median" else np.zeros(cloud.shape[1])


def _spread(cloud: Array) -> float:
    """Standard deviation of a coordinate of a group mean, from median absolute deviations."""
    deviations = np.median(np.abs(cloud - np.median(cloud, axis=0)), axis=0)
    return float(np.sqrt(np.mean((deviations / stats.norm.ppf(0.75)) ** 2)))
