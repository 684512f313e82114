"""Choice of a cut for residuals: a private histogram of them, and the balance of bias and noise.

    release   counts of residuals in signed cells of equal ratios, plus N(0, s^2)
    bias(c)   |mean of what a cut at c takes away|, from the counts that noise cannot explain
    noise(c)  c times the noise of a prediction per unit of c
    cut at    the c with the smallest bias(c)^2 + noise(c)^2

Guarantee
---------
A record adds 1 to one cell: sensitivity 1 when it joins or leaves, sqrt(2) when it is replaced.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from winsor.core.contract import Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch

Array = NDArray[np.float64]

SMALLEST, LARGEST, PER_DOUBLING = 2.0**-4, 2.0**8, 2
SENSITIVITY = Sensitivity(1.0, math.sqrt(2.0), "one cell of a histogram of residuals")

_CERTAIN = 5.0  # deviations of noise: a phantom far out would let the noise of every sum explode


def grid() -> Array:
    """Return lengths at which residuals may be cut."""
    doublings = round(math.log2(LARGEST / SMALLEST))
    return np.geomspace(SMALLEST, LARGEST, doublings * PER_DOUBLING + 1)


def cells() -> Array:
    """Return the edges of the signed cells."""
    edges = grid()
    return np.concatenate([-edges[::-1], edges])


def residual_counts(residuals: Array, door: PrepaidDoor, mechanism: Gaussian) -> Array:
    """Release counts of residuals below, between and above `cells`, as shares of the rows."""
    return release_counts(counts_in_cells(residuals), len(residuals), door, mechanism)


def counts_in_cells(residuals: Array) -> Array:
    """Count the residuals below, between and above `cells`."""
    edges = cells()
    places = np.searchsorted(edges, np.nan_to_num(residuals, nan=0.0), side="right")
    return np.bincount(places, minlength=len(edges) + 1).astype(np.float64)


def release_counts(counts: Array, n: int, door: PrepaidDoor, mechanism: Gaussian) -> Array:
    """Release counts of ``n`` rows, as shares; what noise alone explains is none."""
    receipt = door.pay(mechanism, FullBatch(n), SENSITIVITY, 1, len(counts))
    released = receipt.release(counts)
    return np.where(released > _CERTAIN * receipt.std, released, 0.0) / n


def best_cut(shares: Array, noise: float, least: float) -> float:
    """Return the cut with the best balance, at least ``least``; ``noise`` is per unit of it."""
    edges = cells()
    middles = np.concatenate([[edges[0]], (edges[:-1] + edges[1:]) / 2, [edges[-1]]])
    found, best = math.inf, LARGEST
    for cut in grid():
        if cut < least:
            continue
        taken = middles - np.clip(middles, -cut, cut)
        risk = float(np.dot(shares, taken)) ** 2 + (noise * cut) ** 2
        # a heavy cut on both sides cancels in the mean but not in the slopes
        risk += 0.1 * float(np.dot(shares, np.abs(taken))) ** 2
        if risk < found:
            found, best = risk, float(cut)
    return best


def typical(shares: Array) -> float:
    """Return the length that about two thirds of the residuals do not exceed."""
    edges = grid()
    half = len(edges)
    inner = shares[half]
    ring = shares[half + 1 :] + shares[:half][::-1]
    reached = np.concatenate([[inner], inner + np.cumsum(ring)])
    if reached[-1] <= 0:
        return 1.0
    place = int(np.searchsorted(reached / reached[-1], 0.68))
    return float(edges[min(place, half - 1)])


def largest_seen(shares: Array) -> float:
    """Return the end of the outermost cell that noise cannot explain."""
    edges = np.append(grid(), LARGEST)
    half = len(edges) - 1
    ring = np.append(0.0, shares[half + 1 :] + shares[:half][::-1])
    seen = np.flatnonzero(ring > 0)
    return float(edges[seen[-1]]) if len(seen) else 1.0


def root_mean_square(shares: Array) -> float:
    """Return about the root mean square of residuals: cells count at their middles."""
    edges = cells()
    middles = np.concatenate([[edges[0]], (edges[:-1] + edges[1:]) / 2, [edges[-1]]])
    mass = float(shares.sum())
    if mass <= 0:
        return 1.0
    return max(math.sqrt(float(np.dot(shares, middles**2)) / mass), SMALLEST)
