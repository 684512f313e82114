"""Epsilon and delta of a history from privacy loss distributions.

Algorithm. Merge equal events; all Gaussian releases together are one Gaussian release. If nothing
else is left, use its closed form. Otherwise put every event's loss on a common grid
(pessimistically), compose under a tilt, and halve the interval until the answer stands still.

The interval follows the spread of one step under the tilt instead of being a fixed 1e-4: the
relative error of connecting the dots is about (interval / spread)^2 / 12, so losses of a millionth
and losses of ten thousand are equally well resolved with a few dozen points per spread.

Guarantee
---------
Every value returned is an upper bound for the history under the relation, at any interval; the
refinement only makes it smaller. Infinity means that this accountant cannot say.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from numpy.typing import NDArray
from scipy import optimize

from winsor.core.accounting import gaussian
from winsor.core.accounting.composition import (
    AnsweringDelta,
    ComposedStep,
    Composition,
    WindowTooWide,
)
from winsor.core.accounting.long_runs import LONG, LongComposition, RememberedStep
from winsor.core.accounting.privacy_losses import Pmf, TooFine, directions
from winsor.core.contract import Neighbouring, UnsupportedEvent
from winsor.core.events.registry import Grid, History, entry_of, flatten

Array = NDArray[np.float64]

RELATIVE_TOLERANCE = 1e-3
"""Refinement stops when halving the interval lowers the answer by less than this share."""

_ABSOLUTE_TOLERANCE = 1e-8
_FIRST_ERROR = 1.3e-3  # of epsilon, at the first interval that is solved; each halving divides by 4
_COARSEST, _FINEST = 2.0**40, 2.0**-60
_SMALLEST_DELTA = 1e-20  # below, deltas are upper bounds of this order only
_KEPT = 4  # compositions under one tilt that are kept for epsilons nearby; one may take 200 MB
_NEGLIGIBLE = 1e-6  # share of delta that the tails of all steps together may take


def epsilon(history: History, delta: float, relation: Neighbouring) -> float:
    """Upper bound on the smallest epsilon of the history at ``delta``."""
    parts = _Parts.of(history, relation)
    if not parts.others:
        return gaussian.epsilon(parts.mu, delta)
    return _resolved_epsilon(_Grids(parts, _NEGLIGIBLE * delta), delta)[0]


def epsilon_and_profile(
    history: History, delta: float, relation: Neighbouring
) -> tuple[float, Callable[[Array], Array]]:
    """`epsilon`, and upper bounds on delta at other epsilons from what was composed for it."""
    parts = _Parts.of(history, relation)
    if not parts.others:
        profile = lambda at: np.array([gaussian.delta(parts.mu, float(e)) for e in at])  # noqa: E731
        return gaussian.epsilon(parts.mu, delta), profile
    grids = _Grids(parts, _NEGLIGIBLE * delta)
    found, interval = _resolved_epsilon(grids, delta)
    return found, _Profile(grids, interval).deltas


def delta(history: History, epsilon: float, relation: Neighbouring) -> float:
    """Upper bound on the smallest delta of the history at ``epsilon``."""
    parts = _Parts.of(history, relation)
    if not parts.others:
        return gaussian.delta(parts.mu, epsilon)
    return _resolved_delta(_Grids(parts, _NEGLIGIBLE * _SMALLEST_DELTA), epsilon)[0]


def deltas(history: History, epsilons: Array, relation: Neighbouring) -> Array:
    """Upper bounds on delta at many epsilons, on the grid that suits a delta of 1e-5."""
    parts = _Parts.of(history, relation)
    if not parts.others:
        return np.array([gaussian.delta(parts.mu, float(e)) for e in epsilons])
    grids = _Grids(parts, _NEGLIGIBLE * _SMALLEST_DELTA)
    middle = epsilon(history, 1e-5, relation)
    interval = _resolved_delta(grids, middle if math.isfinite(middle) else 0.0)[1]
    return _Profile(grids, interval).deltas(epsilons)


def _resolved_epsilon(grids: _Grids, delta: float) -> tuple[float, float]:
    """Epsilon at ``delta``, and the interval at which it stood still."""
    search = _Search(delta)
    first = grids.first_interval(search.wanted_interval)
    solve = lambda h: search.epsilon(grids.at(h))  # noqa: E731
    return _refined(solve, first, RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE)


def _resolved_delta(grids: _Grids, epsilon: float) -> tuple[float, float]:
    """Delta at ``epsilon``, and the interval at which it stood still."""

    def wanted(compositions: Sequence[Composition]) -> float:
        """Delta moves by ``tilt`` times the change of epsilon, relative to itself.

        Where the tilt is nearly 0 the bound is trivial and says nothing about delta; then resolve
        the losses themselves.
        """
        tilts_and_bounds = [(*c.tilt_for_epsilon(epsilon), c) for c in compositions]
        tilt, _, worst = max(tilts_and_bounds, key=lambda item: item[1])
        spread = worst.moments(0.0)[1] / math.sqrt(worst.count)
        return min(_interval_for(tilt, 10 / tilt, worst.count), spread / 8)

    first = grids.first_interval(wanted)
    at = np.array([epsilon])
    solve = lambda h: max(float(_OneWay(c).deltas(at)[0]) for c in grids.at(h))  # noqa: E731
    # Delta moves by about ten times the relative change of epsilon.
    return _refined(solve, first, 10 * RELATIVE_TOLERANCE, 0.0)


# -------------------------------------------------------------------------------- what to compose


@dataclass(frozen=True)
class _Parts:
    """A history with its Gaussian releases merged into one."""

    mu: float
    others: tuple[tuple[DpEvent, int], ...]
    relation: Neighbouring

    @staticmethod
    def of(history: History, relation: Neighbouring) -> _Parts:
        gaussians: list[tuple[float, int]] = []
        others: list[tuple[DpEvent, int]] = []
        for event, count in flatten(history):
            multiplier = _plain_multiplier(event, relation)
            if multiplier is not None:
                gaussians.append((multiplier, count))
            elif not (isinstance(event, PoissonSampledDpEvent) and event.sampling_probability == 0):
                others.append((event, count))
        mu = gaussian.total_mu(gaussians)
        return _Parts(mu, () if math.isinf(mu) else tuple(others), relation)


def _plain_multiplier(event: DpEvent, relation: Neighbouring) -> float | None:
    """The multiplier of an event that is plain Gaussian noise, if it is that."""
    if isinstance(event, GaussianDpEvent):
        return float(event.noise_multiplier)
    if isinstance(event, PoissonSampledDpEvent) and event.sampling_probability == 1:
        inner = event.event
        if isinstance(inner, GaussianDpEvent):
            shift = 2 if relation is Neighbouring.REPLACE_ONE else 1
            return float(inner.noise_multiplier) / shift
    return None


# ------------------------------------------------------------------------------------- refinement


class _Grids:
    """The compositions of a history, one for each direction of the relation, at any interval."""

    def __init__(self, parts: _Parts, negligible: float) -> None:
        self.relation = parts.relation
        self.parts = list(parts.others)
        if parts.mu > 0:
            self.parts.append((GaussianDpEvent(1 / parts.mu), 1))
        tail = negligible / sum(count for _, count in self.parts)
        # Round, so that similar runs share grids.
        self.tail = 10.0 ** math.floor(math.log10(max(tail, 1e-300)))

    def at(self, interval: float) -> list[Composition]:
        grid = Grid(interval, self.tail)
        if max(count for _, count in self.parts) >= LONG:
            return self._long_at(grid)
        known = [(_losses(event, self.relation, grid), count) for event, count in self.parts]
        ways = max(len(pmfs) for pmfs, _ in known)
        return [
            Composition(
                [ComposedStep(*pmfs[min(way, len(pmfs) - 1)], n) for pmfs, n in known], interval
            )
            for way in range(ways)
        ]

    def _long_at(self, grid: Grid) -> list[Composition]:
        known = [(_remembered(event, self.relation, grid), count) for event, count in self.parts]
        ways = max(len(steps) for steps, _ in known)
        return [
            LongComposition(
                [(steps[min(way, len(steps) - 1)], n) for steps, n in known], grid.interval
            )
            for way in range(ways)
        ]

    def first_interval(self, wanted: Callable[[Sequence[Composition]], float]) -> float:
        """The largest power of two that is as fine as ``wanted`` for the compositions on it.

        Walk down from huge losses, not too fast: on grids that are far too coarse what is wanted
        is all artefact. The grids on the way have a handful of points.
        """
        interval, refused = 256.0, _FINEST
        while interval < _COARSEST:
            try:
                fine = max(wanted(self.at(interval)), _FINEST)
            except TooFine:
                refused, interval = interval, interval * 16
                continue
            if fine >= interval:
                break
            finer = interval / min(8.0, 2.0 ** math.ceil(math.log2(interval / fine)))
            if finer <= refused:
                break
            interval = finer
        return interval


def _interval_for(tilt: float, size: float, count: int) -> float:
    """The interval at which ``count`` steps overstate an epsilon of ``size`` by `_FIRST_ERROR`.

    Connecting the dots adds at most interval^2/6 to a loss's variance on average, hence at most
    count (tilt + 1) interval^2 / 12 to epsilon, and never more than count * interval.
    """
    allowed = _FIRST_ERROR * size / count
    return max(allowed, math.sqrt(12 * allowed / (tilt + 1)))


def _losses(event: DpEvent, relation: Neighbouring, grid: Grid) -> tuple[Pmf, ...]:
    try:
        return _cached_losses(event, relation, grid)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _fresh_losses(event, relation, grid)  # an event that holds lists


def _remembered(event: DpEvent, relation: Neighbouring, grid: Grid) -> tuple[RememberedStep, ...]:
    try:
        return _cached_steps(event, relation, grid)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _fresh_steps(event, relation, grid)


def _fresh_steps(event: DpEvent, relation: Neighbouring, grid: Grid) -> tuple[RememberedStep, ...]:
    return tuple(RememberedStep(*pmf) for pmf in _fresh_losses(event, relation, grid))


def _fresh_losses(event: DpEvent, relation: Neighbouring, grid: Grid) -> tuple[Pmf, ...]:
    entry = entry_of(event)
    if entry.pld is None:
        raise UnsupportedEvent(
            f"event must have a privacy loss distribution. Got {event!r} ({entry.name}) instead. "
            "Account for it with winsor.core.accounting.spending, which finds one that can."
        )
    return directions(entry.pld(event, relation, grid))


_cached_losses = lru_cache(maxsize=16)(_fresh_losses)  # a grid may take megabytes
_cached_steps = lru_cache(maxsize=32)(_fresh_steps)  # two or three runs, each on ten or so grids


def _refined(
    solve: Callable[[float], float], interval: float, relative: float, absolute: float
) -> tuple[float, float]:
    """Solve at ever finer intervals until the answer stands still or the grid is full.

    Returns the answer and the finest interval that was solved.
    """
    value = math.inf
    while interval < _COARSEST:
        try:
            value = solve(interval)
            break
        except (TooFine, WindowTooWide):
            interval *= 2
    while math.isfinite(value):
        try:
            finer = solve(interval / 2)
        except (TooFine, WindowTooWide):
            break
        gain = value - finer
        value, interval = min(value, finer), interval / 2
        if gain <= max(relative * value, absolute):
            break
    return value, interval


# ----------------------------------------------------------------------------- one grid, one answer


class _Search:
    """Finds epsilon at ``delta`` on one grid after another, remembering the tilts."""

    def __init__(self, delta: float) -> None:
        self.delta = delta
        self.tilts: dict[int, float] = {}

    def epsilon(self, compositions: Sequence[Composition]) -> float:
        """The larger epsilon of the directions. One with a lower Renyi bound is not composed."""
        if any(c.infinite >= self.delta for c in compositions):
            return math.inf
        bounds = [self._bound(way, c) for way, c in enumerate(compositions)]
        worst = 0.0
        for way in sorted(range(len(bounds)), key=lambda way: -bounds[way]):
            if bounds[way] > worst:
                composition, tilt = compositions[way], self.tilts[way]
                found = _epsilon_between(composition, self.delta, tilt, bounds[way])
                self.tilts[way] = composition.tilt_for_epsilon(found)[0]
                worst = max(worst, found)
        return worst

    def wanted_interval(self, compositions: Sequence[Composition]) -> float:
        """A grid to start from, fine enough for the direction with the largest Renyi bound."""
        finite = self.delta - max(c.infinite for c in compositions)
        if finite <= 0:
            return math.inf
        tilts_and_bounds = [c.tilt_for_delta(finite) for c in compositions]
        tilt, bound = max(tilts_and_bounds, key=lambda pair: pair[1])
        return _interval_for(tilt, bound, compositions[0].count) if bound > 0 else math.inf

    def _bound(self, way: int, composition: Composition) -> float:
        """The Renyi bound of a direction, at the tilt that suited the previous grid."""
        finite = self.delta - composition.infinite
        if way not in self.tilts:
            self.tilts[way] = composition.tilt_for_delta(finite)[0]
        bound = composition.renyi_epsilon(self.tilts[way], finite)
        return max(0.0, bound * (1 + 1e-9) + 1e-12)


def _epsilon_between(composition: Composition, delta: float, tilt: float, bound: float) -> float:
    """Smallest epsilon in [0, bound] with delta(epsilon) <= delta; ``bound`` is known to do."""
    tilted = composition.tilted(tilt)
    low = max(0.0, tilted.lowest_epsilon)
    while low < bound and tilted.delta(low) <= delta:
        if low == 0:
            return 0.0
        # The answer lies below the window: tilt less. Half the tilt is where the bulk starts to
        # move; the loop ends because at tilt 0 the window holds all but e^-40 of the losses.
        bound, tilt = low, tilt / 2
        tilted = composition.tilted(tilt)
        low = max(0.0, min(tilted.lowest_epsilon, bound))
    if not low < bound or tilted.delta(bound) > delta:
        return bound
    excess = lambda e: math.log(max(tilted.delta(e) / delta, 1e-30))  # noqa: E731
    root = float(optimize.brentq(excess, low, bound, xtol=1e-11, rtol=1e-7))
    for step in (1e-7, 1e-6, 1e-5):
        outward = min(bound, root * (1 + step) + 1e-11)
        if tilted.delta(outward) <= delta:
            return outward
    return bound


class _Profile:
    """Deltas on one grid, the larger of the directions. What was composed for an answer is kept."""

    def __init__(self, grids: _Grids, interval: float) -> None:
        self._grids, self._interval = grids, interval
        self._ways: list[_OneWay] = []

    def deltas(self, epsilons: Array) -> Array:
        while True:
            try:
                self._ways = self._ways or [_OneWay(c) for c in self._grids.at(self._interval)]
                return np.asarray(np.max([way.deltas(epsilons) for way in self._ways], axis=0))
            except WindowTooWide:
                self._ways, self._interval = [], 2 * self._interval


class _OneWay:
    """Deltas in one direction. Neighbouring epsilons share a tilt."""

    def __init__(self, composition: Composition) -> None:
        self._composition = composition
        self._tilts: deque[AnsweringDelta] = deque(maxlen=_KEPT)

    def deltas(self, epsilons: Array) -> Array:
        """Upper bounds on delta at each epsilon."""
        answers = np.ones(epsilons.shape)
        bound = 1.0
        for i in np.argsort(epsilons):
            epsilon = float(epsilons[i])
            tilted = next((one for one in self._tilts if one.suits(epsilon)), None)
            if tilted is None and bound > _SMALLEST_DELTA:
                tilt, log_bound = self._composition.tilt_for_epsilon(epsilon)
                infinite = self._composition.infinite
                bound = infinite + math.exp(min(0.0, log_bound)) * (1 + 1e-9)
                if bound > _SMALLEST_DELTA:
                    tilted = _tilted_below(self._composition, tilt, epsilon)
                    if tilted is not None:
                        self._tilts.appendleft(tilted)
            answers[i] = min(1.0, bound if tilted is None else tilted.delta(epsilon))
        return answers


def _tilted_below(composition: Composition, tilt: float, epsilon: float) -> AnsweringDelta | None:
    """The composition under this tilt, or under a smaller one whose window reaches epsilon."""
    for _ in range(60):
        tilted = composition.tilted(tilt)
        if tilted.lowest_epsilon <= epsilon:
            return tilted
        tilt /= 2
    return None
