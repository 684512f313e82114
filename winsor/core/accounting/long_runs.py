"""Composition of many equal steps from what one step was found to be: `spent()` in milliseconds.

Two facts make a long run cheap. First, everything that costs time is about *one* application of a
step and is remembered: log E[exp(t L)] at tilts t on a fixed ladder, and the transform F of the
tilted step. Each further application only changes the exponent T. Secondly, |F|^T is negligible at
all but a few dozen frequencies when T is large, so delta is a short sum over those: with
P = F^T, n bins, w_k = 2 pi k / n and the weights exp(-t h m) (1 - exp(-a - h m)) of the m-th loss
beyond epsilon,

    delta(eps) = exp(K(t) - t eps') / n  sum_k P_k exp(i w_k first) (G_k(t) - e^-a G_k(t + 1)),
    G_k(s) = sum_{m < left} exp((i w_k - s h) m) = expm1(left (i w_k - s h)) / expm1(i w_k - s h).

The answer is a function of the history alone: what is remembered changes the time, not a digit.

Guarantee
---------
As for `composition.Tilted`: an upper bound for the composition of the given grid distributions.
A circular convolution can only add mass to a bin. Losses above the window are bounded by Chernoff
and added. Rounding is added, frequency by frequency: every output of a transform of n values that
sum to 1 is off by at most c log2(n) units, because each input reaches it through log2(n) roundings;
a T-th power multiplies that by T. Frequencies that are left out had |F|^T <= e^-80 and are added
at that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from winsor.core.accounting.composition import (
    MOST_BINS,
    OUTSIDE,
    STEEPEST,
    UNIT,
    ComposedStep,
    Composition,
    WindowTooWide,
    folded,
    scaled,
)

LONG = 16_384
"""From so many applications of one step on, a history is composed here."""

_DROPPED = 80.0  # frequencies are left out where |F|^T <= e^-_DROPPED
_RUNGS = 4  # tilts per factor of 2
_WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0)

Complex = NDArray[np.complex128]
Indices = NDArray[np.int64]


class RememberedStep:
    """One step's losses on the grid, and what was ever asked about one application of it."""

    def __init__(self, lowest: int, probabilities: NDArray[np.float64], infinite: float) -> None:
        self.step = ComposedStep(lowest, probabilities, infinite, 1)
        self.log_mgf: Callable[[float], float] = lru_cache(maxsize=1024)(self._log_mgf)
        self.moments: Callable[[float], tuple[float, float]] = lru_cache(256)(self._moments)
        self.leading = lru_cache(maxsize=8)(self._leading)
        self.others = lru_cache(maxsize=8)(self._others)

    def _log_mgf(self, tilt: float) -> float:
        return self.step.log_mean(tilt)

    def _moments(self, tilt: float) -> tuple[float, float]:
        """Mean and variance under the tilt, in grid units."""
        mean, spread = Composition([self.step], 1.0).moments(tilt)
        return mean, spread**2

    def _transform(self, tilt: float, bins: int) -> Complex:
        weights = folded(self.step.log_mgf(tilt)[1], bins)
        return np.asarray(fft.rfft(weights), np.complex128)

    def _leading(self, tilt: float, bins: int) -> tuple[Indices, Complex]:
        """Frequencies whose `LONG`-th power is not negligible, and the logarithms there."""
        transform = self._transform(tilt, bins)
        kept = np.flatnonzero(np.abs(transform) > math.exp(-_DROPPED / LONG))
        return kept, np.log(transform[kept])

    def _others(self, tilt: float, bins: int, kept: bytes) -> Complex:
        """The transform at the frequencies that another step left."""
        return self._transform(tilt, bins)[np.frombuffer(kept, np.int64)]


class LongComposition(Composition):
    """`Composition` of remembered steps, the first of which is applied at least `LONG` times."""

    def __init__(self, parts: Sequence[tuple[RememberedStep, int]], interval: float) -> None:
        parts = sorted(parts, key=lambda part: -part[1])
        steps = [ComposedStep(*_pmf(known.step), count) for known, count in parts]
        super().__init__(steps, interval)
        self.parts = parts

    def k(self, tilt: float) -> float:
        """Return the log-moment of the whole history at ``tilt``."""
        return sum(count * known.log_mgf(tilt * self.interval) for known, count in self.parts)

    def moments(self, tilt: float) -> tuple[float, float]:
        """Return mean and variance of the tilted loss of the whole history."""
        pairs = [(known.moments(tilt * self.interval), count) for known, count in self.parts]
        mean = sum(count * mean for (mean, _), count in pairs)
        variance = sum(count * variance for (_, variance), count in pairs)
        return self.interval * mean, self.interval * math.sqrt(variance)

    def tilted(self, tilt: float) -> FewFrequencies:
        """Return the tilted law of the whole history by its lowest frequencies."""
        return FewFrequencies(self, tilt)

    def _best(self, bound: Callable[[float], float]) -> tuple[float, float]:
        """The best rung of the ladder of tilts, going downhill from one over the spread."""
        _, spread = self.moments(0.0)
        steepest = math.floor(_RUNGS * math.log2(STEEPEST / self.interval))
        rung = min(steepest, -round(_RUNGS * math.log2(max(spread, self.interval / STEEPEST))))
        lowest = rung - 12 * _RUNGS
        known: dict[int, float] = {}

        def at(rung: int) -> float:
            if not lowest <= rung <= steepest:
                return math.inf
            if rung not in known:
                known[rung] = bound(_tilt(rung))
            return known[rung]

        step = 2 * _RUNGS
        while step:
            better = min((rung - step, rung + step), key=at)
            if at(better) < at(rung):
                rung = better
            else:
                step //= 2
        return _tilt(rung), at(rung)


def _pmf(step: ComposedStep) -> tuple[int, NDArray[np.float64], float]:
    return step.lowest, step.probabilities, step.infinite


def _tilt(rung: int) -> float:
    return float(2.0 ** (rung / _RUNGS))


class FewFrequencies:
    """A long composition under one tilt; answers for epsilons inside its window."""

    def __init__(self, composition: LongComposition, tilt: float) -> None:
        c = self.composition = composition
        self.tilt = tilt
        self._k = c.k(tilt)
        self.mean, self.spread = c.moments(tilt)
        low, high = self._window()
        self.low, self.high = max(low, c.bottom), min(high, c.top)
        size = self.high - self.low + 1
        if size > MOST_BINS:
            raise WindowTooWide(f"{size} grid points at interval {c.interval}")
        self._bins = 1 << max(4, (size - 1).bit_length())
        self._compose()
        # exp(K(t)) is off by a few units of rounding for each step, relative to itself.
        self._allowance = 1 + 1e-9 + 64 * UNIT * c.count

    def _compose(self) -> None:
        """The powers at the frequencies that matter, their sizes, and how far off they may be."""
        c, bins = self.composition, self._bins
        (leader, count), *rest = c.parts
        kept, logs = leader.leading(self.tilt * c.interval, bins)
        powers = count * logs
        seen = powers.real > -_DROPPED
        self._frequencies = kept[seen]
        products = np.exp(powers[seen])
        sizes = np.abs(products)
        for known, count in rest:
            others = known.others(self.tilt * c.interval, bins, kept.tobytes())[seen]
            products = products * others**count
        # Frequencies above 0 stand for two, but for the last one.
        double = np.where((self._frequencies == 0) | (2 * self._frequencies == bins), 1.0, 2.0)
        self._products = products * double / bins
        off = math.expm1(c.count * (24 * math.log2(2 * bins) + 64) * UNIT)
        self._errors = sizes * double / bins * (off + 64 * UNIT * (1 + self._frequencies))
        angles = np.asarray(2j * math.pi / bins * self._frequencies, np.complex128)
        self._slow = _Geometric(angles - self.tilt * c.interval)
        self._fast = _Geometric(angles - (self.tilt + 1) * c.interval)
        self._dropped = 2 * (1 + off) * math.exp(-_DROPPED)

    @property
    def lowest_epsilon(self) -> float:
        """`delta` is valid from here on."""
        return self.low * self.composition.interval

    def suits(self, epsilon: float) -> bool:
        """Return whether epsilon lies in the bulk, where `delta` is sharp."""
        return self.lowest_epsilon <= epsilon and abs(epsilon - self.mean) <= 2 * self.spread

    def _window(self) -> tuple[int, int]:
        """Grid points outside which the tilted loss has probability at most 2 e^-OUTSIDE.

        Chernoff as in `composition.Tilted`, with the spread rounded to a power of two, so that
        neighbouring histories ask about the same tilts.
        """
        c, t = self.composition, self.tilt
        unit = 2.0 ** round(math.log2(max(self.spread, c.interval)))
        high, low = math.inf, -math.inf
        for width in _WIDTHS:
            s = width / unit
            high = min(high, (c.k(t + s) - self._k + OUTSIDE) / s)
            low = max(low, (self._k - c.k(t - s) - OUTSIDE) / s)
        return math.floor(low / c.interval), math.ceil(high / c.interval)

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at ``epsilon`` >= `lowest_epsilon`."""
        c, t, h = self.composition, self.tilt, self.composition.interval
        if epsilon < self.lowest_epsilon:
            raise ValueError(f"epsilon must be at least {self.lowest_epsilon}. Got {epsilon}.")
        first = max(self.low, math.floor(epsilon / h) + 1)
        left = self.high - first + 1
        above = self._above_window(epsilon)
        if left <= 0:
            return min(1.0, c.infinite + above)
        ahead = first * h - epsilon
        turns = self._frequencies * ((first - c.bottom) % self._bins) % self._bins
        slow = self._slow.sum_of(left)
        fast = math.exp(-ahead) * self._fast.sum_of(left)
        phases = np.exp(2j * math.pi / self._bins * turns)
        value = float(((self._products * phases) * (slow - fast)).real.sum())
        noise = float((self._errors * (np.abs(slow) + np.abs(fast))).sum())
        weight = float(slow[0].real)  # at frequency 0: the sum of exp(-t h m) itself
        finite = max(0.0, value) + noise + self._dropped * weight
        finite = scaled(finite * self._allowance, self._k - t * (epsilon + ahead))
        return min(1.0, c.infinite + finite + above)

    def _above_window(self, epsilon: float) -> float:
        """Chernoff's bound on losses above the window, each weighing at most exp(-t (l - eps))."""
        c, t = self.composition, self.tilt
        if self.high >= c.top:
            return 0.0
        return scaled(1.0, self._k - OUTSIDE - t * max(epsilon, self.high * c.interval))


class _Geometric:
    """Sums of exp(log m) over m < terms, for many logs; none is 0, for a tilt is positive."""

    def __init__(self, logs: NDArray[np.complexfloating]) -> None:
        self.logs = logs
        self.ratios = np.expm1(logs)

    def sum_of(self, terms: int) -> Complex:
        return np.asarray(np.expm1(self.logs * terms) / self.ratios, np.complex128)
