"""Paper 4 (AClipped-dpSGD): excess risk, gradient complexity and Table 1.

``confidence`` is beta. All rates take the noise of (9) with c = 1 and sensitivity lambda; two
clipped means can be 2 lambda apart, so a certified run has at least twice that noise. Complexities
do not carry epsilon, as printed.
"""

from __future__ import annotations

import math

from winsor.core.checks import all_positive, all_probabilities, at_least
from winsor.core.contract import ConfigurationError
from winsor.tails.theorems.averaged import AclipProblem, aclip_holder, aclip_unconstrained
from winsor_papers.theory.bound import Bound, Condition, stated

_CONVEX = "convex, non-negative losses; grad f(x*) = 0 (Assumption 1)"
_MOMENT = "second moment of the gradient noise bounded by sigma^2 (Assumption 1)"
_SMOOTH = "L-smooth population risk (Assumption 1)"
_NOISE = "noise of (9), for sensitivity lambda: certified runs need twice as much"


def _large_enough(n: float, epsilon: float, d: float) -> Condition:
    return (
        n * epsilon >= math.sqrt(d),
        "n >= sqrt(d)/epsilon",
        f"n epsilon = {n * epsilon:.3g} is below sqrt(d) = {math.sqrt(d):.3g}",
    )


def _budget(n: float, d: float, epsilon: float, delta: float, confidence: float) -> float:
    """ln((n epsilon)^2/(beta d)), which must be positive."""
    all_positive(n=n, d=d, epsilon=epsilon)
    all_probabilities(delta=delta, confidence=confidence)
    ratio = (n * epsilon) ** 2 / (confidence * d)
    if ratio <= 1:
        raise ConfigurationError(
            f"(n epsilon)^2 must exceed beta d, else the bound has no meaning. Got a ratio of "
            f"{ratio:.3g} instead. More rows or a larger epsilon are needed."
        )
    return math.log(ratio)


def aclip_convex_rate(
    *,
    n: float,
    d: float,
    epsilon: float,
    delta: float,
    confidence: float,
    constrained: bool = True,
) -> Bound:
    """Excess risk for convex smooth losses: Theorem 3, (10), or without constraint Theorem 4, (11).

    (d ln(1/delta))^(1/7) ln^a((n epsilon)^2/(beta d)) / (n epsilon)^(2/7), with a = 1/2 on a ball
    about the optimum and a = 1 without constraint. Table 1 prints ln(n/(beta d^2)) for the
    logarithm.

    >>> setting = dict(n=1e5, d=10, epsilon=1, delta=1e-5, confidence=0.05)
    >>> tight, free = (aclip_convex_rate(**setting, constrained=c).value for c in (True, False))
    >>> round(tight, 3), tight < free
    (0.358, True)
    """
    log = _budget(n, d, epsilon, delta, confidence)
    theorem = "Theorem 3, (10)" if constrained else "Theorem 4, (11)"
    value = math.pow(d * math.log(1 / delta), 1 / 7) / math.pow(n * epsilon, 2 / 7)
    value *= math.sqrt(log) if constrained else log
    domain = ("projection on a ball about the optimum (Assumption 2)",) if constrained else ()
    return stated(
        f"paper 4, {theorem}",
        "(d ln(1/delta))^(1/7) ln^a((n eps)^2/(beta d)) / (n eps)^(2/7), a = 1/2 or 1",
        {"risk": value},
        order=True,
        assumed=(_CONVEX, _SMOOTH, _MOMENT, _NOISE, *domain),
        conditions=[_large_enough(n, epsilon, d)],
    )


def aclip_constrained_risk(problem: AclipProblem, *, steps: int, batch_size: float) -> Bound:
    """Theorem 3 before orders are taken: 28 L R^2 ln(4/b)/N + 4 L R^2 m sqrt(16 d N ..)/(n eps).

    The line after (A3), with ln(1/delta) ln(4N/b) under the root; m must be that of Theorem 3.

    >>> problem = AclipProblem(1.0, 1.0, 0.1, 1e6, 5, 1.0, 1e-6)
    >>> sorted(aclip_constrained_risk(problem, steps=20, batch_size=10).terms)
    ['noise', 'start']
    """
    smooth, r, sigma, n, d, epsilon, delta, beta = problem
    all_positive(L=smooth, R=r, sigma=sigma, n=n, d=d, epsilon=epsilon, m=batch_size, N=steps)
    all_probabilities(delta=delta, beta=beta)
    log = math.log(4 / beta)
    root = math.sqrt(16 * d * steps * math.log(1 / delta) * math.log(4 * steps / beta))
    needed = max(1.0, 81 * (steps * sigma / (smooth * r * log)) ** 2 / 2)
    return stated(
        "paper 4, proof of Theorem 3, after (A3)",
        "28 L R^2 ln(4/b)/N + 4 L R^2 m sqrt(16 d N ln(1/delta) ln(4N/b))/(n epsilon)",
        {
            "start": 28 * smooth * r**2 * log / steps,
            "noise": 4 * smooth * r**2 * batch_size * root / (n * epsilon),
        },
        assumed=(_CONVEX, _SMOOTH, _MOMENT, _NOISE, "projection on a ball about the optimum"),
        conditions=[
            (
                batch_size >= needed * (1 - 1e-12),
                "m of Theorem 3",
                f"m = {batch_size:g} is below the {needed:.4g} of Theorem 3",
            ),
        ],
    )


def aclip_unconstrained_risk(
    problem: AclipProblem, *, steps: int, as_printed: bool = False
) -> Bound:
    """Theorem 4 before orders are taken: lambda^2/(2 gamma L^2 N), lambda = 4LR + 2 sqrt(D) (A9).

    The proof goes on with 16 L^2 R^2 + 4 D for lambda^2, which drops the cross term of the square;
    ``as_printed=True`` follows it.

    >>> problem = AclipProblem(1.0, 1.0, 0.1, 1e6, 5, 1.0, 1e-6)
    >>> printed, true = (aclip_unconstrained_risk(problem, steps=20, as_printed=p).value
    ...                  for p in (True, False))
    >>> printed < true
    True
    """
    found = aclip_unconstrained(problem, steps)
    smooth = problem.smoothness
    squared = found.clip**2
    if as_printed:
        root = found.clip / 2 - 2 * smooth * problem.radius  # sqrt(D)
        squared = 16 * (smooth * problem.radius) ** 2 + 4 * root**2
    return stated(
        "paper 4, proof of Theorem 4, after (A9)" + (", as printed" if as_printed else ""),
        "lambda^2/(2 gamma L^2 N)",
        {"risk": squared / (2 * found.step_size * smooth**2 * steps)},
        assumed=(_CONVEX, _SMOOTH, _MOMENT, _NOISE),
        conditions=[
            (
                found.batch_size <= problem.n,
                "m <= n",
                f"m = {found.batch_size:.3g} is above n = {problem.n:g}: not affordable",
            ),
        ],
        notes=("the square of a sum lost its cross term",) if as_printed else (),
    )


def aclip_strongly_convex_rate(
    *,
    n: float,
    d: float,
    epsilon: float,
    delta: float,
    confidence: float,
    smoothness: float,
    strong_convexity: float,
) -> Bound:
    """Excess risk of the restarted method for mu-strongly convex losses: Theorem 6, (12).

    d^(1/2) L^2 sqrt(log n) ln(L/(mu beta)) ln(L/(delta mu)) / (mu^3 n epsilon), with probability
    1 - tau beta over tau runs.

    >>> found = aclip_strongly_convex_rate(n=1e6, d=10, epsilon=1, delta=1e-6, confidence=0.05,
    ...                                    smoothness=2.0, strong_convexity=0.5)
    >>> round(found.value, 4)
    0.0251
    """
    all_positive(n=n, d=d, epsilon=epsilon, L=smoothness, mu=strong_convexity)
    all_probabilities(delta=delta, confidence=confidence)
    if strong_convexity > smoothness:
        raise ConfigurationError(
            f"mu must be at most L = {smoothness!r}. Got {strong_convexity!r} instead."
        )
    at_least("n", n, 2)
    condition = smoothness / strong_convexity
    logs = math.sqrt(math.log(n)) * math.log(condition / confidence) * math.log(condition / delta)
    value = math.sqrt(d) * smoothness**2 * logs / (strong_convexity**3 * n * epsilon)
    return stated(
        "paper 4, Theorem 6, (12)",
        "d^(1/2) L^2 sqrt(log n) ln(L/(mu beta)) ln(L/(delta mu)) / (mu^3 n epsilon)",
        {"risk": value},
        order=True,
        assumed=(_CONVEX, _SMOOTH, _MOMENT, _NOISE, "mu-strongly convex"),
        conditions=[_large_enough(n, epsilon, d)],
    )


def aclip_restart_risk(
    problem: AclipProblem,
    *,
    runs: int,
    steps: float,
    gap: float,
    epsilon_per_run: float,
    delta_per_run: float,
) -> Bound:
    """Theorem 6 before its choice of runs: 2^-tau (f(x0) - f*) + the noise of one run, in order.

    The second term is N0^(5/2) sigma^2 sqrt(d ln(4 N0^2/b) ln(1/d_run))/(n e_run L ln^2(4 N0/b)).

    >>> problem = AclipProblem(1.0, 1.0, 0.1, 1e6, 5, 1.0, 1e-6)
    >>> found = aclip_restart_risk(problem, runs=10, steps=5000, gap=1.0, epsilon_per_run=0.04,
    ...                            delta_per_run=5e-8)
    >>> found.terms["start"] == 2 ** -10
    True
    """
    all_positive(N0=steps, runs=runs, gap=gap, epsilon=epsilon_per_run, n=problem.n, d=problem.d)
    all_probabilities(delta=delta_per_run, beta=problem.beta)
    root = math.sqrt(
        problem.d * math.log(4 * steps**2 / problem.beta) * math.log(1 / delta_per_run)
    )
    noise = steps**2.5 * problem.deviation**2 * root
    noise /= problem.n * epsilon_per_run * problem.smoothness
    return stated(
        "paper 4, Theorem 6, first display",
        "2^-tau (f(x0) - f*) + N0^(5/2) sigma^2 sqrt(d ln(4 N0^2/b) ln(1/d'))"
        "/(n e' L ln^2(4 N0/b))",
        {
            "start": gap / 2**runs,
            "noise": noise / math.log(4 * steps / problem.beta) ** 2,
        },
        order=True,
        assumed=(_CONVEX, _SMOOTH, _MOMENT, _NOISE, "N0/ln(4 N0/b) >= 768 L/mu"),
    )


def aclip_holder_rate(
    exponent: float,
    *,
    n: float,
    d: float,
    epsilon: float,
    delta: float,
    confidence: float,
    holder_constant: float,
    accuracy: float,
) -> Bound:
    """Excess risk when gradients are only (nu, M)-Hoelder near the optimum: Theorem 7, (14).

    The largest of four orders (``terms``); alpha = ``accuracy`` is the theorem's free parameter.
    Probability 1 - N beta.

    >>> found = aclip_holder_rate(0.0, n=1e5, d=10, epsilon=1, delta=1e-5, confidence=0.05,
    ...                           holder_constant=1.0, accuracy=1.0)
    >>> len(found.terms), found.value == max(found.terms.values())
    (4, True)
    """
    log = _budget(n, d, epsilon, delta, confidence)
    all_positive(M=holder_constant, alpha=accuracy)
    if not 0 <= exponent <= 1:
        raise ConfigurationError(f"nu must lie in [0, 1]. Got {exponent!r} instead.")
    nu, m_nu = exponent, holder_constant
    noise, size = d * math.log(1 / delta), n * epsilon
    shrink = math.pow(noise, 1 / 7) / math.pow(size, 2 / 7)
    terms = {
        "first": m_nu ** (2 / (1 + nu)) * shrink / accuracy ** ((1 - nu) / (1 + nu)),
        "second": m_nu * shrink,
        "third": m_nu ** (1 / (1 + nu)) * accuracy ** (nu / (1 + nu)) * math.sqrt(shrink),
        "fourth": shrink**2 * math.sqrt(log) / m_nu,
    }
    return stated(
        "paper 4, Theorem 7, (14)",
        "max of M^(2/(1+nu)) s/alpha^((1-nu)/(1+nu)), M s, M^(1/(1+nu)) alpha^(nu/(1+nu)) sqrt(s), "
        "s^2 sqrt(ln((n eps)^2/(beta d)))/M, with s = (d ln(1/delta))^(1/7)/(n eps)^(2/7)",
        terms,
        value=max(terms.values()),
        order=True,
        assumed=(_CONVEX, _MOMENT, _NOISE, "(nu, M)-Hoelder gradients on the ball of radius 7R"),
        conditions=[_large_enough(n, epsilon, d)],
    )


def aclip_holder_risk(
    problem: AclipProblem, exponent: float, *, accuracy: float, steps: int
) -> Bound:
    """Theorem 7 before orders are taken: 49 R^2 / (gamma N) with the gamma of the theorem.

    Equal to the largest of the four terms with constants that end its proof, since gamma is the
    smallest of four. ``problem.smoothness`` is M_nu.

    >>> problem = AclipProblem(1.0, 1.0, 0.1, 1e6, 5, 1.0, 1e-6)
    >>> aclip_holder_risk(problem, 1.0, accuracy=0.1, steps=50).value > 0
    True
    """
    gamma = aclip_holder(problem, exponent, accuracy=accuracy, steps=steps).step_size
    return stated(
        "paper 4, proof of Theorem 7, after (A19)",
        "C^2 R^2/(gamma N), C = 7",
        {"risk": 49 * problem.radius**2 / (gamma * steps)},
        assumed=(_CONVEX, _MOMENT, _NOISE, "(nu, M)-Hoelder gradients on the ball of radius 7R"),
    )


# -------------------------------------------------------------------------- complexity and Table 1


def aclip_complexity(theorem: int, *, n: float, d: float, condition_number: float = 1.0) -> Bound:
    """Single gradients computed, as an order: Theorems 3, 4, 6 (with L/mu) and 7.

    Theorems 3 and 4: max(n^(2/7) d^(6/7), n^(6/7) d^(4/7)); 6: max(d (L/mu)^2, n d^(1/2));
    7: max(n^(2/7) d^(6/7), n^(4/7) d^(5/7)). The proofs multiply m, d and N, so these count
    coordinates of gradients.

    >>> round(aclip_complexity(3, n=1e7, d=1).value)
    1000000
    """
    all_positive(n=n, d=d, condition_number=condition_number)
    small = n ** (2 / 7) * d ** (6 / 7)
    parts = {
        3: (small, n ** (6 / 7) * d ** (4 / 7)),
        4: (small, n ** (6 / 7) * d ** (4 / 7)),
        6: (d * condition_number**2, n * math.sqrt(d)),
        7: (small, n ** (4 / 7) * d ** (5 / 7)),
    }
    if theorem not in parts:
        raise ConfigurationError(f"theorem must be 3, 4, 6 or 7. Got {theorem!r} instead.")
    single, batches = parts[theorem]
    return stated(
        f"paper 4, Theorem {theorem}, complexity",
        "max(batch of one, larger batches)",
        {"batch of one": single, "larger batches": batches},
        value=max(single, batches),
        order=True,
    )


def aclip_table_1(
    *, n: float, d: float, epsilon: float, confidence: float
) -> dict[str, tuple[Bound, Bound]]:
    """(risk, complexity) of the five lines of Table 1, with constant 1.

    Its logarithm ln(n/(beta d^2)) is that of the table, not the ln((n epsilon)^2/(beta d)) of the
    theorems; where n <= beta d^2 it has no meaning and the table is refused.

    >>> table = aclip_table_1(n=1e6, d=10, epsilon=1, confidence=0.05)
    >>> sorted(table)[-1], len(table)
    ('Wang et al. 2020, constrained', 5)
    """
    all_positive(n=n, d=d, epsilon=epsilon)
    all_probabilities(confidence=confidence)
    if n <= confidence * d**2:
        raise ConfigurationError(
            f"n must exceed beta d^2 = {confidence * d**2:.3g} for the logarithm of Table 1. "
            f"Got {n!r} instead. `aclip_convex_rate` has the theorems' own logarithm."
        )
    log, size = math.log(n / (confidence * d**2)), n * epsilon
    own = d ** (1 / 7) / size ** (2 / 7)
    work = n ** (6 / 7) * d ** (4 / 7)
    lines = {
        "Wang et al. 2020, constrained": (
            d ** (2 / 3) * math.sqrt(log) / math.cbrt(n * epsilon**2),
            n ** (4 / 3) * math.cbrt(d),
        ),
        "Kamath et al. 2022, constrained": (
            d**0.25 * math.log(d * n / confidence) / math.sqrt(size),
            n**2 * d**-1.5,
        ),
        "AClipped-dpSGD, constrained": (own * math.sqrt(log), work),
        "Das et al. 2023, unconstrained": (
            d ** (1 / 6) / (math.sqrt(confidence) * math.cbrt(size)),
            n**2,
        ),
        "AClipped-dpSGD, unconstrained": (own * log, work),
    }
    return {
        name: (
            stated(f"paper 4, Table 1, {name}", "as printed", {"risk": risk}, order=True),
            stated(f"paper 4, Table 1, {name}", "as printed", {"gradients": work}, order=True),
        )
        for name, (risk, work) in lines.items()
    }
