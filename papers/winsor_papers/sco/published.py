"""Paper 2 as printed: its noise, its budgets, its claims, each by the name of its theorem.

    theorem_3       T steps of simple clipping: rho of (12), noise s^2 = 2 R^2 T / (rho n^2)
    theorem_6_mean  Algorithm 3 once: noise s^2 = 2 R^2 / (rho m^2) on each group mean, rho of (20)
    theorem_7       T steps of Algorithm 3: (epsilon_0, delta_0) of (27) for each, (20) at those

The noise goes through winsor's door like any other, on a partition and under replace-one, which is
what the paper counts. So every run has two accounts that cannot be confused: the `PublishedClaim`,
and in the ledger what the same noise certifies. Theorem 3 is sound, with more noise than its
epsilon needs. Theorem 6 does not hold (`claim.py`, `attacks.py`), and (27) composes it: for a few
groups the claim is far above the certified epsilon, for very many it is below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from winsor.core.accounting import History
from winsor.core.checks import positive, probability, whole
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.tables.linear.simple import Iterative, Simple
from winsor.tables.means.iterative import iterative_mean
from winsor.tables.means.result import MeanEstimate
from winsor_papers.published import PublishedClaim
from winsor_papers.sco.claim import (
    DOUBTS,
    largest_epsilon,
    parallel_history,
    theorem_6_claim,
    theorem_6_rho,
)
from winsor_papers.theory import iterative_groups, per_step_budget, zcdp_budget

PAPER = "heavy-tailed DP-SCO"


@dataclass(frozen=True)
class PublishedMean:
    """An estimate with the noise of Theorem 6, what the paper claims for it, what it certifies."""

    claim: PublishedClaim
    result: MeanEstimate
    """``result.guarantee`` is the certified account of the very same release."""


def theorem_6_mean(
    x: ArrayLike,
    *,
    epsilon: float,
    delta: float,
    beta: float = 0.05,
    groups: int | None = None,
    **options: Any,
) -> PublishedMean:
    """Algorithm 3 with the noise for which Theorem 6 claims (epsilon, delta).

    ``groups`` is k (None: that of Lemma 6); other options as in `winsor.tables.iterative_mean`.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_t(3, size=(8000, 2)) + 1.0
    >>> found = theorem_6_mean(x, epsilon=1.0, delta=1e-5, radius=20.0, random_state=0)
    >>> found.claim.published_epsilon, found.claim.statement
    (1.0, 'Theorem 6 with k = 2397')
    >>> found.result.updates > 0, found.result.guarantee.epsilon < 0.2
    (True, True)
    """
    k = iterative_groups(beta) if groups is None else int(whole("groups", groups))
    rho = _checked_rho(epsilon, delta, k)
    result = iterative_mean(
        x,
        rho=rho,
        delta=delta,
        beta=beta,
        groups=k,
        grouping="partition",
        relation=Neighbouring.REPLACE_ONE,
        **options,
    )
    return PublishedMean(theorem_6_claim(rho, delta, k), result)


@dataclass(frozen=True)
class Theorem3:
    """Simple clipping for T steps at (12): a sound claim, kept apart because it is the paper's."""

    epsilon: float
    delta: float
    steps: int

    def __post_init__(self) -> None:
        whole("steps", self.steps)

    @property
    def rho(self) -> float:
        """(12), of the whole run."""
        return zcdp_budget(self.epsilon, self.delta)

    def noise_std(self, radius: float, n: int) -> float:
        """On the mean gradient of one step: sqrt(2 T / rho) R / n."""
        return math.sqrt(2 * self.steps / self.rho) * radius / n

    def claim(self) -> PublishedClaim:
        return PublishedClaim(self.epsilon, self.delta, PAPER, f"Theorem 3 with T = {self.steps}")

    def method(self, **options: Any) -> Simple:
        """For ``method=`` of an estimator with relation "replace_one"."""
        return Simple(steps=self.steps, rho=self.rho, **options)

    def certified_history(self) -> History:
        """Under replace-one, for `winsor.core.accounting.spending`."""
        return parallel_history(self.rho / self.steps, self.steps)


@dataclass(frozen=True)
class Theorem7:
    """Iterative updating for T steps: the budget (27) of each step, and Theorem 6 at it."""

    epsilon: float
    delta: float
    steps: int
    groups: int

    def __post_init__(self) -> None:
        whole("steps", self.steps)
        whole("groups", self.groups)

    @property
    def step_rho(self) -> float:
        """(20) at (epsilon_0, delta_0) of (27): the zCDP of one group mean of one step."""
        step = per_step_budget(self.epsilon, self.delta, self.steps)
        return _checked_rho(step.epsilon, step.delta, self.groups)

    def noise_std(self, radius: float, n: int) -> float:
        """On each group mean of one step: sqrt(2 / rho) R / m."""
        return math.sqrt(2 / self.step_rho) * radius * self.groups / n

    def claim(self) -> PublishedClaim:
        statement = f"(27) with Theorem 6 for each of T = {self.steps} steps, k = {self.groups}"
        return PublishedClaim(self.epsilon, self.delta, PAPER, statement, DOUBTS)

    def method(self, **options: Any) -> Iterative:
        """For ``method=`` of an estimator with relation "replace_one"."""
        return Iterative(
            steps=self.steps,
            rho=self.steps * self.step_rho,
            groups=self.groups,
            grouping="partition",
            **options,
        )

    def certified_history(self) -> History:
        """Under replace-one, for `winsor.core.accounting.spending`."""
        return parallel_history(self.step_rho, self.steps)


def _checked_rho(epsilon: float, delta: float, k: int) -> float:
    """rho of (20), if Theorem 6 covers this epsilon."""
    positive("epsilon", epsilon)
    probability("delta", delta)
    ceiling = largest_epsilon(k, delta)
    if epsilon > ceiling:
        raise ConfigurationError(
            f"epsilon must be at most {ceiling:.3g} for Theorem 6 with k = {k} groups. Got "
            f"{epsilon!r} instead. Take fewer groups, or a smaller epsilon."
        )
    return theorem_6_rho(epsilon, delta, k)
