"""Lower bounds on the epsilon of ModelMix from one record's explicit contribution.

A record that moves coordinate j by v_j gives a pair of product laws. Any statistic of the
coordinates is post-processing, so the epsilon it reaches is a *lower* bound on the worst case:

1. cut every axis into cells and round each cell's log likelihood ratio down to a grid;
2. add the rounded values up over coordinates: the law of the sum under both hypotheses is a
   convolution, and no likelihood is approximated;
3. sample: (1-q) P0 + q Pv against P0, each value of the statistic with its true ratio;
4. round the losses down and compose T times.

Independent of the accountant's own bounds: densities here are plain differences of normal tails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from dp_accounting.pld.pld_pmf import create_pmf
from numpy.typing import NDArray
from scipy import signal, special, stats

Array = NDArray[np.float64]


def density(x: Array, width: float) -> Array:
    """Density of N(0,1) + Uniform[-width/2, width/2]."""
    size = np.abs(x)
    if width == 0:
        return stats.norm.pdf(size)
    return (special.ndtr(-(size - width / 2)) - special.ndtr(-(size + width / 2))) / width


def _cells(width: float, shift: float, step: float) -> tuple[Array, Array]:
    """Masses of the cells under no shift and under the shift (midpoint rule, then normalised)."""
    edge = width / 2 + 8 + shift
    x = np.arange(-edge, edge + step, step)
    p0, pv = density(x, width), density(x - shift, width)
    return p0 / p0.sum(), pv / pv.sum()


def _statistic(width: float, shift: float, grid: float) -> tuple[int, Array, Array]:
    """Lowest grid index and the two laws of the rounded log ratio of one coordinate."""
    p0, pv = _cells(width, shift, 0.01)
    keep = (p0 > 1e-18) & (pv > 1e-18)
    index = np.floor(np.log(pv[keep] / p0[keep]) / grid).astype(int)
    low = int(index.min())
    size = int(index.max()) - low + 1
    return (
        low,
        np.bincount(index - low, p0[keep], size),
        np.bincount(index - low, pv[keep], size),
    )


def allocation_epsilon(
    width: float, shifts: Sequence[float], q: float, steps: int, delta: float
) -> float:
    """Epsilon that a record with these coordinate shifts reaches, rounded down.

    ``width`` and ``shifts`` in units of the Gaussian noise.
    """
    total = math.sqrt(sum(v * v for v in shifts))
    grid = max(total, 0.02) / 400
    low, a0, av = 0, np.ones(1), np.ones(1)
    for shift in shifts:
        part_low, p0, pv = _statistic(width, shift, grid)
        low += part_low
        a0, av = signal.convolve(a0, p0), signal.convolve(av, pv)
    keep = (a0 > 1e-14) & (av > 1e-14)  # below, the convolution is rounding noise
    mixture = (1 - q) * a0[keep] + q * av[keep]
    loss = np.log(mixture / a0[keep])
    spread = math.sqrt(float(mixture @ loss**2))
    interval = spread / 200
    rounded: dict[int, float] = {}
    for value, mass in zip(np.floor(loss / interval).astype(int), mixture, strict=True):
        rounded[int(value)] = rounded.get(int(value), 0.0) + float(mass)
    pmf = create_pmf(rounded, interval, 0.0, pessimistic_estimate=False)
    return float(pmf.self_compose(steps).get_epsilon_for_delta(delta))


def renyi(width: float, shifts: Sequence[float], q: float, order: float) -> tuple[float, float]:
    """D_a of the sampled step both ways, (mixture || P0) and (P0 || mixture), by quadrature.

    One or two coordinates.
    """
    step = 0.02 if len(shifts) == 1 else 0.06
    logs0, logsv = np.zeros(1), np.zeros(1)
    cell = 1.0
    for shift in shifts:
        edge = width / 2 + 9 + abs(shift) * (order + 1)
        edge = min(edge, width / 2 + 36)
        x = np.arange(-edge, edge + step, step)
        log0 = log_density(x, width)
        logv = log_density(x - shift, width)
        logs0 = (logs0[:, None] + log0[None, :]).ravel()
        logsv = (logsv[:, None] + logv[None, :]).ravel()
        cell *= step
    mixture = np.logaddexp(math.log1p(-q) + logs0, math.log(q) + logsv) if q < 1 else logsv
    scale = math.log(cell)
    forth = special.logsumexp(order * mixture + (1 - order) * logs0) + scale
    back = special.logsumexp(order * logs0 + (1 - order) * mixture) + scale
    return float(forth) / (order - 1), float(back) / (order - 1)


def log_density(x: Array, width: float) -> Array:
    """log of `density`, also where it underflows."""
    size = np.abs(x)
    near = special.log_ndtr(-(size - width / 2))
    far = special.log_ndtr(-(size + width / 2))
    return near + np.log(-np.expm1(far - near)) - math.log(width)
