"""Pessimistic privacy loss distributions of Gaussian noise with a random shift.

Let f(x) = log sum_k p_k exp((c_k x - c_k^2/2) / s^2) be the log density ratio of the mixture
sum_k p_k N(c_k, s^2), c_k >= 0, to N(0, s^2). Three pairs of laws are discretised here:

    remove   mixture            against N(0, s^2)             loss  f(x)
    add      N(0, s^2)          against mixture               loss -f(x)
    replace  mixture            against its mirror image      loss  f(x) - f(-x)

Poisson sampling of a Gaussian of multiplier nm is c = (0, 1), p = (1-q, q), s = nm.

Connect-the-dots (Doroshenko et al. 2022): the losses between two neighbouring grid points are
moved to these two points so that their probability under *both* laws is kept. Here the split is
computed from the two probabilities of each cell, which are accurate relative to themselves, and
not from second differences of delta as in `dp_accounting`, whose rounding noise (1e-16 / interval
per grid point) drowns losses as small as those of q = 1e-4, nm = 50.

Guarantee
---------
The grid pair dominates the true pair: each cell's losses are replaced by a mean-preserving spread
of the likelihood ratio, mass below the grid is moved up, mass above it becomes an infinite loss,
and rounding errors are covered by moving a little more mass up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf, PLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray
from scipy import special

from winsor.core.events.registry import Grid

Array = NDArray[np.float64]
Pmf = tuple[int, Array, float]
"""Lowest grid index, probabilities from there on, and mass at infinity."""

MOST_POINTS = 1 << 21
"""Grid points of one step. A finer grid is refused: it would only cost memory."""

_FAR = 38.0  # standard deviations beyond which a normal density is zero in floating point
_ROUNDING = 1e-13  # bound on the relative error of a cell's probability


class TooFine(Exception):
    """The interval asks for more grid points than `MOST_POINTS`."""


def sampled_gaussian(
    rate: float, multiplier: float, grid: Grid, *, replace: bool
) -> PrivacyLossDistribution:
    """One step of Poisson-sampled Gaussian noise, under add/remove or under replace-one."""
    mixture = _Sampled(rate, multiplier)
    if replace:
        return PrivacyLossDistribution(_replace(mixture, grid))
    if rate == 1.0:  # one direction is the mirror image of the other
        return PrivacyLossDistribution(_remove(mixture, grid))
    return PrivacyLossDistribution(_remove(mixture, grid), _add(mixture, grid))


def mixture_of_gaussians(
    std: float, shifts: Sequence[float], probabilities: Sequence[float], grid: Grid
) -> PrivacyLossDistribution:
    """One step of Gaussian noise with a random non-negative shift, under add/remove."""
    mixture = _Mixture(std, np.asarray(shifts, float), np.asarray(probabilities, float))
    return PrivacyLossDistribution(_remove(mixture, grid), _add(mixture, grid))


def subset_gaussian(rate: float, multiplier: float, grid: Grid) -> PrivacyLossDistribution:
    """One step on a uniform subset of fixed size, a share ``rate`` of the data, under replace-one.

    For alpha >= 1 both directions have H_alpha <= rate * H_a(Gaussian), alpha = 1 + rate (a - 1)
    (Balle, Barthe & Gaboardi 2018, Thm 9), which is the *remove* profile above; for alpha < 1 the
    bound follows by swapping the datasets (Zhu, Dong & Wang 2022, Thm 11). The pair with this
    symmetric profile has the positive losses of *remove*, their mirror images with probabilities
    e^-loss times smaller, and the rest at zero.
    """
    if rate == 1.0:
        return sampled_gaussian(1.0, multiplier, grid, replace=False)
    half = _remove(_Sampled(rate, multiplier), grid)
    lowest, probabilities, infinite = _arrays(half)
    positive = probabilities[max(0, 1 - lowest) :] if lowest <= 0 else probabilities
    points = grid.interval * np.arange(1, positive.size + 1)
    negative = positive * np.exp(-points)
    middle = max(0.0, 1.0 - infinite - float(positive.sum()) - float(negative.sum()))
    both = np.concatenate([negative[::-1], [middle], positive])
    return PrivacyLossDistribution(
        DensePLDPmf(grid.interval, -positive.size, both, infinite, pessimistic_estimate=True)
    )


def directions(pld: PrivacyLossDistribution) -> tuple[Pmf, ...]:
    """The two directions of a `dp_accounting` distribution, or the one that stands for both.

    The only place that looks inside a `dp_accounting` object; the library gives no public view.
    """
    pmfs = [pld._pmf_remove] if pld._symmetric else [pld._pmf_remove, pld._pmf_add]
    return tuple(_arrays(pmf) for pmf in pmfs)


def _arrays(pmf: PLDPmf) -> Pmf:
    dense = pmf.to_dense_pmf()
    probabilities = np.asarray(dense._probs, float)
    first, last = np.flatnonzero(probabilities)[[0, -1]]
    lowest = int(dense._lower_loss) + int(first)
    return lowest, probabilities[first : last + 1], float(dense._infinity_mass)


# ---------------------------------------------------------------------------------- the mixtures


class _Mixture:
    """sum_k p_k N(c_k, s^2) with c_k >= 0."""

    def __init__(self, std: float, shifts: Array, probabilities: Array) -> None:
        keep = probabilities > 0
        self.std = std
        self.shifts = shifts[keep]
        self.probabilities = probabilities[keep]
        self.largest = float(self.shifts.max())

    def log_ratio(self, x: Array) -> Array:
        """f(x); non-decreasing."""
        logs = np.log(self.probabilities)
        pairs = zip(self.shifts, logs, strict=True)
        return _log_sum([(c * x - c * c / 2) / self.std**2 + log for c, log in pairs])

    def reach(self, tail: float) -> Array:
        """Two points outside which the mixture has at most probability ``tail`` on each side."""
        shares = np.minimum(0.5, tail / (self.probabilities * self.probabilities.size))
        widths = -self.std * special.ndtri(shares)
        return np.array([np.min(self.shifts - widths), np.max(self.shifts + widths)])

    def inverse(self, losses: Array) -> Array:
        """x with f(x) = loss, by bisection; infinite where f does not reach the loss."""
        low = np.full(losses.shape, -_FAR * self.std)
        high = np.full(losses.shape, _FAR * self.std + self.largest)
        below = self.log_ratio(low) >= losses
        above = self.log_ratio(high) < losses
        for _ in range(80):
            middle = (low + high) / 2
            short = self.log_ratio(middle) < losses
            low = np.where(short, middle, low)
            high = np.where(short, high, middle)
        return np.where(below, -np.inf, np.where(above, np.inf, high))

    def cell_logs(self, edges: Array) -> Array:
        """log probability, under the mixture, of the cells between and outside ascending edges."""
        return self.cell_logs_and_noise(edges)[0]

    def cell_logs_and_noise(self, edges: Array) -> tuple[Array, Array]:
        """The same, and under N(0, s^2), which a mixture with c = 0 has computed anyway."""
        edges = np.concatenate([[-np.inf], edges, [np.inf]])
        logs = np.log(self.probabilities)
        parts = [_normal_cell_logs((edges - c) / self.std) for c in self.shifts]
        mixed = _log_sum([part + log for part, log in zip(parts, logs, strict=True)])
        unmoved = np.flatnonzero(self.shifts == 0)
        noise = parts[unmoved[0]] if unmoved.size else _normal_cell_logs(edges / self.std)
        return mixed, noise


class _Sampled(_Mixture):
    """c = (0, 1), p = (1-q, q): the inverses have closed forms."""

    def __init__(self, rate: float, multiplier: float) -> None:
        super().__init__(multiplier, np.array([0.0, 1.0]), np.array([1 - rate, rate]))
        self.rate = rate

    def inverse(self, losses: Array) -> Array:
        """x/s^2 - 1/(2 s^2) = log((e^loss - (1-q)) / q), in the form that suits the loss."""
        q = self.rate
        with np.errstate(divide="ignore"):
            near = np.log1p(np.maximum(np.expm1(np.clip(losses, -1.0, 1.0)) / q, -1.0))
            rest = np.log1p(-np.minimum((1 - q) * np.exp(np.minimum(-losses, 700.0)), 1.0))
        far = losses - math.log(q) + rest
        return self.std**2 * np.where(np.abs(losses) > 1.0, far, near) + 0.5

    def inverse_replace(self, losses: Array) -> Array:
        """x with f(x) - f(-x) = loss: sinh(x/s^2 - loss/2) = sinh(loss/2) (1-q)/q e^(1/(2 s^2))."""
        q, half = self.rate, np.abs(losses) / 2
        if q == 1.0:
            return self.std**2 * losses / 2
        with np.errstate(divide="ignore"):
            log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
        u = log_sinh + math.log1p(-q) - math.log(q) + 0.5 / self.std**2
        asinh = np.where(u < 0, np.arcsinh(np.exp(np.minimum(u, 0.0))), _asinh_of_exp(u))
        return self.std**2 * np.sign(losses) * (half + asinh)


def _log_sum(logs: Sequence[Array]) -> Array:
    return np.asarray(np.logaddexp.reduce(np.stack(logs), axis=0), float)


def _asinh_of_exp(u: Array) -> Array:
    """asinh(e^u) for u >= 0 without overflow."""
    v = np.maximum(u, 0.0)
    return np.asarray(v + np.log1p(np.sqrt(1 + np.exp(-2 * v))), float)


def _normal_cell_logs(z: Array) -> Array:
    """log(Phi(z[i+1]) - Phi(z[i])), relative accuracy in both tails."""
    left, right = z[:-1], z[1:]
    flip = left + right > 0  # measure a cell from the tail it is in
    a, b = np.where(flip, -right, left), np.where(flip, -left, right)
    # Seen from its tail, a cell that does not hold 0 ends at -|z|: one value for two neighbours.
    logs_at = special.log_ndtr(-np.abs(z))
    log_a = np.where(flip, logs_at[1:], logs_at[:-1])
    log_b = np.where(flip, logs_at[:-1], logs_at[1:])
    around = np.flatnonzero(b > 0)
    log_b[around] = special.log_ndtr(b[around])
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = log_b + np.log(-np.expm1(log_a - log_b))
    return np.asarray(np.where(b > a, logs, -np.inf), float)


# --------------------------------------------------------------------------------- the three pairs


def _remove(mixture: _Mixture, grid: Grid) -> DensePLDPmf:
    low, high = mixture.log_ratio(mixture.reach(grid.tail))
    points = _points(low, high, grid.interval)
    edges = mixture.inverse(points * grid.interval)
    upper, lower = mixture.cell_logs_and_noise(edges)
    return _connect(points, grid.interval, upper, lower)


def _add(mixture: _Mixture, grid: Grid) -> DensePLDPmf:
    noise = _unshifted(mixture)
    low, high = -mixture.log_ratio(noise.reach(grid.tail)[::-1])
    absent = float(mixture.probabilities[mixture.shifts == 0].sum())
    if absent > 0:  # the loss never exceeds -log P(no shift): no mass at infinity is needed
        high = min(high + grid.interval, -math.log(absent))
    points = _points(low, high, grid.interval)
    edges = mixture.inverse(-points[::-1] * grid.interval)
    lower, upper = mixture.cell_logs_and_noise(edges)
    return _connect(points, grid.interval, upper[::-1], lower[::-1])


def _replace(mixture: _Sampled, grid: Grid) -> DensePLDPmf:
    reach = mixture.reach(grid.tail)
    low, high = mixture.log_ratio(reach) - mixture.log_ratio(-reach)
    points = _points(low, high, grid.interval)
    edges = mixture.inverse_replace(points * grid.interval)
    upper, mirror = mixture.cell_logs(edges), mixture.cell_logs(-edges[::-1])
    return _connect(points, grid.interval, upper, mirror[::-1])


def _unshifted(mixture: _Mixture) -> _Mixture:
    return _Mixture(mixture.std, np.zeros(1), np.ones(1))


def _points(low: float, high: float, interval: float) -> Array:
    first, last = math.floor(low / interval), math.ceil(high / interval)
    if last - first >= MOST_POINTS:
        raise TooFine(f"{last - first} grid points at interval {interval}")
    return np.arange(first, max(last, first + 1) + 1, dtype=float)


def _connect(points: Array, interval: float, upper_logs: Array, lower_logs: Array) -> DensePLDPmf:
    """Split each cell's probability between its two end points, keeping it under both laws.

    The first and last of the given cells are the tails outside the grid.
    """
    below, above = math.exp(upper_logs[0]), math.exp(upper_logs[-1])
    upper_logs, lower_logs = upper_logs[1:-1], lower_logs[1:-1]
    upper = np.exp(upper_logs)
    with np.errstate(invalid="ignore", over="ignore"):
        ratio = np.exp(lower_logs + points[:-1] * interval - upper_logs)  # e^point / mean ratio
    ratio = np.where(upper > 0, np.clip(ratio, 0.0, 1.0), 1.0)
    share = (1 - ratio + _ROUNDING) / -math.expm1(-interval)
    to_right = upper * np.minimum(share, 1.0)
    probabilities = np.zeros(points.size)
    probabilities[:-1] += upper - to_right
    probabilities[1:] += to_right
    probabilities[0] += below
    return DensePLDPmf(interval, int(points[0]), probabilities, above, pessimistic_estimate=True)
