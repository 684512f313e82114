"""Robust centres of a cloud of points, as alternatives to the iterative update.

Both are functions of the set of points, bit for bit, because the points are sorted first. They are
post-processing of released group means, so they cost no privacy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from winsor.tables.means.direction import lexicographic

Array = NDArray[np.float64]


def coordinate_median(points: Array) -> Array:
    """Median of each coordinate."""
    return np.median(lexicographic(points), axis=0)


def geometric_median(points: Array, *, tolerance: float = 1e-10, rounds: int = 500) -> Array:
    """argmin_c sum_j |Q_j - c| by Weiszfeld's iteration, with the step of Vardi & Zhang (2000)
    where an iterate meets one of the points."""
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
