"""Paper 3 (gradient and value clipping): utility of DP-SGD when no gradient is ever clipped.

The bounds are for excess empirical risk (convex f_i) or for |grad f|^2 (smooth f_i) of an iterate
drawn uniformly from w_0 .. w_T. They are orders; Lemma A.12 behind them has constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from winsor.core.checks import all_positive, all_probabilities, at_least
from winsor.core.contract import ConfigurationError
from winsor_papers.theory.bound import Bound, Condition, stated

_LIGHT = "sub-Gaussian gradient noise (Assumption 4.1)"
_SMOOTH = "L-smooth f_i; convex for excess risk, else the bound is for |grad f|^2"
_C = "C of (2): `winsor_papers.theory.no_clipping_threshold`"


def value_clipping_steps(n: float, epsilon: float, d: float) -> float:
    """T = n^2 epsilon^2 / d, the length that Theorem 4.5 asks for, up to a constant.

    >>> value_clipping_steps(1000, 1.0, 10)
    100000.0
    """
    all_positive(n=n, epsilon=epsilon, d=d)
    return max(1.0, (n * epsilon) ** 2 / d)


def sgd_risk(
    *,
    distance: float,
    step_size: float,
    steps: float,
    smoothness: float,
    noise: float,
    gap: float | None = None,
) -> Bound:
    """What plain SGD reaches, with constants (Lemma A.12, Ghadimi and Lan 2013).

    Convex: D_w^2/((T+1) eta) + sigma^2 eta for the excess risk, with D_w the distance from the
    start to the solutions. With ``gap`` = f(w_0) - f* given: 2 gap/((T+1) eta) + L sigma^2 eta for
    |grad f|^2, without convexity. ``noise`` is sigma, the root mean squared length of the gradient
    noise.

    >>> round(sgd_risk(distance=1, step_size=0.1, steps=99, smoothness=1, noise=0.5).value, 3)
    0.125
    """
    all_positive(distance=distance, eta=step_size, smoothness=smoothness)
    at_least("T", steps, 1)
    at_least("noise", noise, 0)
    if gap is None:
        start, spread = distance**2, noise**2
        formula = "D_w^2/((T+1) eta) + sigma^2 eta"
    else:
        at_least("gap", gap, 0)
        start, spread = 2 * gap, smoothness * noise**2
        formula = "2 (f(w_0) - f*)/((T+1) eta) + L sigma^2 eta"
    return stated(
        "paper 3, Lemma A.12",
        formula,
        {"start": start / ((steps + 1) * step_size), "noise": spread * step_size},
        assumed=("L-smooth f_i" + (", convex" if gap is None else ""), "unbiased gradients"),
        conditions=[
            (
                step_size <= 1 / smoothness,
                "eta <= 1/L",
                f"eta = {step_size:g} is above 1/L = {1 / smoothness:.3g}",
            ),
        ],
    )


def _privacy_of(delta: float) -> Condition:
    return (
        delta < 0.5,
        "delta in (0, 1/2)",
        f"delta = {delta:g} protects little; the paper prints delta in (0.5, 1), read (0, 0.5)",
    )


def no_clipping_rate(
    *,
    n: float,
    d: float,
    epsilon: float,
    delta: float,
    batch_size: float,
    steps: float,
    failure: float,
    c1: float = 1.0,
) -> Bound:
    """Risk given that nothing was clipped, which has probability 1 - delta' (Proposition 4.4).

    1/T + 1/sqrt(B T) + (sqrt(log(1/delta')) + sqrt(log(T n))) sqrt(d log(1/delta)) / (n epsilon),
    with delta' = ``failure``, for T > epsilon/c1. The last line of the proof has the logarithms
    without their roots.

    >>> found = no_clipping_rate(n=1e4, d=10, epsilon=1, delta=1e-5, batch_size=100, steps=1e4,
    ...                          failure=0.05)
    >>> round(found.value, 4)
    0.0076
    """
    all_positive(n=n, d=d, epsilon=epsilon, B=batch_size, c1=c1)
    all_probabilities(delta=delta, failure=failure)
    at_least("T", steps, 1)
    logs = math.sqrt(math.log(1 / failure)) + math.sqrt(math.log(steps * n))
    return stated(
        "paper 3, Proposition 4.4",
        "1/T + 1/sqrt(B T) + (sqrt(log(1/d')) + sqrt(log(T n))) sqrt(d log(1/delta))/(n epsilon)",
        {
            "steps": 1 / steps,
            "batches": 1 / math.sqrt(batch_size * steps),
            "privacy": logs * math.sqrt(d * math.log(1 / delta)) / (n * epsilon),
        },
        order=True,
        assumed=(_LIGHT, _SMOOTH, _C),
        conditions=[
            (
                steps > epsilon / c1,
                "T > epsilon/c1",
                f"T = {steps:g} is not above epsilon/c1 = {epsilon / c1:g}",
            ),
            (
                failure <= 0.5,
                "delta' <= 1/2",
                "delta' is above 1/2: the proof divides by 1 - delta' >= 1/2 (the paper prints "
                "delta' in (0.5, 1), read (0, 0.5))",
            ),
            _privacy_of(delta),
        ],
    )


def gradient_clipping_rate(
    *, n: float, d: float, epsilon: float, batch_size: float, steps: float | None = None
) -> Bound:
    """Expected risk of DP-SGD with gradient clipping, logarithms left out (Theorem 4.5).

    1/T + 1/sqrt(B T) + sqrt(d)/(n epsilon); with ``steps`` None, T = n^2 epsilon^2/d, which makes
    it sqrt(d)/(n epsilon) up to a factor.

    >>> found = gradient_clipping_rate(n=1e4, d=16, epsilon=1, batch_size=100)
    >>> round(found.value / found.terms["privacy"], 2)
    1.1
    """
    all_positive(n=n, d=d, epsilon=epsilon, B=batch_size)
    length = value_clipping_steps(n, epsilon, d) if steps is None else steps
    at_least("T", length, 1)
    return stated(
        "paper 3, Theorem 4.5, logarithms left out",
        "1/T + 1/sqrt(B T) + sqrt(d)/(n epsilon)",
        {
            "steps": 1 / length,
            "batches": 1 / math.sqrt(batch_size * length),
            "privacy": math.sqrt(d) / (n * epsilon),
        },
        order=True,
        assumed=(_LIGHT, _SMOOTH, "C = sqrt(c3 + c4 log(n T)) with constants of the problem"),
        conditions=[
            (
                math.sqrt(d) < n * epsilon,
                "sqrt(d) < n epsilon",
                f"sqrt(d) = {math.sqrt(d):.3g} is not below n epsilon = {n * epsilon:.3g}: the "
                "bound says nothing",
            ),
        ],
    )


def full_batch_rate(*, n: float, d: float, epsilon: float) -> Bound:
    """sqrt(d)/(sqrt(n) epsilon) for full batches when the noise is not light (Remark 4.2).

    >>> full_batch_rate(n=1e4, d=4, epsilon=1).value
    0.02
    """
    all_positive(n=n, d=d, epsilon=epsilon)
    return stated(
        "paper 3, Remark 4.2, logarithms left out",
        "sqrt(d)/(sqrt(n) epsilon)",
        {"privacy": math.sqrt(d) / (math.sqrt(n) * epsilon)},
        order=True,
        assumed=(_SMOOTH, "every row in every step"),
    )


def mean_growth(
    beta_1: float, beta_2: float, *, minimum: float, minima: Sequence[float]
) -> tuple[float, float]:
    """Weak growth of the mean of functions that are all (beta_1, beta_2)-WGC (Lemma A.13).

    f = (1/n) sum f_i is (beta_1, beta_2 + Gamma beta_1)-WGC with Gamma = f* - mean of the f_i*.
    ``minimum`` is f*, ``minima`` are the f_i*. The f_i* are private where the f_i are: this is
    analysis, not a bound to clip with.

    >>> mean_growth(2.0, 0.0, minimum=0.5, minima=[0.0, 0.0])
    (2.0, 1.0)
    """
    all_positive(beta_1=beta_1)
    at_least("beta_2", beta_2, 0)
    if not minima:
        raise ConfigurationError("minima must name at least one f_i*. Got none.")
    gamma = minimum - math.fsum(minima) / len(minima)
    if gamma < -1e-12 * max(1.0, abs(minimum)):
        raise ConfigurationError(
            "f* must be at least the mean of the f_i*: a mean is nowhere below the mean of the "
            f"infima. Got Gamma = {gamma!r} instead."
        )
    return beta_1, beta_2 + max(0.0, gamma) * beta_1


def value_clipping_table_1(*, n: float, d: float, epsilon: float) -> dict[str, Bound]:
    """Table 1: four settings with the same utility sqrt(d)/(n epsilon), logarithms left out.

    >>> sorted({round(rate.value, 6) for rate in value_clipping_table_1(n=1e4, d=4,
    ...                                                                epsilon=1).values()})
    [0.0002]
    """
    all_positive(n=n, d=d, epsilon=epsilon)
    settings = {
        "DP-SGD, Bassily et al. 2014": ("bounded domain", "Lipschitz f_i"),
        "DP-SGD, bounded domain": ("bounded domain", "smooth f_i"),
        "DP-SGD, Wang et al. 2022": ("bounded domain", "Hoelder smooth f_i"),
        "DP-SGD-GC": ("smooth f_i", _LIGHT),
    }
    return {
        name: stated(
            f"paper 3, Table 1, {name}",
            "sqrt(d)/(n epsilon)",
            {"privacy": math.sqrt(d) / (n * epsilon)},
            order=True,
            assumed=("convex f_i", *assumed),
        )
        for name, assumed in settings.items()
    }


def no_clipping_step_size(
    *,
    smoothness: float,
    noise: float,
    threshold: float,
    noise_multiplier: float,
    d: float,
    batch_size: float,
    steps: float,
    c5: float = 1.0,
) -> float:
    """eta = min(1/(2L), 1/sqrt(c5 T (rho^2/B + C^2 d sigma^2/B^2))) (eqs. (2) and (12))."""
    all_positive(smoothness=smoothness, noise=noise, C=threshold, d=d, B=batch_size, T=steps, c5=c5)
    variance = noise**2 / batch_size + threshold**2 * d * noise_multiplier**2 / batch_size**2
    return min(1 / (2 * smoothness), 1 / math.sqrt(c5 * variance * steps))
