"""Paper 2 (heavy-tailed DP-SCO): excess risk of its two methods, the lower bound and Table 1.

Orders with constant 1. ``moment`` is M of Assumption 1c: the paper prints M = 1, and rescaling the
losses by M gives the factor M.
"""

from __future__ import annotations

import math

from winsor.core.checks import all_probabilities, at_least
from winsor.tails.theorems.sco import (
    checked_moments,
)
from winsor_papers.theory.bound import Bound, Condition, stated

_MOMENT = "E|<u, grad l>|^p <= M^p for every unit u (Assumption 1c)"
_DOMAIN = "convex loss on a set of diameter L (Assumption 1a)"
_SMOOTH = "lambda-smooth population risk (Assumption 1b)"


def _small(epsilon: float, theorem: str) -> Condition:
    return (
        epsilon <= 1,
        "epsilon <= 1",
        f"epsilon = {epsilon:g} is above 1, where {theorem} is not proved",
    )


def minimax_risk(p: float, *, n: float, d: float, epsilon: float, delta: float) -> Bound:
    """Worst-case risk that no private method beats, up to constants (Theorem 1, (4)).

    sqrt(d/n) + sqrt(d) (sqrt(d)/(n epsilon))^(1 - 1/p) ln(1/delta). Table 1 and the abstract print
    it without ln(1/delta).

    >>> round(minimax_risk(2, n=1e5, d=5, epsilon=1, delta=1e-5).value, 3)
    0.129
    """
    checked_moments(p, n=n, d=d, epsilon=epsilon)
    all_probabilities(delta=delta)
    return stated(
        "paper 2, Theorem 1, (4), lower bound",
        "sqrt(d/n) + sqrt(d) (sqrt(d)/(n epsilon))^(1-1/p) ln(1/delta)",
        {
            "sampling": math.sqrt(d / n),
            "privacy": math.sqrt(d)
            * math.pow(math.sqrt(d) / (n * epsilon), 1 - 1 / p)
            * math.log(1 / delta),
        },
        order=True,
        assumed=(_MOMENT, "M = 1", _DOMAIN, _SMOOTH),
    )


def simple_clipping_rate(
    p: float, *, n: float, d: float, epsilon: float, delta: float, moment: float = 1.0
) -> Bound:
    """Excess risk of simple clipping with the parameters of Theorem 4: (17).

    sqrt(d ln n / n) + sqrt(d) (sqrt(d ln(1/delta))/(n epsilon))^(1 - 1/p)
      + d^(3/2 - 1/p) ln n / n^(1 - 1/p)

    The last term is the price of the sub-exponential tail; it does not dominate while
    epsilon <= 1/sqrt(d).

    >>> rate = simple_clipping_rate(2, n=1e5, d=4, epsilon=0.5, delta=1e-6)
    >>> round(rate.value, 3), rate.warnings
    (0.191, ())
    """
    checked_moments(p, n=n, d=d, epsilon=epsilon, M=moment)
    all_probabilities(delta=delta)
    at_least("n", n, 2)
    relative = math.sqrt(d * math.log(1 / delta)) / (n * epsilon)
    return stated(
        "paper 2, Theorem 4, (17)",
        "sqrt(d ln n/n) + sqrt(d) (sqrt(d ln(1/delta))/(n eps))^(1-1/p) "
        "+ d^(3/2-1/p) ln n/n^(1-1/p)",
        {
            "sampling": moment * math.sqrt(d * math.log(n) / n),
            "privacy": moment * math.sqrt(d) * math.pow(relative, 1 - 1 / p),
            "tail": moment * d ** (1.5 - 1 / p) * math.log(n) / n ** (1 - 1 / p),
        },
        order=True,
        assumed=(_MOMENT, _DOMAIN, _SMOOTH),
        conditions=[
            _small(epsilon, "(12)"),
            (
                epsilon <= 1 / math.sqrt(d),
                "epsilon <= 1/sqrt(d): minimax up to logarithms",
                f"epsilon = {epsilon:g} is above 1/sqrt(d) = {1 / math.sqrt(d):.3g}: not minimax",
            ),
        ],
    )


def iterative_updating_rate(
    p: float, *, n: float, d: float, epsilon: float, delta: float, moment: float = 1.0
) -> Bound:
    """Excess risk of iterative updating with the parameters of Theorem 7.

    sqrt(d/n) + sqrt(d) (sqrt(d)/(n epsilon))^(1 - 1/p) ln(1/delta) ln(n d). It rests on Theorem 6,
    whose amplification does not hold.

    >>> round(iterative_updating_rate(2, n=1e5, d=4, epsilon=0.5, delta=1e-6).value, 2)
    2.26
    """
    checked_moments(p, n=n, d=d, epsilon=epsilon, M=moment)
    all_probabilities(delta=delta)
    return stated(
        "paper 2, Theorem 7",
        "sqrt(d/n) + sqrt(d) (sqrt(d)/(n epsilon))^(1-1/p) ln(1/delta) ln(n d)",
        {
            "sampling": moment * math.sqrt(d / n),
            "privacy": moment
            * math.sqrt(d)
            * math.pow(math.sqrt(d) / (n * epsilon), 1 - 1 / p)
            * math.log(1 / delta)
            * math.log(n * d),
        },
        order=True,
        assumed=(_MOMENT, _DOMAIN, _SMOOTH, "Theorem 6, whose privacy claim does not hold"),
        conditions=[_small(epsilon, "Theorem 7")],
    )


def sco_table_1(p: float, *, n: float, d: float, epsilon: float) -> dict[str, Bound]:
    """The risks of Table 1, logarithms left out, each with constant 1.

    >>> table = sco_table_1(2, n=1e6, d=10, epsilon=0.1)
    >>> table["iterative updating"].value == table["lower bound"].value
    True
    """
    checked_moments(p, n=n, d=d, epsilon=epsilon)
    privacy = math.sqrt(d) * math.pow(math.sqrt(d) / (epsilon * n), 1 - 1 / p)
    optimal = math.sqrt(d / n) + privacy
    exponents = [0.5 + step / 200 for step in range(301)]  # q in [0.5, 2]
    second = min(
        d ** ((3 - q) / 2) / math.sqrt(n) + d ** ((1 + q) / 2) / math.sqrt(epsilon * n)
        for q in exponents
    )
    values = {
        "Wang et al. 2020": math.cbrt(d**3 / (epsilon**2 * n)),
        "Kamath et al. 2022, first": d / math.sqrt(n)
        + math.sqrt(d) * math.pow(d**1.5 / (epsilon * n), 1 - 1 / p),
        "Kamath et al. 2022, second": second,
        "simple clipping": optimal + d ** (1.5 - 1 / p) / n ** (1 - 1 / p),
        "iterative updating": optimal,
        "lower bound": optimal,
    }
    return {
        name: stated(f"paper 2, Table 1, {name}", "as printed", {name: value}, order=True)
        for name, value in values.items()
    }
