"""Light, sub-exponential or heavy: the words, the bands, and how sure one can be.

A class is a band of the sub-Weibull index theta at the depth of the sample's edge (S = 1/n):

    light            theta < 0.85         sub-Gaussian is 1/2
    sub-exponential  0.85 .. 1.15         1 up to 15 %, a factor that no threshold notices
    heavy            theta > 1.15         includes every power law seen deep enough

The probability of each class is the share of bootstrap refits that fall in its band, averaged over
the straight and the bent curve of `weibull.py`. Their weights are equal where the likelihood ratio
statistic is at `bend_critical` and follow the likelihood from there.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from winsor.tails.points import Floats

LIGHT_BELOW = 0.85
HEAVY_ABOVE = 1.15


class TailClass(enum.StrEnum):
    """What the upper tail looks like at the edge of the sample."""

    LIGHT = "light"
    SUB_EXPONENTIAL = "sub-exponential"
    HEAVY = "heavy"


@dataclass(frozen=True)
class Verdict:
    """The most probable class and the probability of each."""

    tail: TailClass
    probabilities: dict[TailClass, float]

    @property
    def confidence(self) -> float:
        """Probability of the most probable class."""
        return self.probabilities[self.tail]

    def __str__(self) -> str:
        return f"{self.tail.value} ({self.confidence:.0%})"


def bend_critical(n: float) -> float:
    """Return the likelihood ratio from which the bent curve is used: max(1.7, log n - 4.5).

    By simulation a straight tail of 500 norms passes 1.7 in one sample of fourteen, and the
    power against a Student t with 3 degrees of freedom is then about as far from one. From there
    on it grows with log n, as Bayes factors do, so that a straight tail is ever more rarely called
    bent; real bends have statistics proportional to n and lose nothing.
    """
    return max(1.7, float(np.log(n)) - 4.5)


def bend_weight(statistic: float, n: float) -> float:
    """Return the weight of the bent curve for a likelihood ratio; 1/2 at the critical value."""
    return float(1 / (1 + np.exp(np.clip((bend_critical(n) - statistic) / 2, -700.0, 700.0))))


def class_shares(theta: Floats) -> dict[TailClass, float]:
    """Return the share of the values of theta in each band."""
    light = float(np.mean(theta < LIGHT_BELOW))
    heavy = float(np.mean(theta > HEAVY_ABOVE))
    return {
        TailClass.LIGHT: light,
        TailClass.SUB_EXPONENTIAL: max(0.0, 1.0 - light - heavy),
        TailClass.HEAVY: heavy,
    }


def judge(straight: Floats, bent: Floats, weight: float) -> Verdict:
    """Combine the bootstrap thetas of both curves, the bent one with ``weight``, into a verdict."""
    first, second = class_shares(straight), class_shares(bent)
    shares = {tail: (1 - weight) * first[tail] + weight * second[tail] for tail in TailClass}
    return Verdict(max(shares, key=lambda tail: shares[tail]), shares)
