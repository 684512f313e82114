"""Paper 4 (AClipped-dpSGD): clipping level lambda, batch size m, step gamma and steps N.

The theorems take the noise of (9) with its constant c = 1 and sensitivity lambda. The range of a
clipped mean has diameter 2 lambda, so a certified run adds at least twice that noise; the
formulas are advice about lambda, m, gamma and N only. (Equation (9) prints T for N.)

Constants that the theorems hide behind a proportionality sign are taken from the proofs: 648 in D
of Theorem 4 (before (A7)), 108 in D of Theorem 7. R is a public upper bound on the distance from
the start to the optimum, sigma^2 bounds E|grad f(x, xi) - grad f(x)|^2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from winsor.core.checks import all_positive, all_probabilities
from winsor.core.contract import ConfigurationError


class AclipProblem(NamedTuple):
    """What the theorems of paper 4 need to know about the problem and the budget."""

    smoothness: float  # L
    radius: float  # R >= |x0 - x*|
    deviation: float  # sigma
    n: float
    d: float
    epsilon: float
    delta: float
    beta: float = 0.05
    """The bounds hold with probability 1 - beta (Theorem 7: 1 - N beta)."""


class AclipParameters(NamedTuple):
    """Clipping level lambda of the batch mean, batch size m, step size gamma, iterations N."""

    clip: float
    batch_size: float
    step_size: float
    steps: int


class RestartSchedule(NamedTuple):
    """Theorem 6: ``runs`` runs of ``steps`` iterations, with one (lambda_t, m_t) per run."""

    runs: int
    steps: int
    step_size: float
    clips: tuple[float, ...]
    batch_sizes: tuple[float, ...]
    epsilon_per_run: float
    delta_per_run: float


def _check(problem: AclipProblem) -> None:
    all_positive(
        L=problem.smoothness,
        R=problem.radius,
        sigma=problem.deviation,
        n=problem.n,
        d=problem.d,
        epsilon=problem.epsilon,
    )
    all_probabilities(delta=problem.delta, beta=problem.beta)


def aclip_steps(problem: AclipProblem) -> int:
    """Return N = (n epsilon / sqrt(d ln(1/delta)))^(2/7) with the factors the proof balances.

    The proof of Theorem 3 (after (A3)) equates L R^2 ln(4/beta) / N with
    N^(5/2) sigma^2 sqrt(d ln(1/delta)) / (n epsilon L), hence
    N^(7/2) = (L R / sigma)^2 ln(4/beta) n epsilon / sqrt(d ln(1/delta)).
    The statement hides everything but the last factor in O-tilde.
    """
    _check(problem)
    budget = problem.n * problem.epsilon / math.sqrt(problem.d * math.log(1 / problem.delta))
    shape = (problem.smoothness * problem.radius / problem.deviation) ** 2
    return max(1, math.ceil(math.pow(shape * math.log(4 / problem.beta) * budget, 2 / 7)))


def aclip_constrained(problem: AclipProblem, steps: int | None = None) -> AclipParameters:
    """Apply Theorem 3 (projection on a ball of radius R about the optimum).

    lambda = 2LR, m = 81 N^2 sigma^2 / (2 L^2 R^2 ln^2(4/beta)), gamma = 1 / (2 L ln(4/beta)).
    """
    _check(problem)
    steps = aclip_steps(problem) if steps is None else steps
    log, lr = math.log(4 / problem.beta), problem.smoothness * problem.radius
    batch = max(1.0, 81 * (steps * problem.deviation / (lr * log)) ** 2 / 2)
    return AclipParameters(2 * lr, batch, 1 / (2 * problem.smoothness * log), steps)


def _unconstrained(problem: AclipProblem, steps: int) -> AclipParameters:
    log = math.log(4 * steps / problem.beta)
    gamma = 1 / (24 * problem.smoothness * log)
    root = math.sqrt(
        problem.d * steps * math.log(4 * steps**2 / problem.beta) * math.log(1 / problem.delta)
    )
    spread = 648 * gamma * problem.smoothness * steps**3 * problem.deviation**2 * root
    spread /= problem.n * problem.epsilon * log**2
    clip = 4 * problem.smoothness * problem.radius + 2 * math.sqrt(spread)
    batch = max(1.0, 162 * (steps * problem.deviation / (clip * log)) ** 2)
    return AclipParameters(clip, batch, gamma, steps)


def aclip_unconstrained(problem: AclipProblem, steps: int | None = None) -> AclipParameters:
    """Apply Theorem 4 (no constraint).

    lambda = 4LR + 2 sqrt(D), m = 162 N^2 sigma^2 / (lambda^2 ln^2(4N/beta)),
    gamma = 1 / (24 L ln(4N/beta)),
    D = 648 gamma L N^3 sigma^2 sqrt(d N ln(4N^2/beta) ln(1/delta)) / (n epsilon ln^2(4N/beta)).

    D is derived with m > 1; where the formula gives m = 1 the bound behind lambda is only
    heuristic.
    """
    _check(problem)
    return _unconstrained(problem, aclip_steps(problem) if steps is None else steps)


def _restart_steps(problem: AclipProblem, strong_convexity: float) -> int:
    """Smallest N0 with N0 / ln(4 N0/beta) >= 768 L/mu (c-hat = 1, as R is an upper bound)."""
    target = 768 * problem.smoothness / strong_convexity
    steps = max(1.0, target)
    for _ in range(200):  # a contraction once N0 > e: the logarithm's slope is below 1/2 there
        steps = target * math.log(4 * steps / problem.beta)
    return math.ceil(steps)


def aclip_restarts(
    problem: AclipProblem, strong_convexity: float, runs: int | None = None
) -> RestartSchedule:
    """Apply Theorem 6 (mu-strongly convex): tau runs of Theorem 4, each halving the risk.

    N0 / ln(4 N0/beta) >= 768 L/mu; run t uses R_t in lambda_t = 4 L R_t + 2 sqrt(D). The risk
    halves per run, so |x_t - x*|^2 <= (2/mu) 2^-t (f(x0) - f*) <= (L/mu) 2^-t R^2, and
    R_t = R min(1, sqrt(L/mu) 2^(-t/2)). ``runs`` defaults to ceil(log2 n), which brings the first
    term of the bound below 1/n; the theorem prints O((L/mu) log n), more than its own bound needs.
    The budget per run is Theorem 5's advanced composition, epsilon/(2 sqrt(2 tau ln(2/delta))) and
    delta/(2 tau), and only sizes D: certified runs compose all events exactly.
    """
    _check(problem)
    all_positive(mu=strong_convexity)
    if strong_convexity > problem.smoothness:
        raise ConfigurationError(
            f"mu must be at most L = {problem.smoothness!r}. Got {strong_convexity!r} instead."
        )
    runs = max(1, math.ceil(math.log2(problem.n))) if runs is None else runs
    epsilon = problem.epsilon / (2 * math.sqrt(2 * runs * math.log(2 / problem.delta)))
    each = problem._replace(epsilon=epsilon, delta=problem.delta / (2 * runs))
    steps = _restart_steps(problem, strong_convexity)
    condition = math.sqrt(problem.smoothness / strong_convexity)
    radii = [problem.radius * min(1.0, condition * 2 ** (-t / 2)) for t in range(runs)]
    each_run = [_unconstrained(each._replace(radius=radius), steps) for radius in radii]
    return RestartSchedule(
        runs=runs,
        steps=steps,
        step_size=each_run[0].step_size,
        clips=tuple(run.clip for run in each_run),
        batch_sizes=tuple(run.batch_size for run in each_run),
        epsilon_per_run=epsilon,
        delta_per_run=each.delta,
    )


def aclip_holder(
    problem: AclipProblem, exponent: float, *, accuracy: float, steps: int | None = None
) -> AclipParameters:
    """Apply Theorem 7: gradients that are (nu, M_nu)-Hoelder on a ball of radius 7R.

    ``problem.smoothness`` is M_nu, ``exponent`` nu, ``accuracy`` alpha.
    lambda = 2 M 7^nu R^nu, m = 27 N sigma^2 / (lambda^2 ln(8/beta)), and gamma is the smallest of
    alpha^((1-nu)/(1+nu)) / (8 M^(2/(1+nu))), R / (sqrt(2N) alpha^(nu/(1+nu)) M^(1/(1+nu))),
    R / (2 lambda ln(8/beta)), lambda R / (2 D N),
    with D = 108 N^1.5 sigma^2 sqrt(d ln(8N/beta) ln(1/delta)) / (n epsilon ln(8/beta)).

    The appendix prints M^(1/(1+nu)) in the first term and 2 sqrt(N) in one use of the second; the
    statement's exponent is the one its proof needs, and (A18) has room for its sqrt(2N).
    """
    _check(problem)
    all_positive(alpha=accuracy)
    if not 0 <= exponent <= 1:
        raise ConfigurationError(f"nu must lie in [0, 1]. Got {exponent!r} instead.")
    steps = aclip_steps(problem) if steps is None else steps
    m_nu, nu, log = problem.smoothness, exponent, math.log(8 / problem.beta)
    clip = 2 * m_nu * (7 * problem.radius) ** nu
    batch = max(1.0, 27 * steps * problem.deviation**2 / (clip**2 * log))
    root = math.sqrt(problem.d * math.log(8 * steps / problem.beta) * math.log(1 / problem.delta))
    noise = 108 * steps**1.5 * problem.deviation**2 * root / (problem.n * problem.epsilon * log)
    step_size = min(
        accuracy ** ((1 - nu) / (1 + nu)) / (8 * m_nu ** (2 / (1 + nu))),
        problem.radius
        / (math.sqrt(2 * steps) * accuracy ** (nu / (1 + nu)) * m_nu ** (1 / (1 + nu))),
        problem.radius / (2 * clip * log),
        clip * problem.radius / (2 * noise * steps),
    )
    return AclipParameters(clip, batch, step_size, steps)
