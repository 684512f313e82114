"""Composition of privacy loss distributions by a tilted Fourier transform.

The loss of T_j applications of step j, all j, is a sum of independent losses on a common grid:
its law is a convolution. A plain Fourier transform leaves rounding noise of 1e-16 to 1e-11 of the
*whole* mass in every tail, and delta = 1e-10 lives in a tail. So tilt first: with

    K(t) = sum_j T_j log E[exp(t L_j)],        p~_j(l) = p_j(l) exp(t l) / E[exp(t L_j)],

the tilted convolution has its bulk where t puts it (mean K'(t), variance K''(t)). Choose t so that
this is the epsilon sought; then

    delta(eps) = exp(K(t) - t eps) sum_{l > eps} p~(l) exp(-t (l - eps)) (1 - exp(-(l - eps)))

is accurate relative to itself however small it is, and a window of a few tilted standard
deviations suffices, whatever the number of steps. (The tilt is the saddle point of the Renyi
bound at order 1 + t, which is also the bracket from which the search for epsilon starts.)

Guarantee
---------
`delta` is an upper bound for the composition of the given grid distributions. Losses above the
window are bounded by Chernoff and added; those that wrap around from below the window can only add
mass; the rounding of the transforms is bounded and added too, for every loss beyond epsilon. Under
an unsuitable tilt these allowances make the answer useless, never too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import fft

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]

MOST_BINS = 1 << 22
"""Largest transform. About 0.2 GB and a second."""

UNIT = 2.0**-53
STEEPEST = 50.0  # tilt times interval: weights of neighbouring losses differ by at most e^50
OUTSIDE = 40.0  # -log of the tilted probability allowed outside the window
_SECTION = 0.5 * (3.0 - math.sqrt(5.0))
_FLOAT = math.sqrt(2.2e-16)


class AnsweringDelta(Protocol):
    """A composition under one tilt: upper bounds on delta for the epsilons of its window."""

    @property
    def lowest_epsilon(self) -> float:
        """Smallest epsilon for which `delta` can answer."""

    def suits(self, epsilon: float) -> bool:
        """Return whether the answer at ``epsilon`` is precise enough."""

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on delta at ``epsilon``."""


class WindowTooWide(Exception):
    """The tilted bulk needs more than `MOST_BINS` grid points at this interval."""


@dataclass(frozen=True)
class ComposedStep:
    """One step's losses on the grid: probabilities from index ``lowest``, and mass at infinity."""

    lowest: int
    probabilities: Array
    infinite: float
    count: int

    @cached_property
    def points(self) -> Array:
        """Losses of the grid, ascending."""
        return np.arange(self.lowest, self.lowest + self.probabilities.size, dtype=float)

    def log_mgf(self, tilt: float) -> tuple[float, Array]:
        """log E[e^(tilt l)] in grid units, and the tilted probabilities."""
        log_total, weights, total = self._tilted(tilt)
        weights /= total
        return log_total, weights

    def log_mean(self, tilt: float) -> float:
        """The first half of `log_mgf`."""
        return self._tilted(tilt)[0]

    def _tilted(self, tilt: float) -> tuple[float, Array, float]:
        weights = tilt * self.points
        peak = float(weights[-1] if tilt > 0 else weights[0])
        weights -= peak
        np.exp(weights, out=weights)
        weights *= self.probabilities
        total = float(weights.sum())
        return peak + math.log(total), weights, total


class Composition:
    """The sum of the losses of ``steps``, on a grid of step ``interval``."""

    def __init__(self, steps: Sequence[ComposedStep], interval: float) -> None:
        self.steps = tuple(steps)
        self.interval = interval
        self.count = sum(step.count for step in steps)
        self.infinite = -math.expm1(sum(s.count * math.log1p(-s.infinite) for s in steps))
        self.bottom = sum(s.count * s.lowest for s in steps)
        self.top = sum(s.count * (s.lowest + s.probabilities.size - 1) for s in steps)
        self._k: dict[float, float] = {}

    def k(self, tilt: float) -> float:
        """K(tilt)."""
        if tilt not in self._k:
            self._k[tilt] = sum(s.count * s.log_mean(tilt * self.interval) for s in self.steps)
        return self._k[tilt]

    def _upper_k(self, tilt: float) -> float:
        """K(tilt) and its rounding: some units for each step, and for the size of K itself."""
        k = self.k(tilt)
        return k + 64 * UNIT * (self.count + abs(k))

    def moments(self, tilt: float) -> tuple[float, float]:
        """Mean and standard deviation of the loss under the tilt: K' and sqrt(K'')."""
        mean = variance = 0.0
        for step in self.steps:
            weights = step.log_mgf(tilt * self.interval)[1]
            centre = _dot(weights, step.points)
            mean += step.count * centre
            variance += step.count * _dot(weights, (step.points - centre) ** 2)
        return self.interval * mean, self.interval * math.sqrt(variance)

    def tilted(self, tilt: float) -> AnsweringDelta:
        """The composition convolved under a tilt."""
        return Tilted(self, tilt)

    def renyi_epsilon(self, tilt: float, delta: float) -> float:
        """Bound on epsilon at ``delta`` from the Renyi divergence of order 1 + tilt."""
        return (self._upper_k(tilt) + _log_factor(tilt) - math.log(delta)) / tilt

    def tilt_for_delta(self, delta: float) -> tuple[float, float]:
        """The tilt with the smallest Renyi bound on epsilon at ``delta``, and that bound."""
        return self._best(lambda t: self.renyi_epsilon(t, delta))

    def tilt_for_epsilon(self, epsilon: float) -> tuple[float, float]:
        """The tilt with the smallest Renyi bound on log delta at ``epsilon``, and that bound."""
        return self._best(lambda t: self._upper_k(t) + _log_factor(t) - t * epsilon)

    def _best(self, bound: Callable[[float], float]) -> tuple[float, float]:
        # The best tilt is within a few e-folds of one over the spread.
        _, spread = self.moments(0.0)
        centre = -math.log(max(spread, self.interval / STEEPEST))
        steepest = math.log(STEEPEST / self.interval)
        log_tilt, value = minimum(
            lambda log_tilt: bound(math.exp(log_tilt)), centre - 8, min(centre + 8, steepest), 0.02
        )
        return math.exp(log_tilt), value


def _log_factor(tilt: float) -> float:
    """log c with (1 - e^-x)+ <= c e^(tilt x) for all x, attained: the conversion from Renyi."""
    return tilt * math.log(tilt) - (1 + tilt) * math.log1p(tilt)


class Tilted:
    """A composition convolved under one tilt; answers for epsilons inside its window."""

    def __init__(self, composition: Composition, tilt: float) -> None:
        self.composition = composition
        self.tilt = tilt
        self._k = composition.k(tilt)
        low, high = self._window()
        self.low = max(low, composition.bottom)
        self.high = min(high, composition.top)
        size = self.high - self.low + 1
        if size > MOST_BINS:
            raise WindowTooWide(f"{size} grid points at interval {composition.interval}")
        self._probabilities, self._noise = self._convolve(size)
        offsets = composition.interval * np.arange(size)
        self._falling = np.exp(-tilt * offsets)
        self._falling_faster = np.exp(-(tilt + 1) * offsets)
        self._sums = np.cumsum(self._falling)
        self._faster_sums = np.cumsum(self._falling_faster)
        # exp(K(t)) is off by a few units of rounding for each step, relative to itself.
        self._allowance = 1 + 1e-9 + 64 * UNIT * composition.count

    @property
    def lowest_epsilon(self) -> float:
        """`delta` is valid from here on."""
        return self.low * self.composition.interval

    def suits(self, epsilon: float) -> bool:
        """Return whether epsilon lies in the bulk, where `delta` is sharp."""
        return self.lowest_epsilon <= epsilon and abs(epsilon - self.mean) <= 2 * self.spread

    def _window(self) -> tuple[int, int]:
        """Grid points outside which the tilted loss has probability at most 2 e^-OUTSIDE.

        Chernoff: P~(L >= u) <= exp(K(t + s) - K(t) - s u), for every s > 0, and alike below.
        """
        c, t = self.composition, self.tilt
        mean, spread = c.moments(t)
        spread = max(spread, c.interval)
        self.mean, self.spread = mean, spread
        high, low = math.inf, -math.inf
        for width in (0.25, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0):
            s = width / spread
            high = min(high, (c.k(t + s) - self._k + OUTSIDE) / s)
            low = max(low, (self._k - c.k(t - s) - OUTSIDE) / s)
        return math.floor(low / c.interval), math.ceil(high / c.interval)

    def _convolve(self, size: int) -> tuple[Array, float]:
        """Probabilities of the window's points under the tilt, and a bound on their rounding."""
        c = self.composition
        n = int(fft.next_fast_len(size, real=True))
        product = np.ones(n // 2 + 1, dtype=np.complex128)
        norms: dict[int, float] = {}  # sums, over steps of equal count, of count * |p~_j|_2
        for step in c.steps:
            weights = folded(step.log_mgf(self.tilt * c.interval)[1], n)
            product *= _power(np.asarray(fft.rfft(weights), np.complex128), step.count)
            norm = step.count * math.sqrt(_dot(weights, weights))
            norms[step.count] = norms.get(step.count, 0.0) + norm
        sums = fft.irfft(product, n)
        # Index i of the circular result is the loss bottom + i, modulo n.
        window = np.roll(sums, -((self.low - c.bottom) % n))[:size]
        return np.maximum(window, 0.0), _rounding(np.abs(product), norms, c.count)

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at ``epsilon`` >= `lowest_epsilon`."""
        c, t = self.composition, self.tilt
        if epsilon < self.lowest_epsilon:
            raise ValueError(f"epsilon must be at least {self.lowest_epsilon}. Got {epsilon}.")
        first = max(0, math.floor(epsilon / c.interval) + 1 - self.low)
        left = self._probabilities.size - first
        if left <= 0:
            return min(1.0, c.infinite + self._above_window(epsilon))
        # The first loss beyond epsilon has weight 1, so that not all weights can underflow; the
        # k-th has exp(-t h k) (1 - exp(-ahead - h k)).
        ahead = (first + self.low) * c.interval - epsilon
        mass = _dot(self._probabilities[first:], self._falling[:left])
        less = _dot(self._probabilities[first:], self._falling_faster[:left])
        weight = self._sums[left - 1] - math.exp(-ahead) * self._faster_sums[left - 1]
        rounding = 2 * (left + 8) * UNIT * mass  # of the two sums, which nearly cancel
        finite = mass - math.exp(-ahead) * less + rounding + self._noise * max(0.0, float(weight))
        finite = scaled(finite * self._allowance, self._k - t * (epsilon + ahead))
        return min(1.0, c.infinite + finite + self._above_window(epsilon))

    def _above_window(self, epsilon: float) -> float:
        """Chernoff's bound on losses above the window, each weighing at most exp(-t (l - eps))."""
        c, t = self.composition, self.tilt
        if self.high >= c.top:
            return 0.0
        return scaled(1.0, self._k - OUTSIDE - t * max(epsilon, self.high * c.interval))


_DROPPED = 80.0
"""Powers below e^-80 are taken for zero. They would move a bin by less than that."""


def _power(transform: Complex, count: int) -> Complex:
    """transform^count, where most entries of a high power are as good as zero."""
    if count < 64:
        return np.asarray(transform**count, np.complex128)
    kept = np.flatnonzero(np.abs(transform) > math.exp(-_DROPPED / count))
    powers = np.zeros_like(transform)
    powers[kept] = transform[kept] ** count
    return powers


def _rounding(magnitudes: Array, norms: dict[int, float], count: int) -> float:
    """Bound on the error of one probability that comes back from the product of transforms.

    With u one unit of rounding and n bins: a transform errs by at most c u log(n) sqrt(n) |p|_2 in
    Euclidean norm. An error in the transform F_j is multiplied by T_j times the product without
    one of the factors F_j, at most |product|^(1 - 1/T_j) because no factor exceeds 1; by
    Cauchy-Schwarz it moves a bin by T_j c u log(n) |p_j|_2 times the root mean square of that.
    Powers and products err by a few u for each factor, and by e^-80 where they were dropped. Means
    over half of the spectrum are at least half of those over all of it; c = 8 covers that too.
    """
    scale = 8 * UNIT * math.log2(2 * magnitudes.size + 2)
    squares = magnitudes**2
    noise = scale * math.sqrt(float(squares.mean())) + 32 * UNIT * count * float(magnitudes.mean())
    for repeats, norm in norms.items():
        # A dropped entry is below e^-80, and so is its power with one factor less, to a root.
        rest = np.full_like(squares, math.exp(-2 * _DROPPED * (1 - 1 / repeats)))
        seen = np.flatnonzero(squares)
        rest[seen] = squares[seen] ** (1 - 1 / repeats)
        noise += scale * norm * math.sqrt(float(rest.mean()))
    return noise + math.exp(-_DROPPED)


def _dot(a: Array, b: Array) -> float:
    """Inner product without BLAS, whose threads cost more than they save at these sizes."""
    return float(np.einsum("i,i->", a, b))


def scaled(value: float, log_scale: float) -> float:
    """value * e^log_scale, where the product is a probability but the factor may overflow."""
    return math.exp(min(0.0, math.log(value) + log_scale)) if value > 0 else 0.0


def folded(values: Array, n: int) -> Array:
    """Sum of the values at equal index modulo n."""
    if values.size <= n:
        return np.pad(values, (0, n - values.size))
    rows = -(-values.size // n)
    return np.asarray(np.pad(values, (0, rows * n - values.size)).reshape(rows, n).sum(0), float)


def minimum(
    f: Callable[[float], float], low: float, high: float, tolerance: float
) -> tuple[float, float]:
    """(x, f(x)) with x within about ``tolerance`` of a local minimum in [low, high].

    Brent's method (Algorithms for minimization without derivatives, 1973, chapter 5), by parabolas
    and golden sections. It visits the same points, to the last digit, as
    `scipy.optimize.minimize_scalar` with method "bounded" (a test compares them), at a tenth of the
    price: an account minimises a few hundred times, and each evaluation takes less than that
    function's own arithmetic.
    """
    best = second = third = low + _SECTION * (high - low)
    at_best = at_second = at_third = f(best)
    move = previous = 0.0
    for _ in range(500):
        middle = 0.5 * (low + high)
        least = _FLOAT * abs(best) + tolerance / 3.0
        if abs(best - middle) <= 2.0 * least - 0.5 * (high - low):
            break
        found = None
        if abs(previous) > least:
            points = (best, second, third), (at_best, at_second, at_third)
            found = _parabola(*points, limit=previous, low=low, high=high)
            previous = move
        if found is None:
            previous = (low if best >= middle else high) - best
            move = _SECTION * previous
        else:
            move, x = found, best + found
            if x - low < 2.0 * least or high - x < 2.0 * least:
                move = math.copysign(least, middle - best) if middle != best else least
        x = best + (abs(move) if abs(move) > least else least) * (-1.0 if move < 0 else 1.0)
        value = f(x)
        if value <= at_best:
            low, high = (best, high) if x >= best else (low, best)
            third, at_third, second, at_second = second, at_second, best, at_best
            best, at_best = x, value
            continue
        low, high = (x, high) if x < best else (low, x)
        if value <= at_second or second == best:
            third, at_third, second, at_second = second, at_second, x, value
        elif value <= at_third or third in (best, second):
            third, at_third = x, value
    return best, at_best


def _parabola(
    x: tuple[float, float, float],
    y: tuple[float, float, float],
    *,
    limit: float,
    low: float,
    high: float,
) -> float | None:
    """The way from the first point to the vertex of the parabola through all three; None if it
    leaves the interval or is not shorter than half of ``limit``."""
    r = (x[0] - x[1]) * (y[0] - y[2])
    q = (x[0] - x[2]) * (y[0] - y[1])
    p = (x[0] - x[2]) * q - (x[0] - x[1]) * r
    q = 2.0 * (q - r)
    if q > 0.0:
        p = -p
    q = abs(q)
    if abs(p) < abs(0.5 * q * limit) and q * (low - x[0]) < p < q * (high - x[0]):
        return p / q
    return None
