"""From k noisy group means to one centre: the iterative update, and the medians beside it.

    d_l, u_l = (23) at c_l                                                    (`direction.py`)
    c_{l+1} = c_l + d_l u_l / 4,   l = 1..t_c;    the answer is the c_l with the smallest d_l

Paper 2 (Zhao et al. 2025), Algorithm 3, lines 5 to 10. The paper leaves c_1 open. The default is
``"outside"``: the lower corner of the box around the group means, from where every one of them lies
ahead. ``"centre"`` is the origin; ``"geometric_median"`` lies in the bulk, where (23) finds no
direction with 90 % of the group means ahead, so that nothing is ever updated.

How far it walks
----------------
t_c is that of Lemma 8, 2 ln(|c_1 - mu| / (4 r_0)) / ln(256/233), and at least ten. The distance is
at most d_1 + r_0 (24). (21) is r_0 = sqrt((d + ln(1/beta)) / k) times the spread of a group mean,
up to its constant, with ln(1/beta) = k/800 (Lemma 6); the spread is read off the group means.

What it reaches
---------------
From outside, d_{l+1} >= 3/4 d_l: the walk approaches the bulk and never enters it. It ends at the
edge of the bulk, on the side of c_1, about 1.28 standard deviations of a group mean away from the
middle however many groups there are. That is within the 6 r_0 of Lemma 8, whose constant must be
large for that reason (`least_constant`); the geometric median of the same group means is nearer.

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
from scipy import stats

from winsor.core.checks import choice, whole
from winsor.core.contract import ConfigurationError
from winsor.tables.means.direction import distance_and_direction, lexicographic
from winsor.tables.means.medians import coordinate_median, geometric_median
from winsor.tails.theorems import iterative_inner_steps

Array = NDArray[np.float64]

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
    """One centre from the (k, d) noisy group means; ``start`` is c_1 and ``steps`` is t_c."""
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
    """Lines 5 to 10 of Algorithm 3 from c_1 = ``start`` with t_c = ``steps`` (None: Lemma 8)."""
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
    """t_c of Lemma 8 from d_1 = ``distance`` and the spread of the group means; at least ten."""
    k, d = cloud.shape
    accuracy = math.sqrt((d + k / 800) / k) * _spread(cloud)
    if distance == 0 or accuracy == 0:  # identical group means have no spread to stop at
        return FEWEST if distance == 0 else 1000
    return max(FEWEST, iterative_inner_steps(distance + accuracy, accuracy))


def least_constant(groups: int, d: int, beta: float) -> float:
    """A lower bound on C_0 of Lemma 6: what (22) asks of group means that are exactly Gaussian.

    There 10 % of the projections exceed 1.28 standard deviations, so r_0 is at least that; the
    noise term of (21) is C_0 sqrt((d + ln(1/beta)) / (2k)) of them.
    """
    quantile = float(stats.norm.ppf(0.9))
    return max(1.0, quantile * math.sqrt(2 * groups / (d + math.log(1 / beta))))


def checked_updating(
    combine: str, start: str | ArrayLike, steps: int | None, d: int
) -> str | Array:
    """c_1 as a name or a point of d numbers; refuses what `combined` could not use."""
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
