"""Paper 4 (AClipped-dpSGD): error of the clipped batch mean, and the losses its section 5 prints.

``deviation`` is sigma with E|grad f(x, xi) - grad f(x)|^2 <= sigma^2, ``clip`` is lambda and
``confidence`` beta.
"""

from __future__ import annotations

import math

from winsor.core.checks import all_positive, all_probabilities, at_least
from winsor.core.contract import ConfigurationError
from winsor_papers.theory.bound import Bound, Condition, stated

_MOMENT = "second moment of the gradient noise bounded by sigma^2 (Assumption 1)"


def aclip_spread(batch_size: float, deviation: float, *, mean_norm: float, clip: float) -> Bound:
    """Mean distance of the clipped mean from its expectation: sqrt(18) sigma / sqrt(m) (6).

    Needs |grad f| <= lambda/2, with ``mean_norm`` = |grad f| and ``clip`` = lambda. It bounds the
    first moment, though the paper calls it the variance.

    >>> round(aclip_spread(100, 1.0, mean_norm=0.4, clip=1.0).value, 3)
    0.424
    """
    all_positive(m=batch_size, sigma=deviation, clip=clip)
    at_least("mean_norm", mean_norm, 0)
    return stated(
        "paper 4, Lemma 1, (6)",
        "sqrt(18) sigma / sqrt(m)",
        {"spread": math.sqrt(18) * deviation / math.sqrt(batch_size)},
        assumed=(_MOMENT,),
        conditions=[_half_clip(mean_norm, clip)],
    )


def _half_clip(mean_norm: float, clip: float) -> Condition:
    return (
        mean_norm <= clip / 2,
        "|grad f| <= lambda/2",
        f"|grad f| = {mean_norm:g} is above lambda/2 = {clip / 2:g}: Lemma 1 does not apply",
    )


def aclip_batch_size(clip: float, deviation: float, *, steps: float, confidence: float) -> float:
    """The batch size of Theorem 1: max(1, 162 N^2 sigma^2 / (lambda ln(4/beta))^2).

    >>> aclip_batch_size(1.0, 0.0001, steps=10, confidence=0.05)
    1.0
    """
    all_positive(clip=clip, sigma=deviation)
    at_least("N", steps, 1)
    all_probabilities(confidence=confidence)
    return max(1.0, 162 * (steps * deviation / (clip * math.log(4 / confidence))) ** 2)


def aclip_accumulated_error(
    clip: float,
    *,
    steps: float,
    rounds: float | None = None,
    noise: float,
    d: float,
    deviation: float,
    batch_size: float,
    confidence: float,
) -> Bound:
    """Sum over k rounds of |noisy clipped mean - gradient|, with constants (Theorem 1, (8)).

    lambda (4 ln(4/b) + ln(4/b)/3 + 2 ln^2(4/b)/(81 N)) + k sigma-hat sqrt(16 d ln(4k/b)), where
    ``noise`` is sigma-hat and ``rounds`` k is at most ``steps`` N. The proof sums t = 0 .. k, that
    is k + 1 rounds, and counts k of them.

    >>> found = aclip_accumulated_error(1.0, steps=10, noise=0.01, d=5, deviation=0.1,
    ...                                 batch_size=100, confidence=0.05)
    >>> sorted(found.terms), len(found.warnings)
    (['bias', 'deviations', 'expectations', 'noise'], 0)
    """
    all_positive(clip=clip, d=d, sigma=deviation, m=batch_size)
    at_least("noise", noise, 0)
    all_probabilities(confidence=confidence)
    at_least("N", steps, 1)
    k = steps if rounds is None else rounds
    if not 1 <= k <= steps:
        raise ConfigurationError(f"rounds must lie in [1, N = {steps:g}]. Got {k!r} instead.")
    log = math.log(4 / confidence)
    needed = aclip_batch_size(clip, deviation, steps=steps, confidence=confidence)
    return stated(
        "paper 4, Theorem 1, (8)",
        "lambda (4 ln(4/b) + ln(4/b)/3 + 2 ln^2(4/b)/(81 N)) + k sigma-hat sqrt(16 d ln(4k/b))",
        {
            "deviations": 4 * clip * log,
            "expectations": clip * log / 3,
            "bias": 2 * clip * log**2 / (81 * steps),
            "noise": k * noise * math.sqrt(16 * d * math.log(4 * k / confidence)),
        },
        assumed=(_MOMENT, "|grad f| <= lambda/2 along the whole path"),
        conditions=[
            (
                batch_size >= needed,
                "m of Theorem 1",
                f"m = {batch_size:g} is below the {needed:.4g} of Theorem 1",
            ),
        ],
    )


def aclip_noise(
    clip: float,
    *,
    n: float,
    epsilon: float,
    delta: float,
    steps: float,
    batch_size: float,
    constant: float = 1.0,
) -> float:
    """sigma-hat of (9): c lambda m sqrt(N ln(1/delta)) / (n epsilon). Published, not certified.

    (9) prints T for N. Two clipped means can be 2 lambda apart, so whatever c is meant to be for
    sensitivity lambda, twice it is needed.

    >>> round(aclip_noise(1.0, n=1e4, epsilon=1.0, delta=1e-5, steps=100, batch_size=100), 3)
    0.339
    """
    all_positive(clip=clip, n=n, epsilon=epsilon, N=steps, m=batch_size, c=constant)
    all_probabilities(delta=delta)
    return constant * clip * batch_size * math.sqrt(steps * math.log(1 / delta)) / (n * epsilon)


# --------------------------------------------------------------------------- losses of section 5


def section_5_ridge_loss(residual: float, *, as_printed: bool = True) -> float:
    """(<x, xi> - y)^2 as printed; with ``as_printed=False`` half of it, which winsor minimises.

    Halving the loss halves gradients, so a printed step and threshold belong to the unhalved one;
    errors relative to the start are the same for both.

    >>> section_5_ridge_loss(2.0), section_5_ridge_loss(2.0, as_printed=False)
    (4.0, 2.0)
    """
    return residual**2 if as_printed else residual**2 / 2


def section_5_logistic_loss(score: float, label: int, *, as_printed: bool = True) -> float:
    """log(1 + exp(1 + y s)) as printed; log(1 + exp(-y s)) is what is meant (label y = -1 or 1).

    The printed one grows with agreement between label and score: minimising it learns the
    opposite label.

    >>> section_5_logistic_loss(3.0, 1) > section_5_logistic_loss(-3.0, 1)
    True
    >>> section_5_logistic_loss(3.0, 1, as_printed=False) < 0.05
    True
    """
    if label not in (-1, 1):
        raise ConfigurationError(f"label must be -1 or 1. Got {label!r} instead.")
    exponent = 1 + label * score if as_printed else -label * score
    return max(exponent, 0.0) + math.log1p(math.exp(-abs(exponent)))


def section_5_label(score: float, *, as_printed: bool = True) -> int:
    """Label of the synthetic logistic data: 2 sign(1/exp(s) - 1/2) - 1 as printed, else sign(s).

    As printed it is 1 or -3 (or -1 at s = ln 2): no label of a two-class model. The reading that
    fits the loss takes 1/(1 + exp(-s)) for 1/exp(s) and an indicator for the sign.

    >>> [section_5_label(s) for s in (-1.0, 1.0)]
    [1, -3]
    >>> [section_5_label(s, as_printed=False) for s in (-1.0, 1.0)]
    [-1, 1]
    """
    if not as_printed:
        return 1 if score > 0 else -1
    gap = math.exp(-score) - 0.5
    return 2 * ((gap > 0) - (gap < 0)) - 1


def aclip_bias(clip: float, batch_size: float, deviation: float) -> float:
    """2 sigma^2 / (m lambda): bias of the clipped mean, if |gradient| <= lambda/2 (Lemma 1)."""
    all_positive(clip=clip, m=batch_size, sigma=deviation)
    return 2 * deviation**2 / (batch_size * clip)
