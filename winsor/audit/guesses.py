"""Privacy bounds from one run: m coins, a fixed number of guesses, how many were right.

Each of m canaries is in the training set or not, by its own fair coin. After the run the adversary
guesses some of the coins. If the training is private, few guesses can be right.

Steinke, Nasr and Jagielski 2023 (Theorem 5.2): for (epsilon, delta)-DP, r guesses, v right,

    P[V >= v] <= P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i,   B ~ Bin(r, e^eps/(1+e^eps)).

Mahloujifar, Melis and Chaudhuri 2024: use the whole claimed curve. Let s_i = P[V >= i] and
E_i = s_i + s_{i+1} + ... + s_r. With the claim's smallest false-positive rate F at a given
true-positive rate,

    m F( (E_i + (i-1) s_i) / m ) <= (r - i + 1) s_{i-1} - E_i        for i = 1, ..., r.

Why: fix all coins but coin j. "Guess j is right and V >= i" for one value of the coin and "guess j
is wrong and V >= i - 1" for the other are the same set of outputs, so the claim bounds the
probability of the first by that of the second; average over coins (power is concave) and write
both sides with the tails s. Starting from the assumption s_v = tau and rolling down,
s_{i-1} >= max(s_i, (m F(.) + E_i)/(r - i + 1)) bounds every lower tail from below, and all of
these are increasing in what came before; if s_0 > 1 results, the assumption was wrong and
P[V >= v] < tau.

Guarantee
---------
A training that satisfies the claim is refuted with probability at most alpha, provided that the
number of guesses was fixed beforehand and the canaries' coins are independent and fair.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from winsor.audit.claims import Claim
from winsor.core.contract import ConfigurationError

LeastFalsePositive = Callable[[float], float]
"""A claim's F: true-positive rate -> the smallest false-positive rate it allows."""


def pointwise_p_value(m: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Bound the probability of so many right guesses under (epsilon, delta)-DP."""
    _check(m, guesses, right)
    if right == 0:
        return 1.0
    p = 1 / (1 + np.exp(-epsilon))
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, p))
    worst = float((below / np.arange(1, right + 1)).max())
    return min(1.0, float(binom.sf(right - 1, guesses, p)) + 2 * m * delta * worst)


def pointwise_epsilon(m: int, guesses: int, right: int, delta: float, alpha: float) -> float:
    """Return the largest epsilon that so many right guesses refute at level alpha, or 0."""
    return _largest(
        lambda epsilon: pointwise_p_value(m, guesses, right, epsilon, delta) <= alpha, 60.0
    )


def curve_refuted(
    least: LeastFalsePositive, m: int, guesses: int, right: int, alpha: float
) -> bool:
    """Return whether so many right guesses have probability below alpha under the curve."""
    _check(m, guesses, right)
    tail = weighted = alpha  # s_v and E_v, taking tails beyond v as 0: the cautious choice
    for i in range(right, 0, -1):
        caught = (weighted + (i - 1) * tail) / m
        tail = max(tail, (m * least(caught) + weighted) / (guesses - i + 1))
        weighted += tail
        if tail > 1:
            return True
    return False


def claim_refuted(claim: Claim, m: int, guesses: int, right: int, alpha: float) -> bool:
    """Apply `curve_refuted` to a claim on a grid of epsilons."""
    return curve_refuted(claim.least_false_positive, m, guesses, right, alpha)


def gaussian_mu_bound(m: int, guesses: int, right: int, alpha: float) -> float:
    """Return the largest mu at which mu-Gaussian DP is refuted at level alpha, or 0."""

    def refuted(mu: float) -> bool:
        least = lambda a: float(ndtr(ndtri(min(a, 1.0)) - mu)) if a > 0 else 0.0  # noqa: E731
        return curve_refuted(least, m, guesses, right, alpha)

    return _largest(refuted, 20.0)


def _largest(refuted: Callable[[float], bool], high: float) -> float:
    """The end of the interval [0, x] on which ``refuted`` holds."""
    if not refuted(1e-6):
        return 0.0
    low = 1e-6
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _check(m: int, guesses: int, right: int) -> None:
    if not 0 <= right <= guesses <= m or guesses < 1:
        raise ConfigurationError(
            "there must be 0 <= right <= guesses <= m, with at least one guess. Got "
            f"m = {m}, guesses = {guesses}, right = {right} instead."
        )
