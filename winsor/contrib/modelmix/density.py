"""Noise plus an independent uniform: the coordinate noise of ModelMix, to full relative precision.

    X = Z + U,   U ~ Uniform[-w/2, w/2],   Z symmetric with a log-concave density and scale 1,
    f(x) = (Q(x - w/2) - Q(x + w/2)) / w,  Q(t) = P(Z > t)

ModelMix moves a coordinate to a uniform point between two past iterates and then takes a noisy
gradient step; seen in gradient units (divided by the learning rate) the released coordinate is the
gradient plus such an X (Xiao et al. 2022, Appendix C, eq. 36).

f is symmetric, and log-concave because both factors of the convolution are. The likelihood ratio
f(x - v)/f(x) of a shift v > 0 is therefore nondecreasing in x; everything certified about the
mixture rests on that, on the values of f at points, and on the exact mass of cells. All three are
computed here in logarithms, so that a tail forty standard deviations out keeps its digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """A symmetric log-concave noise of scale 1, through two functions of t >= 0 (or any t).

    ``log_tail`` is log Q(t) for every t; ``log_excess`` is log R(t), R(t) = E(Z - t)+, for t >= 0.
    """

    name: str
    log_tail: Callable[[Array], Array]
    log_excess: Callable[[Array], Array]


def _gaussian_log_tail(t: Array) -> Array:
    return np.asarray(special.log_ndtr(-t))


def _gaussian_log_excess(t: Array) -> Array:
    # R(t) = phi(t) (1 - t M(t)) with Mills' ratio M; loses about t^2 in relative precision.
    mills = math.sqrt(math.pi / 2) * special.erfcx(t / math.sqrt(2))
    return np.asarray(-0.5 * t * t - 0.5 * math.log(2 * math.pi) + np.log1p(-t * mills))


def _laplace_log_tail(t: Array) -> Array:
    positive = -np.maximum(t, 0) - math.log(2)
    return np.where(t >= 0, positive, np.log1p(-0.5 * np.exp(np.minimum(t, 0))))


def _laplace_log_excess(t: Array) -> Array:
    return -t - math.log(2)


GAUSSIAN = Noise("gaussian", _gaussian_log_tail, _gaussian_log_excess)
LAPLACE = Noise("laplace", _laplace_log_tail, _laplace_log_excess)


def _log_difference(high: Array, low: Array) -> Array:
    """log(e^high - e^low) for high >= low; -inf where they are equal."""
    with np.errstate(divide="ignore"):
        return np.asarray(high + np.log(-np.expm1(np.minimum(low - high, 0.0))))


def _log_tail_integral(noise: Noise, left: Array, right: Array) -> Array:
    """log of the integral of Q over [left, right], without cancellation far from zero."""
    result = np.empty_like(left)
    above, below = left >= 0, right <= 0
    across = ~(above | below)
    a, b = left[above], right[above]
    result[above] = _log_difference(noise.log_excess(a), noise.log_excess(b))
    # Q(t) = 1 - Q(-t): below zero the integral is the length minus a mirrored integral.
    a, b = left[below], right[below]
    mirrored = np.exp(_log_difference(noise.log_excess(-b), noise.log_excess(-a)))
    result[below] = np.log((b - a) - mirrored)
    a, b = left[across], right[across]
    inner = -a + np.exp(noise.log_excess(-a)) - np.exp(noise.log_excess(b))
    result[across] = np.log(inner)
    return result


@dataclass(frozen=True)
class Mixed:
    """The law of noise of scale 1 plus a uniform of total width ``width`` > 0."""

    noise: Noise
    width: float

    def log_density(self, x: Array) -> Array:
        """Return log f(x)."""
        far = np.abs(x) + self.width / 2
        near = np.abs(x) - self.width / 2
        tails = _log_difference(self.noise.log_tail(near), self.noise.log_tail(far))
        return tails - math.log(self.width)

    def log_cells(self, x: Array) -> Array:
        """Return log P(x_i < X < x_(i+1)) for increasing nodes x; one fewer than nodes."""
        left, right = x[:-1], x[1:]
        mirror = left + right < 0
        left, right = np.where(mirror, -right, left), np.where(mirror, -left, right)
        half = self.width / 2
        near = _log_tail_integral(self.noise, left - half, right - half)
        far = _log_tail_integral(self.noise, left + half, right + half)
        return _log_difference(near, far) - math.log(self.width)

    def log_upper_tail(self, x: float) -> float:
        """Return log P(X > x) for x >= width/2."""
        half = self.width / 2
        near = self.noise.log_excess(np.array([x - half]))
        far = self.noise.log_excess(np.array([x + half]))
        return float(_log_difference(near, far)[0]) - math.log(self.width)

    def decay(self, x: Array) -> Array:
        """Return -d/dx log f(x) under Gaussian noise: nondecreasing, 0 at 0, slope at most 1."""
        half = self.width / 2
        size = np.abs(x)
        log_phi = -0.5 * (size - half) ** 2 - 0.5 * math.log(2 * math.pi)
        # phi(near) - phi(far) = phi(near) (1 - exp(-|x| w))
        log_gap = _log_difference(log_phi, log_phi - size * self.width)
        return np.sign(x) * np.exp(log_gap - self.log_density(x) - math.log(self.width))
