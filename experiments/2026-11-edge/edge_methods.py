"""The candidates of `edge.py`: how a point of the unit square becomes a rule and an optimiser.

Every method gets the same points: the first coordinate is the threshold (where it moves, its
start), the second the step length. A method with a knob of its own goes through three values of it
while the points go by: it has no more trials for that. SGD with momentum 0.9 unless the method is
about the optimiser.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from edge_beds import Bed

from winsor import rules
from winsor.rules.balanced import Balanced
from winsor.rules.centred import Centred
from winsor.rules.discriminative import Discriminative
from winsor.rules.geometric import Geometric
from winsor.rules.power import Power
from winsor.rules.rule import Rule
from winsor.rules.scaled import Scaled
from winsor.rules.tracking import QuantileTracker
from winsor.training.kalman import KalmanSGD
from winsor.training.low_pass import LowPassSGD

MOMENTUM = 0.9
TUNING, SELECTION, FRESH = 101, (102, 103, 104), tuple(range(1, 9))
"""Seeds: of the trials, of the choice of a champion, of the evaluation."""
POINTS = (
    (0.50, 0.50), (0.75, 0.25), (0.25, 0.75), (0.625, 0.875),
    (0.125, 0.375), (0.875, 0.625), (0.375, 0.125), (0.9375, 0.9375),
)  # fmt: skip
"""The first points of the Sobol sequence in two dimensions, without the corner (0, 0); the last
one is moved to the corner of large thresholds and long steps, which heavy tails favour."""


@dataclass(frozen=True)
class Choice:
    """One setting of a method."""

    rule: Rule
    lr: float
    optimizer: Callable[[Any, float], torch.optim.Optimizer]
    adjusted: float = 0.0
    """tau of the logit adjustment, with released counts; 0 leaves the bed's own loss."""


def momentum(params: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=lr * (1 - MOMENTUM), momentum=MOMENTUM)


def between(ends: tuple[float, float], u: float) -> float:
    """Geometrically from one end to the other."""
    return ends[0] * (ends[1] / ends[0]) ** u


@dataclass(frozen=True)
class Method:
    """``rule(threshold, knob)``; the knob of an adjusted loss is its tau."""

    name: str
    rule: Callable[[float, float], Rule]
    knobs: tuple[float, ...] = (0.0,)
    optimizer: Callable[[Any, float], torch.optim.Optimizer] = field(default=momentum)
    adjusts: bool = False

    def choice(self, bed: Bed, trial: int) -> Choice:
        first, second = POINTS[trial]
        knob = self.knobs[trial % len(self.knobs)]
        threshold = between(bed.thresholds, first)
        rate = between(bed.lengths, second) / threshold
        tau = knob if self.adjusts else 0.0
        return Choice(self.rule(threshold, knob), rate, self.optimizer, tau)

    def serves(self, bed: Bed) -> bool:
        return not self.adjusts or bed.profile is not None


def discriminative(threshold: float, kept: float) -> Rule:
    tracker = QuantileTracker(target=kept, share=0.01)
    return Discriminative(threshold, threshold / 3, threshold=threshold, tracker=tracker)


def quantile(threshold: float, kept: float) -> Rule:
    return rules.Quantile(threshold, QuantileTracker(target=kept))


METHODS = {
    method.name: method
    for method in (
        Method("flat", lambda c, _: rules.Flat(c)),
        Method("balanced", lambda c, _: Balanced(c)),
        Method("balanced tracked", lambda c, k: Balanced(c, clipped=k), (0.1, 0.3, 0.03)),
        Method("quantile", quantile, (0.9, 0.7, 0.97)),
        Method("dc quantile", discriminative, (0.5, 0.8, 0.95)),
        Method("power", Power, (0.5, 1.5, 2.5)),
        Method("centred", lambda c, k: Centred(c, rate=k), (0.3, 0.1, 0.03)),
        Method("scaled", lambda c, k: Scaled(c, power=k), (1.0, 0.5, 2.0)),
        Method("geometric", lambda c, k: Geometric(c, power=k), (1.0, 0.5, 2.0)),
        Method("kalman", lambda c, _: rules.Flat(c), optimizer=KalmanSGD),
        Method("low-pass", lambda c, _: rules.Flat(c), optimizer=LowPassSGD),
        Method("adjusted", lambda c, _: rules.Flat(c), (1.0, 1.5, 0.7), adjusts=True),
        Method("balanced adjusted", lambda c, _: Balanced(c), (1.0, 1.5, 0.7), adjusts=True),
    )
}
