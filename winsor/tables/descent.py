"""Projected gradient descent with averaged iterates, given a source of released gradients.

    theta <- Proj( prox_alpha( theta - eta_t g_t ) ),     the answer is an average of iterates

Everything here is post-processing. The ridge penalty never touches the private part: it is applied
by its proximal map, w / (1 + eta alpha), which is stable for every eta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import whole

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Schedule:
    """How to descend. ``tail`` is the last fraction of iterates that is averaged; ``decay`` lets
    the step size fall linearly to zero; ``radius`` projects on a ball about the origin."""

    steps: int
    step_size: float
    alpha: float = 0.0
    radius: float | None = None
    tail: float = 1.0
    decay: bool = False
    noise: float | None = None
    """Expected norm of the noise in a gradient. If given, the step size is halved whenever two
    successive gradients, both well above the noise, point in opposite directions: the steps are
    then too long for the curvature, and nobody had to look at the data to see it."""
    before: bool = False
    """Average the points where gradients were taken (x^0 .. x^{N-1}), as papers 2 and 4 do, instead
    of the points they led to."""


@dataclass
class Trail:
    """The answers of a descent as it goes on, every ``every`` steps and at the end (``every`` None:
    nothing is kept). They follow from released gradients, so looking at them costs nothing.

    An answer is the average so far where all iterates are averaged, else the present iterate.
    ``done`` counts the steps of earlier runs of the same fit.
    """

    every: int | None
    points: list[tuple[int, Array]] = field(default_factory=list)
    done: int = 0

    def __post_init__(self) -> None:
        if self.every is not None:
            whole("record", self.every)

    def note(self, step: int, steps: int, answer: Callable[[], Array]) -> None:
        """Record the answer after ``step`` of ``steps``."""
        if self.every is not None and (step % self.every == 0 or step == steps):
            self.points.append((self.done + step, answer()))
        if step == steps:
            self.done += steps


def descend(
    start: Array,
    gradient: Callable[[Array], Array],
    schedule: Schedule,
    intercept: bool,
    trail: Trail | None = None,
) -> Array:
    """Run ``schedule`` from ``start``; ``gradient(theta)`` releases one noisy mean gradient."""
    theta = start.copy()
    penalised = theta[:-1] if intercept else theta  # a view: the intercept is not shrunk
    total = np.zeros_like(theta)
    first = schedule.steps - max(1, round(schedule.tail * schedule.steps))
    rates = np.full(schedule.steps, schedule.step_size)
    if schedule.decay:
        rates *= 1 - np.arange(schedule.steps) / schedule.steps
    caution = _Caution(schedule.noise) if schedule.noise is not None else None
    with np.errstate(all="ignore"):  # scores may overflow for absurd step sizes
        for step, rate in enumerate(rates.tolist()):
            if schedule.before and step >= first:
                total += theta
            slope = gradient(theta)
            theta -= (rate if caution is None else rate * caution.factor(slope)) * slope
            if schedule.alpha:
                penalised /= 1 + rate * schedule.alpha
            if schedule.radius is not None:
                project(theta, schedule.radius)
            if step >= first and not schedule.before:
                total += theta
            if trail is not None:
                count = step + 1 if first == 0 else 0
                trail.note(step + 1, schedule.steps, partial(_answer, theta, total, count))
    total /= schedule.steps - first
    return total


def _answer(theta: Array, total: Array, count: int) -> Array:
    return total / count if count else theta.copy()


class _Caution:
    """The step-size factor that halves when released gradients swing back and forth."""

    def __init__(self, noise: float) -> None:
        self._clear = 2 * noise
        self._factor = 1.0
        self._last: Array | None = None
        self._length = 0.0

    def factor(self, slope: Array) -> float:
        length = float(np.sqrt(np.vdot(slope, slope)))
        if self._last is not None and min(length, self._length) > self._clear:
            cosine = float(np.vdot(slope, self._last)) / (length * self._length)
            if cosine < -0.5:
                self._factor /= 2
        self._last, self._length = slope, length
        return self._factor


def project(theta: Array, radius: float) -> None:
    """Project on the ball of this radius about the origin, in place."""
    length = float(np.sqrt(np.vdot(theta, theta)))
    if length > radius:
        theta *= radius / length


def mean_of_last(
    start: Array, advance: Callable[[Array], Array], steps: int, kept: int, momentum: float = 0.0
) -> Array:
    """Return the mean of the last ``kept`` of ``steps`` iterates, with Nesterov's momentum.

    ``advance(ahead)`` makes one step from a point, and releases what it needs for it.
    """
    here = ahead = start
    total = np.zeros_like(start)
    for step in range(steps):
        there = advance(ahead)
        here, ahead = there, there + momentum * (there - here) if momentum else there
        if step >= steps - kept:
            total += here
    return total / kept
