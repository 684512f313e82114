"""Paper 5 (ModelMix): its asymptotic privacy amplification, Lemma D.2 and Corollary 4.1's algebra.

Published orders, never a guarantee: `winsor.contrib.modelmix.widened` is the certified account of a
mixed step, `winsor_papers.modelmix` the paper's numerical claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from winsor.core.checks import all_positive, all_probabilities, at_least, whole
from winsor.core.contract import ConfigurationError
from winsor_papers.theory.bound import Bound, Condition, stated

_NOT_PRIVACY = "an order without its constants and logarithms: no privacy statement"


class Amplified(NamedTuple):
    """epsilon and delta of Theorem 4.2, as orders."""

    epsilon: Bound
    delta: Bound


def gaussian_mixing_order(
    *,
    step_size: float,
    steps: float,
    width: float,
    threshold: float,
    noise: float,
    n: float,
    slack: float,
    lipschitz: float | None = None,
    as_printed: bool = True,
) -> Amplified:
    """epsilon and delta of ModelMix with Gaussian noise as orders (Theorem 4.2, (14)).

    epsilon ~ eta T (c + s)/(tau n) + sqrt(eta T log(1/d')/tau (c^4/(n^4 s^3) + c^2/(n^2 s) + s))
    delta ~ T (L/n + s)/tau + d'

    with s = ``noise`` and d' = ``slack``. As printed, the first term divides s by n, delta lacks
    eta, and L stands where the threshold c is meant. ``as_printed=False`` follows the proof, (45),
    with sensitivity c/n and width tau/eta: eta T (c/n + s)/tau and eta T (c/n + s)/tau + d'.

    >>> found = gaussian_mixing_order(step_size=0.1, steps=100, width=10.0, threshold=1.0,
    ...                               noise=0.01, n=100, slack=1e-6)
    >>> found.epsilon.is_order, "no privacy statement" in found.epsilon.warnings[0]
    (True, True)
    """
    all_positive(eta=step_size, T=steps, tau=width, c=threshold, s=noise, n=n)
    all_probabilities(slack=slack)
    limit = threshold if lipschitz is None else lipschitz
    all_positive(L=limit)
    ratio, sensitivity = step_size / width, threshold / n
    spread = sensitivity**4 / noise**3 + sensitivity**2 / noise + noise
    drift = (threshold + noise) / n if as_printed else sensitivity + noise
    lost = (
        steps * (limit / n + noise) / width if as_printed else ratio * steps * (sensitivity + noise)
    )
    wide: Condition = (
        1 / ratio > max(2 * noise * math.log(1 / ratio) + 2 * sensitivity, 2.0),
        "tau/eta > max(2 s log(tau/eta) + 2c, 2) (Lemma D.1)",
        "tau/eta is not large enough for Lemma D.1",
    )
    suffix = ", as printed" if as_printed else ", as its proof gives it"
    return Amplified(
        stated(
            "paper 5, Theorem 4.2, (14), epsilon" + suffix,
            "eta T (c + s)/(tau n) + sqrt(eta T log(1/d')/tau (c^4/(n^4 s^3) + c^2/(n^2 s) + s))",
            {
                "drift": ratio * steps * drift,
                "spread": math.sqrt(ratio * steps * math.log(1 / slack) * spread),
            },
            order=True,
            assumed=("constant sampling rate", "c/s = Theta(1)"),
            conditions=[wide],
            notes=(_NOT_PRIVACY,),
        ),
        stated(
            "paper 5, Theorem 4.2, (14), delta" + suffix,
            "T (L/n + s)/tau + d'",
            {"edges": lost, "slack": slack},
            order=True,
            conditions=[wide],
            notes=(_NOT_PRIVACY,),
        ),
    )


def laplace_mixing_order(
    epsilon_step: float, *, step_size: float, steps: float, width: float, delta: float
) -> Bound:
    """epsilon of ModelMix with Laplace noise and l1 clipping, as an order (Theorem 4.2, (15)).

    eta T e0 (exp(e0) - 1)/tau + e0 sqrt(eta T log(1/delta)/tau), where e0 = ``epsilon_step`` is the
    epsilon of one step without mixing. It is advanced composition with T replaced by T eta/tau.

    >>> round(laplace_mixing_order(0.1, step_size=0.1, steps=100, width=10, delta=1e-5).value, 3)
    0.35
    """
    all_positive(epsilon=epsilon_step, eta=step_size, T=steps, tau=width)
    all_probabilities(delta=delta)
    effective = step_size * steps / width
    return stated(
        "paper 5, Theorem 4.2, (15)",
        "eta T e0 (exp(e0) - 1)/tau + e0 sqrt(eta T log(1/delta)/tau)",
        {
            "drift": effective * epsilon_step * math.expm1(epsilon_step),
            "spread": epsilon_step * math.sqrt(effective * math.log(1 / delta)),
        },
        order=True,
        assumed=("per-sample gradients clipped in l1", "Laplace noise"),
        conditions=[
            (
                width > step_size,
                "tau > eta",
                "tau is not above eta: mixing this narrow amplifies nothing",
            ),
        ],
        notes=(_NOT_PRIVACY,),
    )


class LossMoments(NamedTuple):
    """Bounds on mean and variance of the privacy loss of one mixed Laplace step."""

    mean: Bound
    variance: Bound


def laplace_mixing_moments(width: float, *, threshold: float, rate: float) -> LossMoments:
    """Mean and variance of the privacy loss of one step of Laplace noise with mixing (Lemma D.2).

    ``width`` is tau/eta, ``threshold`` the l1 sensitivity c, ``rate`` the lambda of the density
    lambda exp(-lambda |x|)/2. With e0 = lambda c, a = (1 - exp(-lambda w))/(lambda w),
    b = (2 log(w)/lambda + c)/w and h = (exp(e0) - 1)/(2 (w - 1)):

        mean <= e0 (exp(e0) - 1)(a + b) + h (exp(e0/(2(w-1))) - 1)(1 - a)
        variance <= e0^2 (a + b) + h^2 (1 - a)

    The variance is printed with s for c. The condition on the width is refused where it fails.

    >>> found = laplace_mixing_moments(100.0, threshold=1.0, rate=1.0)
    >>> round(found.mean.value, 3), round(found.variance.value, 3)
    (0.193, 0.112)
    """
    all_positive(width=width, c=threshold, rate=rate)
    needed = max(2 * math.log(width) / rate + threshold, 1.0)
    if not width > needed:
        raise ConfigurationError(
            f"tau/eta must exceed max(2 log(tau/eta)/lambda + c, 1) = {needed:.4g} (Lemma D.2). "
            f"Got {width!r} instead."
        )
    e0 = rate * threshold
    outside = -math.expm1(-rate * width) / (width * rate)
    edges = (2 * math.log(width) / rate + threshold) / width
    inside = math.expm1(e0) / (2 * (width - 1))
    condition: Condition = (True, "tau/eta > max(2 log(tau/eta)/lambda + c, 1)", "")
    return LossMoments(
        stated(
            "paper 5, Lemma D.2, mean",
            "e0 (exp(e0) - 1)(a + b) + h (exp(e0/(2(w-1))) - 1)(1 - a)",
            {
                "edges": e0 * math.expm1(e0) * (outside + edges),
                "middle": inside * math.expm1(e0 / (2 * (width - 1))) * (1 - outside),
            },
            conditions=[condition],
        ),
        stated(
            "paper 5, Lemma D.2, variance, s read as c",
            "e0^2 (a + b) + h^2 (1 - a)",
            {"edges": e0**2 * (outside + edges), "middle": inside**2 * (1 - outside)},
            conditions=[condition],
        ),
    )


def corollary_4_1_epsilon(
    log_moments: Sequence[float],
    *,
    order: int,
    sampling_rate: float,
    steps: int,
    delta: float,
    as_printed: bool = False,
) -> float:
    """epsilon at one whole order from log A_0 .. log A_a (Corollary 4.1). Published, not certified.

    T log(sum_k C(a,k) (1-q)^(a-k) q^k A_k)/(a - 1) + log(1/delta)/(a - 1). The print has 1 - a for
    a - 1, which makes epsilon negative, and no factor T; ``as_printed=True`` evaluates that.

    >>> moments = [0.0, 0.0, 0.5]
    >>> good = corollary_4_1_epsilon(moments, order=2, sampling_rate=0.1, steps=10, delta=1e-5)
    >>> bad = corollary_4_1_epsilon(moments, order=2, sampling_rate=0.1, steps=10, delta=1e-5,
    ...                             as_printed=True)
    >>> round(good, 3), bad < 0
    (11.578, True)
    """
    whole("order", order, least=2)
    whole("steps", steps)
    all_probabilities(q=sampling_rate, delta=delta)
    if len(log_moments) <= order:
        raise ConfigurationError(
            f"log_moments must hold A_0 .. A_{order}. Got {len(log_moments)} values instead."
        )
    for moment in log_moments:
        at_least("log A_k", moment, 0)
    q = sampling_rate
    logs = [
        math.log(math.comb(order, k))
        + (order - k) * math.log1p(-q)
        + k * math.log(q)
        + log_moments[k]
        for k in range(order + 1)
    ]
    top = max(logs)
    total = top + math.log(math.fsum(math.exp(value - top) for value in logs))
    if as_printed:
        return (total + math.log(1 / delta)) / (1 - order)
    return (steps * total + math.log(1 / delta)) / (order - 1)
