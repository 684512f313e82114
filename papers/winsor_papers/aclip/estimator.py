"""Estimator (7) of paper 4 as printed: the noise that section 3.2 gives it.

    AClip(a, lambda) + z,     z ~ N(0, s^2 I),     s = c lambda sqrt(ln(1/delta))/epsilon

The text takes the sensitivity to be lambda and hides the constant c. With Definition 6 for
sensitivity lambda it is sqrt(2 ln(1.25/delta)) lambda/epsilon, which is what `estimator_7_std`
gives unless c is named. Two clipped averages can be 2 lambda apart: twice that noise is needed, and
`winsor.tables.averaged_mean` adds what a certified account asks for.
"""

from __future__ import annotations

import math

from winsor.core.checks import all_positive, all_probabilities
from winsor_papers.published import PublishedClaim

_DOUBTS = ("two clipped averages can differ by 2 lambda, not lambda",)


def estimator_7_std(
    clip: float, *, epsilon: float, delta: float, constant: float | None = None
) -> float:
    """Published deviation of z on each coordinate; ``constant`` is c, None takes Definition 6.

    >>> round(estimator_7_std(1.0, epsilon=1.0, delta=1e-5), 3)
    4.845
    """
    all_positive(clip=clip, epsilon=epsilon)
    all_probabilities(delta=delta)
    if constant is None:
        return clip * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    all_positive(constant=constant)
    return constant * clip * math.sqrt(math.log(1 / delta)) / epsilon


def estimator_7_claim(epsilon: float, delta: float) -> PublishedClaim:
    """What the paper says of one release with that noise."""
    statement = "section 3.2 with Definition 6 at sensitivity lambda"
    return PublishedClaim(epsilon, delta, "AClipped-dpSGD", statement, _DOUBTS)
