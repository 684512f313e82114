"""Paper 3 (gradient and value clipping): the steps of the proof of Theorem 4.5, with constants.

Objective values of SGD stay low (Proposition 4.2), so gradients stay short (Proposition 4.3) and
nothing is clipped; should it be, the risk is still sub-exponential (Lemma B.1), and a bound given
that nothing was clipped becomes one in expectation (Lemma A.9).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from winsor.core.checks import all_positive, all_probabilities, at_least
from winsor_papers.theory.bound import Bound, stated

_NOISE = "E exp(|noise|^2/s^2) <= e, and eta <= min(1/(2L), 1/(s sqrt(T)))"


def sgd_values(*, gap: float, steps: float, failure: float, constant: float = 1.0) -> Bound:
    """The largest f(w_t) - f* along SGD, with probability 1 - ``failure`` (Proposition 4.2).

    2 (f(w_0) - f*) + c log(T/delta), where ``gap`` is f(w_0) - f* and the paper hides c.

    >>> round(sgd_values(gap=1.0, steps=1000, failure=0.05).value, 2)
    11.9
    """
    at_least("gap", gap, 0)
    at_least("T", steps, 1)
    all_positive(c=constant)
    all_probabilities(failure=failure)
    return stated(
        "paper 3, Proposition 4.2",
        "2 (f(w_0) - f*) + c log(T/delta)",
        {"start": 2 * gap, "noise": constant * math.log(steps / failure)},
        order=True,
        assumed=("L-smooth f", _NOISE),
    )


def largest_gradient(
    *, beta_1: float, gap: float, n: float, steps: float, failure: float, constant: float = 1.0
) -> Bound:
    """The longest per-sample gradient along SGD, with probability 1 - ``failure`` ((1)).

    sqrt(2 beta_1 (f(w_0) - f*)) + c (sqrt(log(1/delta)) + sqrt(log T) + sqrt(log n)). With the
    constants of the proof it is C of (2): `no_clipping_threshold`.

    >>> found = largest_gradient(beta_1=2.0, gap=1.0, n=1e4, steps=1000, failure=0.05)
    >>> round(found.value, 2)
    9.39
    """
    all_positive(beta_1=beta_1, n=n, c=constant)
    at_least("gap", gap, 0)
    at_least("T", steps, 1)
    all_probabilities(failure=failure)
    logs = (1 / failure, steps, n)
    return stated(
        "paper 3, Proposition 4.3, (1)",
        "sqrt(2 beta_1 (f(w_0) - f*)) + c (sqrt(log(1/delta)) + sqrt(log T) + sqrt(log n))",
        {
            "start": math.sqrt(2 * beta_1 * gap),
            "noise": constant * sum(math.sqrt(math.log(value)) for value in logs),
        },
        order=True,
        assumed=("L-smooth f_i", _NOISE, "sub-Gaussian gradient noise (Assumption 4.1)"),
    )


def expected_from_conditional(
    *, conditional: float, level: float, scale: float, failure: float
) -> Bound:
    """E|X| from a bound that holds on an event of probability 1 - delta (Lemma A.9).

    alpha + delta beta + delta log(8/delta) K, for E[|X| | event] <= ``conditional`` and
    P(|X| - beta >= t) <= 2 exp(-t/K), beta = ``level``, K = ``scale``.

    >>> found = expected_from_conditional(conditional=0.1, level=10.0, scale=5.0, failure=1e-3)
    >>> round(found.value, 3)
    0.155
    """
    all_positive(conditional=conditional, level=level, scale=scale)
    all_probabilities(failure=failure)
    return stated(
        "paper 3, Lemma A.9",
        "alpha + delta beta + delta log(8/delta) K",
        {
            "conditional": conditional,
            "level": failure * level,
            "tail": failure * math.log(8 / failure) * scale,
        },
        assumed=("|X| - beta is sub-exponential with scale K",),
    )


class SubExponential(NamedTuple):
    """P(X >= level + t) <= 2 exp(-t/scale) for every t >= 0."""

    level: float
    scale: float

    def probability(self, excess: float) -> float:
        """The bound at t = ``excess``, never above 1."""
        return min(1.0, 2 * math.exp(-excess / self.scale))


def pessimistic_risk(
    *,
    gap: float,
    steps: float,
    clip: float,
    smoothness: float,
    batch_size: float,
    d: float,
    noise_multiplier: float,
    c1: float = 0.5,
    gradient: bool = False,
) -> SubExponential:
    """How bad DP-SGD with gradient clipping can get, whatever it clips (Lemma B.1).

    (14): f(w) - f* exceeds 2 gap + T^2 C^2/L by t with probability at most
    2 exp(-t c1 L B^2/(T^2 C^2 d sigma^2)), for eta <= 1/L. With ``gradient``, (15): the same for
    |grad f|^2, both numbers times 2L. The paper leaves c1 open; 1/2 is enough, since the noise of
    all steps is one chi-squared variable.

    >>> found = pessimistic_risk(gap=1.0, steps=10, clip=1.0, smoothness=2.0, batch_size=100, d=50,
    ...                          noise_multiplier=1.0)
    >>> found.level, round(found.scale, 3)
    (52.0, 0.5)
    """
    at_least("gap", gap, 0)
    at_least("T", steps, 1)
    all_positive(C=clip, L=smoothness, B=batch_size, d=d, sigma=noise_multiplier, c1=c1)
    spread = (steps * clip) ** 2 / smoothness
    factor = 2 * smoothness if gradient else 1.0
    scale = spread * d * noise_multiplier**2 / (c1 * batch_size**2)
    return SubExponential(factor * (2 * gap + spread), factor * scale)
