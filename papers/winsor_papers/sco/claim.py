"""What Theorem 6 of heavy-tailed DP-SCO claims: shuffling that nobody does, by ignoring the order.

    published   (epsilon, delta) for one round of k group means, each rho-zCDP, at rho of (20), if
                the estimator ignores their order, as though the groups had been shuffled
    certified   one rho-zCDP release: a record touches one group mean (`parallel_history`)

The randomiser of a group is private for a change of one of its records, not of the whole group,
which the shuffling theorem needs.
"""

from __future__ import annotations

import math

from dp_accounting.dp_event import GaussianDpEvent
from scipy import optimize

from winsor.core.accounting import History
from winsor.core.contract import ConfigurationError
from winsor_papers.published import PublishedClaim

DOUBTS = (
    "the shuffling theorem needs each randomiser to be private for any change of its whole "
    "input; a group mean is rho-zCDP for one record of its group only",
    "fixed groups, one at -R and all others at +R: the smallest group mean ignores the "
    "order and equals the first, so nothing is amplified",
)


def largest_epsilon(k: int, delta: float) -> float:
    """The condition of Theorem 6: epsilon <= 8 e^2 sqrt(ln(4/delta)/k)."""
    return 8 * math.e**2 * math.sqrt(math.log(4 / delta) / k)


def theorem_6_rho(epsilon: float, delta: float, k: int) -> float:
    """rho of (20): the zCDP of one group mean at which Theorem 6 claims (epsilon, delta)."""
    log = math.log(8 / delta) * (1 + 2 * math.sqrt(math.log(12 * k / delta))) ** 2
    return epsilon**2 * k / (64 * math.e**4 * log)


def theorem_6_claim(rho: float, delta: float, k: int) -> PublishedClaim:
    """What Theorem 6 claims for one round of k group means, each rho-zCDP."""
    ceiling = largest_epsilon(k, delta)
    gap = lambda epsilon: theorem_6_rho(epsilon, delta, k) - rho  # noqa: E731
    if gap(ceiling) < 0:
        raise ConfigurationError(
            f"rho must be at most {theorem_6_rho(ceiling, delta, k):.3g} for Theorem 6 with k = {k}"
            f". Got {rho!r} instead."
        )
    epsilon = float(optimize.brentq(gap, 0.0, ceiling))
    statement = f"Theorem 6 with k = {k}"
    return PublishedClaim(epsilon, delta, "heavy-tailed DP-SCO", statement, DOUBTS)


def parallel_history(rho: float, rounds: int = 1) -> History:
    """What the same group means certify: one record touches one of them per round."""
    return [(GaussianDpEvent(1 / math.sqrt(2 * rho)), rounds)]
