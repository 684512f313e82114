"""Paper 3 (gradient and value clipping): the threshold above which nothing is clipped."""

from __future__ import annotations

import math

from winsor.core.checks import all_positive, all_probabilities


def no_clipping_threshold(
    *,
    smoothness: float,
    gap: float,
    noise: float,
    n: float,
    steps: float,
    failure: float,
    c1: float = 1.0,
    c2: float = 1.0,
) -> float:
    """The C at which, with probability 1 - 2 delta', no gradient is ever clipped (eq. (2)).

    C = sqrt(4L(f(w0) - f*) + 2 c1 L^2 log(2/delta') + 64 c2 L^2 log(2T/delta'))
        + rho sqrt(1 + log(n(T+1)/delta'))

    which has the shape sqrt(c3 + c4 log(nT/delta')) of (2). The first line is (9); (11) repeats it
    as 16 c2 L, without the square, which has the wrong unit. The second line is the union bound
    behind (10), with its constant: P(|grad f_i - grad f| > t) <= e exp(-t^2/rho^2) under
    Assumption 4.1 ((10) prints sqrt(rho log), again a unit slip). c1 and c2 are the absolute
    constants of Proposition 4.2, which the paper does not name. (2) asks delta' in (0.5, 1): read
    (0, 0.5).
    """
    all_positive(smoothness=smoothness, gap=gap, noise=noise, n=n, T=steps, c1=c1, c2=c2)
    all_probabilities(delta=failure)
    mean = (
        4 * smoothness * gap
        + 2 * c1 * smoothness**2 * math.log(2 / failure)
        + 64 * c2 * smoothness**2 * math.log(2 * steps / failure)
    )
    return math.sqrt(mean) + noise * math.sqrt(1 + math.log(n * (steps + 1) / failure))


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
