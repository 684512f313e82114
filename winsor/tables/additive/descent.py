"""Full-batch accelerated descent on clipped residuals, and the mean of its last iterates.

    r_i       negative gradient of the loss in the score, cut to length c
    release   sum_i phi_i r_i' + N(0, s^2)       T times, s for all T of them together
    step      Nesterov's, of a length that stops where noise begins

Along an eigenvector of eigenvalue l the mean of T noisy steps errs by s / (n sqrt(T) l), as if one
release had spent the whole budget: many steps cost nothing but time. What they must not do is to
converge where s / (n sqrt(T) l) exceeds the signal, about sqrt(1 / size). Hence the length: after
T steps directions of l below that ratio are still near where they started.

Guarantee
---------
A row is phi_i r_i' with |r_i| <= c and |phi_i| <= reach, and depends on released iterates
otherwise: sensitivity c reach when it joins or leaves, twice that when it is replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.core.arithmetic.rows import clip_rows
from winsor.core.contract import Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch
from winsor.tables.additive.terms import Design
from winsor.tables.descent import mean_of_last
from winsor.tables.inputs import within

Array = NDArray[np.float64]
Gradient = Callable[[Array], Array]

MOMENTUM = 0.9
KEPT = 0.75
"""The share of iterates, counted from the end, whose mean is kept."""
REACHED = 1.0
"""Time of descent in units of 1/l for the smallest l that is to be learnt."""
PROOF = "rows of a design of known length times residuals of clipped length"


def sensitivity(design: Design, clip: float) -> Sensitivity:
    """Return how far a row moves the sum of a step."""
    return Sensitivity.per_sample(clip * design.reach, PROOF)


@dataclass(frozen=True)
class Descent:
    """``steps`` steps with residuals cut at ``clip``; ``curvature`` is that of the loss."""

    steps: int
    clip: float
    curvature: float = 1.0

    def rate(self, design: Design, n: int, multiplier: float) -> float:
        """Return length of a step. ``multiplier`` is that of each of the steps."""
        stable = 1.0 / (self.curvature * design.curvature)
        noise = multiplier / math.sqrt(self.steps) * self.clip * design.reach / n
        smallest = noise * math.sqrt(2.0 * design.size) / self.clip  # curvature included
        time = self.steps / (1 - MOMENTUM)
        return min(stable, REACHED / (smallest * time))

    def run(
        self,
        design: Design,
        gradient: Gradient,
        n: int,
        start: Array,
        door: PrepaidDoor,
        mechanism: Gaussian,
    ) -> Array:
        """Return parameters (size, outputs), from ``start`` on; ``gradient(parameters)`` is the sum
        over all ``n`` rows of phi_i r_i', residuals cut at `clip`."""
        rate = self.rate(design, n, mechanism.noise_multiplier) / n
        receipt = door.pay(
            mechanism, FullBatch(n), sensitivity(design, self.clip), self.steps, start.shape
        )

        def advance(ahead: Array) -> Array:
            return ahead + rate * design.centred(receipt.release(gradient(ahead)))

        return mean_of_last(start, advance, self.steps, self._kept, MOMENTUM)

    @property
    def _kept(self) -> int:
        return max(1, round(KEPT * self.steps))

    def response(self, along: Array, rate: float) -> tuple[Array, Array]:
        """Return what is left of where coordinates with the second derivatives ``along`` per row
        started, and the deviation of the answer per unit of that of a step's noise per row."""
        kept = self._kept
        factor, one = 1 - rate * along, np.ones_like(along)
        left = _path(factor, one, one, self.steps)[-kept:].mean(axis=0)
        pulse = np.full((1, *along.shape), rate)
        later = _path(factor, pulse[0], (1 + MOMENTUM) * pulse[0], self.steps - 1)
        # Of the noise of a step the mean holds what every kept iterate after it does.
        sums = np.cumsum(np.concatenate([0 * pulse, pulse, later]), axis=0)
        after = np.arange(self.steps, 0, -1)
        held = (sums[after] - sums[np.maximum(after - kept, 0)]) / kept
        return left, np.sqrt(np.sum(held**2, axis=0))


def _path(factor: Array, here: Array, ahead: Array, steps: int) -> Array:
    """(steps, ...) distances from the optimum, one after each step without noise."""
    path = np.empty((steps, *factor.shape))
    for step in range(steps):
        there = factor * ahead
        here, ahead = there, there + MOMENTUM * (there - here)
        path[step] = here
    return path


def cut_rows(residuals: Array, clip: float) -> Array:
    """Return rows no longer than ``clip``; what is not a number counts as zero."""
    cut = within(residuals, clip)
    return cut if residuals.shape[1] == 1 else clip_rows(cut, clip)
