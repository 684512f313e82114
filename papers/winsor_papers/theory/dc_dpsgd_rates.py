"""Paper 1 (DC-DPSGD): what its theorems promise about gradients of the empirical risk.

All rates bound (1/T) sum_t min(|grad L|, |grad L|^2) with probability 1 - ``failure``, the delta of
the convergence statement (the paper uses one letter for it and for the privacy delta). The paper
gives orders only. They need theta, n, d, epsilon and T; `winsor_papers.theory.dc_dpsgd_steps` has
its T.
"""

from __future__ import annotations

import math

from winsor.core.checks import all_positive, all_probabilities, choice
from winsor.rules.body_and_tail import checked_tail
from winsor_papers.theory.bound import Bound, Condition, stated

_TAIL = "gradient noise sub-Weibull(theta, K) (Assumption 3.1)"
_SMOOTH = "beta-smooth loss (Assumption 3.2)"
_BOUNDED = "|grad L|^2 <= G (Assumption 3.3)"


def _factors(
    theta: float, steps: float, failure: float, n: float, d: float, epsilon: float
) -> dict[str, float]:
    """privacy, high probability, heavy tail and clipping: the factors of Theorem 4.1."""
    checked_tail(theta, failure, T=steps, n=n, d=d, epsilon=epsilon)
    log = math.log(steps / failure)
    return {
        "privacy": math.pow(d * log, 0.25) / math.sqrt(n * epsilon),
        "probability": log,
        "heavy tail": math.pow(log, max(0.0, theta - 1)),
        "clipping": math.pow(math.log(math.sqrt(steps)), 2 * theta),
    }


def _long_enough(steps: float) -> Condition:
    return (
        steps >= math.e**2,
        "T >= e^2, so that log(sqrt T) >= 1",
        f"T = {steps:.3g} is below e^2: log(sqrt T) < 1 makes the order look better than it is",
    )


def _rate(source: str, factors: dict[str, float], steps: float, *assumed: str) -> Bound:
    return stated(
        source,
        "d^(1/4) log^(5/4)(T/f) log^max(0, theta-1)(T/f) log^(2 theta)(sqrt T) / (n epsilon)^(1/2)",
        factors,
        value=math.prod(factors.values()),
        order=True,
        assumed=assumed,
        conditions=[_long_enough(steps)],
    )


def heavy_tailed_dpsgd_rate(
    theta: float, *, n: float, d: float, epsilon: float, steps: float, failure: float
) -> Bound:
    """Rate of DP-SGD with one threshold under a sub-Weibull tail (Theorem 4.1, proof (48)).

    d^(1/4) log^(5/4)(T/f) log^max(0, theta-1)(T/f) log^(2 theta)(sqrt T) / sqrt(n epsilon): the
    terms are its factors. Table 1 prints it without one factor log(T/f).

    >>> rate = heavy_tailed_dpsgd_rate(1.0, n=6e4, d=1e3, epsilon=3, steps=500, failure=0.05)
    >>> round(rate.value, 1), rate.is_order
    (2.1, True)
    """
    factors = _factors(theta, steps, failure, n, d, epsilon)
    return _rate("paper 1, Theorem 4.1", factors, steps, _TAIL, _SMOOTH)


def discriminative_rate(
    region: str,
    theta: float,
    *,
    n: float,
    d: float,
    epsilon: float,
    steps: float,
    failure: float,
) -> Bound:
    """Rate of discriminative clipping in the heavy ``"tail"`` or the light ``"body"`` (Thm 5.3).

    In the tail it is that of Theorem 4.1; in the body theta is replaced by 1/2.

    >>> setting = dict(n=6e4, d=1e3, epsilon=3, steps=500, failure=0.05)
    >>> tail, body = (discriminative_rate(r, 2.0, **setting).value for r in ("tail", "body"))
    >>> tail > body
    True
    """
    choice("region", region, ("tail", "body"))
    checked_tail(theta, failure, T=steps, n=n, d=d, epsilon=epsilon)
    factors = _factors(theta if region == "tail" else 0.5, steps, failure, n, d, epsilon)
    number = "i" if region == "tail" else "ii"
    return _rate(f"paper 1, Theorem 5.3 ({number})", factors, steps, _TAIL, _SMOOTH, _BOUNDED)


def discriminative_uniform_rate(
    tail_fraction: float,
    theta: float,
    *,
    n: float,
    d: float,
    epsilon: float,
    steps: float,
    failure: float,
) -> Bound:
    """p times the tail rate plus 1 - p times the body rate (Theorem 5.4).

    With probability 1 - f - f_m, where f_m is the chance that Theorem 5.2 fails to tell tail from
    body. The main text defines its left side without the factor 1/T that Theorem F.1 has.

    >>> setting = dict(n=6e4, d=1e3, epsilon=3, steps=500, failure=0.05)
    >>> sorted(discriminative_uniform_rate(0.1, 2.0, **setting).terms)
    ['body', 'tail']
    """
    all_probabilities(p=tail_fraction)
    rates = {
        region: discriminative_rate(
            region, theta, n=n, d=d, epsilon=epsilon, steps=steps, failure=failure
        ).value
        for region in ("tail", "body")
    }
    return stated(
        "paper 1, Theorem 5.4",
        "p tail rate + (1 - p) body rate",
        {"tail": tail_fraction * rates["tail"], "body": (1 - tail_fraction) * rates["body"]},
        order=True,
        assumed=(_TAIL, _SMOOTH, _BOUNDED, "tail and body were told apart (Theorem 5.2)"),
        conditions=[
            _long_enough(steps),
            (
                0.05 <= tail_fraction <= 0.1,
                "p in [5 %, 10 %]",
                f"p = {tail_fraction:g} is outside the 5 to 10 % that the paper takes for a tail",
            ),
        ],
    )


# ------------------------------------------------------------------------------- Theorem 5.1, 5.2


def split_noise_multiplier(
    epsilon_part: float, *, sampling_rate: float, steps: float, delta: float, m2: float = 1.0
) -> float:
    """sigma_tr or sigma_dp of Theorem 5.1: sqrt(m2 T ln(1/delta)) q / epsilon of that part.

    m2 is an unnamed constant of the paper. Published, not certified.

    >>> round(split_noise_multiplier(4.0, sampling_rate=0.002, steps=1e4, delta=1e-5), 4)
    0.1697
    """
    all_positive(epsilon=epsilon_part, q=sampling_rate, T=steps, m2=m2)
    all_probabilities(delta=delta)
    return math.sqrt(m2 * steps * math.log(1 / delta)) * sampling_rate / epsilon_part


def subspace_skewing(
    directions: float,
    *,
    d: float,
    batch_size: float,
    failure_matrix: float,
    failure_noise: float,
    m2: float = 1.0,
) -> Bound:
    """Error of a noisy trace as printed: 4 log(2d/f_m)/k + m2 sqrt(B log(1/f_tr)/d) (Theorem 5.2).

    The proof does not give this: see `subspace_skewing_corrected`.

    >>> found = subspace_skewing(200, d=1e4, batch_size=128, failure_matrix=0.05,
    ...                          failure_noise=0.05)
    >>> round(found.value, 3), len(found.warnings)
    (0.454, 2)
    """
    all_positive(k=directions, d=d, B=batch_size, m2=m2)
    all_probabilities(failure_matrix=failure_matrix, failure_noise=failure_noise)
    return stated(
        "paper 1, Theorem 5.2, as printed",
        "4 log(2d/f_m)/k + m2 sqrt(B) log^(1/2)(1/f_tr) / d^(1/2)",
        {
            "subspace": 4 * math.log(2 * d / failure_matrix) / directions,
            "noise": m2 * math.sqrt(batch_size * math.log(1 / failure_noise) / d),
        },
        assumed=("T = n epsilon_tr / sqrt(d log(1/delta)) >= 1",),
        conditions=[
            (directions <= d, "k <= d", f"k = {directions:g} directions in d = {d:g} dimensions"),
        ],
        notes=(
            "(49) takes a difference of squared norms to be at most the squared norm of the "
            "difference, which is false: the first term is the square of the true one",
            "sigma_tr is taken as m2 sqrt(T B log(1/delta))/(n epsilon), where Theorem 5.1 has "
            "sqrt(m2 T log(1/delta)) B/(n epsilon)",
        ),
    )


def subspace_skewing_corrected(
    directions: float,
    *,
    d: float,
    noise: float,
    failure_matrix: float,
    failure_noise: float,
) -> Bound:
    """What the proof of Theorem 5.2 gives: 2 sqrt(log(2d/f_m)/k) + sigma_tr sqrt(2 log(2/f_tr)).

    A trace is g'Mg with |g| = 1, so |g'(M - E M)g| <= |M - E M|, which (53) bounds; ``noise`` is
    the standard deviation of the trace noise, whose Gaussian tail is the second term. A trace lies
    in [0, 1]: a bound above 1 says nothing.

    >>> found = subspace_skewing_corrected(200, d=1e4, noise=0.17, failure_matrix=0.05,
    ...                                    failure_noise=0.05)
    >>> round(found.terms["subspace"], 3)
    0.508
    """
    all_positive(k=directions, d=d, noise=noise)
    all_probabilities(failure_matrix=failure_matrix, failure_noise=failure_noise)
    terms = {
        "subspace": 2 * math.sqrt(math.log(2 * d / failure_matrix) / directions),
        "noise": noise * math.sqrt(2 * math.log(2 / failure_noise)),
    }
    return stated(
        "paper 1, Theorem 5.2, as its proof gives it",
        "2 sqrt(log(2d/f_m)/k) + sigma_tr sqrt(2 log(2/f_tr))",
        terms,
        assumed=("independent directions; Algorithm 1 makes them orthogonal afterwards",),
        conditions=[
            (
                sum(terms.values()) < 1,
                "below 1, the largest trace",
                "above 1, the largest trace: the bound says nothing here",
            ),
        ],
    )


# --------------------------------------------------------------------------------------- Table 1


def dc_dpsgd_table_1(
    theta: float,
    *,
    n: float,
    d: float,
    epsilon: float,
    steps: float,
    failure: float,
    tail_fraction: float = 0.1,
    public_dimension: float = 1.0,
) -> dict[str, Bound]:
    """The rates that Table 1 sets side by side, each as printed there, with constant 1.

    The first root of Yang et al. is read as the fourth root of d log(T/f): the comparison under
    Theorem 4.1 needs it. The last two lines lack the factor log(T/f) of Theorems 4.1 and 5.4.

    >>> table = dc_dpsgd_table_1(1.0, n=6e4, d=1e3, epsilon=3, steps=500, failure=0.05)
    >>> len(table), table["DC-DPSGD"].value < table["heavy-tailed DPSGD"].value
    (9, True)
    """
    part = _factors(theta, steps, failure, n, d, epsilon)
    all_positive(k=public_dimension)
    all_probabilities(p=tail_fraction)
    log, sure, root = math.log(steps / failure), math.log(1 / failure), math.sqrt(steps)
    heavy = part["heavy tail"]
    flat = part["privacy"] * heavy * part["clipping"]
    body = part["privacy"] * math.log(root)
    values = {
        "Yang et al. 2022, DPSGD": part["privacy"],
        "Bu et al. 2024, DPSGD": math.sqrt(d) / (n * epsilon),
        "Bu et al. 2024, SGD": d / math.cbrt(steps),
        "Zhou et al. 2021, DPSGD": public_dimension / (n * epsilon),
        "Madden et al. 2020, SGD": (
            math.sqrt(math.log(steps)) * math.pow(sure, theta) + heavy * sure
        ) / root,
        "Li & Liu 2022, SGD": (
            math.pow(sure, 2 * theta) * math.log(steps) + heavy * sure
        ) / root,
        "Li & Liu 2022, clipped SGD": (
            math.pow(log, theta) * math.log(steps) + math.pow(math.log(steps), 2 * theta + 1) * log
        ) / root,
        "heavy-tailed DPSGD": flat,
        "DC-DPSGD": tail_fraction * flat + (1 - tail_fraction) * body,
    }  # fmt: skip
    return {
        name: stated(f"paper 1, Table 1, {name}", "as printed", {name: value}, order=True)
        for name, value in values.items()
    }
