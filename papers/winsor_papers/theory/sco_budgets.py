"""Paper 2 (heavy-tailed DP-SCO): conversions and compositions of budgets, as its Lemma 1 has them.

Arithmetic of the paper, for its own formulas. Certified runs convert and compose exactly
(`winsor.core.accounting`).
"""

from __future__ import annotations

import math

from winsor.core.checks import all_positive, all_probabilities, at_least
from winsor.core.contract import ConfigurationError
from winsor.tails.theorems.sco import ZcdpBudget


def dp_to_zcdp(epsilon: float) -> float:
    """rho of a pure epsilon-DP algorithm: epsilon^2 / 2 (Lemma 1(3)).

    >>> dp_to_zcdp(1.0)
    0.5
    """
    all_positive(epsilon=epsilon)
    return epsilon**2 / 2


def compose_zcdp(rho: float, steps: float) -> float:
    """k algorithms, each rho-zCDP, are k rho-zCDP together (Lemma 1(2)).

    >>> compose_zcdp(0.01, 10)
    0.1
    """
    all_positive(rho=rho, k=steps)
    return steps * rho


def advanced_composition(epsilon: float, delta: float, steps: float, slack: float) -> ZcdpBudget:
    """k steps of (epsilon, delta): (sqrt(2k ln(1/d')) epsilon + k epsilon (e^epsilon - 1),
    k delta + d') (Lemma 1(1), paper 5's Theorem 2.1), with d' = ``slack``.

    >>> round(advanced_composition(0.01, 1e-9, 100, 1e-6).epsilon, 3)
    0.536
    """
    all_positive(epsilon=epsilon, k=steps)
    all_probabilities(slack=slack)
    if not 0 <= delta < 1:
        raise ConfigurationError(f"delta must be in [0, 1). Got {delta!r} instead.")
    grown = math.sqrt(2 * steps * math.log(1 / slack)) * epsilon
    return ZcdpBudget(grown + steps * epsilon * math.expm1(epsilon), steps * delta + slack)


def per_step_budget(epsilon: float, delta: float, steps: float) -> ZcdpBudget:
    """(epsilon, delta) of each of T steps: epsilon/(2 sqrt(2T ln(2/delta))), delta/(2T) (27).

    Advanced composition with slack delta/2 brings T of them back to at most (epsilon, delta) while
    epsilon <= 1 or so. Certified runs compose exactly instead.

    >>> step = per_step_budget(1.0, 1e-6, 100)
    >>> whole = advanced_composition(step.epsilon, step.delta, 100, 5e-7)
    >>> whole.epsilon <= 1.0, round(whole.delta * 1e6, 6)
    (True, 1.0)
    """
    all_positive(epsilon=epsilon)
    all_probabilities(delta=delta)
    at_least("T", steps, 1)
    each = epsilon / (2 * math.sqrt(2 * steps * math.log(2 / delta)))
    return ZcdpBudget(each, delta / (2 * steps))


def zcdp_budget(epsilon: float, delta: float) -> float:
    """rho of (12): epsilon^2 / (1 + 2 sqrt(ln(1/delta)))^2, for epsilon <= 1 (Theorem 3)."""
    all_positive(epsilon=epsilon)
    all_probabilities(delta=delta)
    if epsilon > 1:
        raise ConfigurationError(
            f"epsilon must be at most 1 for (12). Got {epsilon!r} instead. Use `zcdp_budget_exact`."
        )
    return (epsilon / (1 + 2 * math.sqrt(math.log(1 / delta)))) ** 2
