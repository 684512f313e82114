"""Paper 2 (heavy-tailed DP-SCO): how good its gradient estimates are, and what descent makes of it.

``moment`` is M with E|<u, g>|^p <= M^p for every unit vector u; the paper prints its orders for
M = 1, and rescaling the gradients by M gives the factors here. ``confidence`` is beta: the
statement fails with at most that probability.
"""

from __future__ import annotations

import math
from dataclasses import replace

from winsor.core.checks import all_positive, all_probabilities, at_least
from winsor.core.contract import ConfigurationError
from winsor.tails.theorems.sco import (
    checked_moments,
    iterative_error,
    iterative_groups,
)
from winsor_papers.theory.bound import Bound, stated
from winsor_papers.theory.sco_budgets import per_step_budget

_MOMENT = "E|<u, grad l>|^p <= M^p for every unit u (Assumption 1c)"
_DOMAIN = "convex loss on a set of diameter L (Assumption 1a)"
_SMOOTH = "lambda-smooth population risk (Assumption 1b)"


def descent_risk(
    *,
    diameter: float,
    step_size: float,
    steps: float,
    smoothness: float,
    bias: float,
    second_moment: float,
) -> Bound:
    """Excess risk of the averaged iterate of projected descent, with constants (Lemma 3, (9)).

    L^2/(2 eta T) + L B + eta (lambda^2 L^2 + G^2), where B bounds the bias of every gradient
    estimate (7) and G^2 its mean squared error (8).

    >>> found = descent_risk(diameter=2, step_size=0.1, steps=100, smoothness=1, bias=0.01,
    ...                      second_moment=0.5)
    >>> round(found.value, 3)
    0.67
    """
    all_positive(L=diameter, eta=step_size, T=steps, smoothness=smoothness)
    at_least("bias", bias, 0)
    at_least("second_moment", second_moment, 0)
    return stated(
        "paper 2, Lemma 3, (9)",
        "L^2/(2 eta T) + L B + eta (lambda^2 L^2 + G^2)",
        {
            "start": diameter**2 / (2 * step_size * steps),
            "bias": diameter * bias,
            "steps": step_size * (smoothness**2 * diameter**2 + second_moment),
        },
        assumed=(
            _DOMAIN,
            _SMOOTH,
            "B and G^2 hold along the whole path, which depends on the data",
        ),
        conditions=[
            (
                bias**2 <= second_moment,
                "B^2 <= G^2",
                "B^2 exceeds G^2, which no estimator can do: one of them is wrong",
            ),
        ],
    )


def simple_gradient_bias(
    radius: float, *, p: float, moment: float, n: float, d: float, as_printed: bool = False
) -> Bound:
    """B of the clipped mean over the whole set: Lemma 5, (14).

    sqrt(d ln n / n) + R d ln n / n + d^(p/2) R^(1-p). Printed with a second factor ln n in the
    middle term, which neither (15), its square, nor (17) has: ``as_printed=True`` keeps it.

    >>> round(simple_gradient_bias(50, p=2, moment=1, n=1e5, d=5).value, 3)
    0.153
    """
    checked_moments(p, R=radius, M=moment, n=n, d=d)
    at_least("n", n, 2)
    log = math.log(n)
    twice = log if as_printed else 1.0
    return stated(
        "paper 2, Lemma 5, (14)" + (", as printed" if as_printed else ", its second ln n dropped"),
        "sqrt(d ln n / n) + R d ln n / n + d^(p/2) R^(1-p)",
        {
            "sampling": moment * math.sqrt(d * log / n),
            "tail": radius * d * log * twice / n,
            "clipping": d ** (p / 2) * moment**p * radius ** (1 - p),
        },
        order=True,
        assumed=(_MOMENT, _DOMAIN),
        notes=("the middle term has ln^2 n, against (15) and (17)",) if as_printed else (),
    )


def simple_gradient_moment(
    radius: float, *, p: float, moment: float, n: float, d: float, rho: float, steps: float
) -> Bound:
    """G^2 of the clipped mean over the whole set: Lemma 5, (15).

    d ln n / n + R^2 d^2 ln^2 n / n^2 + d^p R^(2(1-p)) + R^2 T d / (rho n^2), where rho is the zCDP
    budget of all T steps.

    >>> sorted(simple_gradient_moment(50, p=2, moment=1, n=1e5, d=5, rho=0.05, steps=10).terms)
    ['clipping', 'noise', 'sampling', 'tail']
    """
    checked_moments(p, R=radius, M=moment, n=n, d=d, rho=rho, T=steps)
    at_least("n", n, 2)
    log = math.log(n)
    return stated(
        "paper 2, Lemma 5, (15)",
        "d ln n / n + R^2 d^2 ln^2 n / n^2 + d^p R^(2(1-p)) + R^2 T d / (rho n^2)",
        {
            "sampling": moment**2 * d * log / n,
            "tail": (radius * d * log / n) ** 2,
            "clipping": d**p * moment ** (2 * p) * radius ** (2 * (1 - p)),
            "noise": radius**2 * steps * d / (rho * n**2),
        },
        order=True,
        assumed=(_MOMENT, _DOMAIN),
    )


def iterative_gradient_bias(radius: float, *, p: float, moment: float, n: float, d: float) -> Bound:
    """B of iterative updating: sqrt(d/n) + d^(p/2) R^(1-p) (Lemma 9).

    >>> round(iterative_gradient_bias(50, p=2, moment=1, n=1e5, d=5).value, 3)
    0.107
    """
    checked_moments(p, R=radius, M=moment, n=n, d=d)
    return stated(
        "paper 2, Lemma 9",
        "sqrt(d/n) + d^(p/2) R^(1-p)",
        {
            "sampling": moment * math.sqrt(d / n),
            "clipping": d ** (p / 2) * moment**p * radius ** (1 - p),
        },
        order=True,
        assumed=(_MOMENT, _DOMAIN),
    )


def iterative_gradient_moment(
    radius: float,
    *,
    p: float,
    moment: float,
    n: float,
    d: float,
    epsilon_step: float,
    delta_step: float,
    as_printed: bool = True,
) -> Bound:
    """G^2 of iterative updating at (epsilon_0, delta_0) per step: Lemma 9, (29).

    d/n + R^2 d/(n epsilon_0)^2 (ln(1/delta_0) + sqrt(ln(1/delta_0) ln d)) + d^p R^(2(1-p)).
    The square of (28) has the bracket squared; ``as_printed=False`` squares it.

    >>> setting = dict(p=2, moment=1, n=1e5, d=5, epsilon_step=0.05, delta_step=1e-8)
    >>> printed = iterative_gradient_moment(50, **setting)
    >>> squared = iterative_gradient_moment(50, **setting, as_printed=False)
    >>> squared.value > printed.value, len(printed.warnings)
    (True, 1)
    """
    checked_moments(p, R=radius, M=moment, n=n, epsilon_step=epsilon_step)
    all_probabilities(delta_step=delta_step)
    at_least("d", d, 1)
    log = math.log(1 / delta_step)
    bracket = log + math.sqrt(log * math.log(d))
    power = 1 if as_printed else 2
    return stated(
        "paper 2, Lemma 9, (29)"
        + (", as printed" if as_printed else ", bracket squared as in (28)"),
        "d/n + R^2 d/(n eps_0)^2 (ln(1/delta_0) + sqrt(ln(1/delta_0) ln d)) + d^p R^(2(1-p))",
        {
            "sampling": moment**2 * d / n,
            "noise": radius**2 * d / (n * epsilon_step) ** 2 * bracket**power,
            "clipping": d**p * moment ** (2 * p) * radius ** (2 * (1 - p)),
        },
        order=True,
        assumed=(_MOMENT, _DOMAIN, "Theorem 6, whose privacy claim does not hold"),
        notes=("(29) lacks the square on the bracket that the square of (28) has",)
        if as_printed
        else (),
    )


def iterative_mean_rate(
    radius: float,
    *,
    p: float,
    moment: float,
    n: float,
    d: float,
    epsilon: float,
    delta: float,
    confidence: float,
) -> Bound:
    """Error of the iterative mean under Theorem 5's claim, (18).

    sqrt((d + ln(1/b))/n) + d^(p/2) R^(1-p)
      + R/(n epsilon) sqrt(d + ln(1/b)) (ln(1/delta) + sqrt(ln(1/delta) ln ln(1/b)))

    The noise in it is calibrated with Theorem 6, which is unsound: as a rate of a private estimator
    it is published, not certified.

    >>> found = iterative_mean_rate(50, p=2, moment=1, n=1e6, d=5, epsilon=0.1, delta=1e-6,
    ...                             confidence=0.05)
    >>> round(found.value, 3), len(found.warnings)
    (0.128, 0)
    """
    checked_moments(p, R=radius, M=moment, n=n, d=d, epsilon=epsilon)
    all_probabilities(delta=delta, confidence=confidence)
    if confidence >= 1 / math.e:
        raise ConfigurationError(
            "confidence must be below 1/e, for (18) takes ln ln(1/beta). "
            f"Got {confidence!r} instead."
        )
    spread = d + math.log(1 / confidence)
    log = math.log(1 / delta)
    factor = log + math.sqrt(log * math.log(math.log(1 / confidence)))
    groups = iterative_groups(confidence)
    limit = 8 * math.e**2 * math.sqrt(math.log(4 / delta) / groups)
    return stated(
        "paper 2, Theorem 5, (18)",
        "sqrt((d + ln(1/b))/n) + d^(p/2) R^(1-p) + R sqrt(d + ln(1/b)) (...)/(n epsilon)",
        {
            "sampling": moment * math.sqrt(spread / n),
            "clipping": d ** (p / 2) * moment**p * radius ** (1 - p),
            "noise": radius / (n * epsilon) * math.sqrt(spread) * factor,
        },
        order=True,
        assumed=(_MOMENT, "Theorem 6, whose privacy claim does not hold"),
        conditions=[
            (
                epsilon <= limit,
                "epsilon <= 8 e^2 sqrt(ln(4/delta)/k) with k of Lemma 6",
                f"epsilon = {epsilon:g} is above {limit:.3g}, the largest that Theorem 6 allows",
            ),
            (
                groups <= n,
                f"k = {groups} groups of at least one row",
                f"Lemma 6 asks for {groups} groups of n = {n:g} rows",
            ),
        ],
    )


def iterative_gradient_rate(
    radius: float,
    *,
    p: float,
    moment: float,
    n: float,
    d: float,
    epsilon: float,
    delta: float,
    steps: float,
    confidence: float,
) -> Bound:
    """Error of one gradient estimate of T steps of iterative updating, (28): (18) at (27).

    ``epsilon`` and ``delta`` are those of the whole run.

    >>> found = iterative_gradient_rate(50, p=2, moment=1, n=1e6, d=5, epsilon=0.1, delta=1e-6,
    ...                                 steps=10, confidence=0.05)
    >>> found.source, round(found.value, 2)
    ('paper 2, (28)', 1.12)
    """
    step = per_step_budget(epsilon, delta, steps)
    found = iterative_mean_rate(
        radius,
        p=p,
        moment=moment,
        n=n,
        d=d,
        epsilon=step.epsilon,
        delta=step.delta,
        confidence=confidence,
    )
    return replace(found, source="paper 2, (28)")


def iterative_mean_bound(
    radius: float,
    *,
    p: float,
    moment: float,
    n: float,
    d: float,
    rho: float,
    confidence: float,
    groups: float | None = None,
    constant: float = 1.0,
) -> Bound:
    """(26) with its constants: 6 r_0 of Lemma 8, r_0 of (21), plus the clipping bias of (11).

    6 C_0 (sqrt((d + ln(1/b))/n) + (R/n) sqrt(k/rho) sqrt(d + ln(1/b))) + d^(p/2) M^p R^(1-p)/(p-1).
    C_0 of Lemma 6 is not named: with ``constant=1`` it is a bound up to C_0. ``groups`` None takes
    k = 800 ln(1/b) of Lemma 6; rho is the zCDP budget of one group mean.

    >>> found = iterative_mean_bound(50, p=2, moment=1, n=1e6, d=5, rho=0.5, confidence=0.05)
    >>> round(found.terms["noise"], 3)
    0.059
    """
    k = float(iterative_groups(confidence)) if groups is None else groups
    error = iterative_error(
        radius, p=p, moment=moment, n=n, d=d, rho=rho, beta=confidence, groups=k, constant=constant
    )
    needed = iterative_groups(confidence)
    return stated(
        "paper 2, (26) with (21), Lemma 8 and (11), C_0 as given",
        "6 C_0 (sqrt((d + ln(1/b))/n) + (R/n) sqrt(k (d + ln(1/b))/rho)) + bias",
        {"sampling": error.sampling, "clipping": error.bias, "noise": error.noise},
        assumed=(_MOMENT, "C_0 of Lemma 6, which the paper does not name", "t_c of Lemma 8 steps"),
        conditions=[
            (
                k >= needed,
                "k >= 800 ln(1/b) (Lemma 6)",
                f"k = {k:g} groups, fewer than the {needed} that Lemma 6 asks for",
            ),
            (k <= n, "at least one row per group", f"k = {k:g} groups of n = {n:g} rows"),
        ],
    )
