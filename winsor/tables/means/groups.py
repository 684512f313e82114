"""Noisy means of k groups of clipped rows: what the iterative estimator works on.

    Q_j = (1/m) sum_{i in B_j} y_i + N(0, s^2 I),    m = n/k,  j = 1..k       (paper 2, (19))

Two ways to form the groups:

* ``"partition"``: every record is in exactly one group. Under add/remove each record draws its
  group independently (removing one leaves the others where they are); under replace-one the groups
  are a random balanced partition of positions.
* ``"poisson"``: every record joins each group independently with probability 1/k. The k releases
  are then k steps of sampled Gaussians, which is amplified; the paper's shuffling argument for
  partitions (Theorem 6) is not used, because it does not hold.

Guarantee
---------
m is public. Partition: one record touches one Q_j, by at most R/m (2R/m when replaced), given the
assignment of all others; all Q together are one Gaussian release. Poisson: each Q_j alone is one
Poisson-sampled Gaussian release at rate 1/k.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import choice, whole
from winsor.core.contract import ConfigurationError, Neighbouring, Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor, Receipt
from winsor.core.randomness import stream
from winsor.core.sampling.samplers import FullBatch, Poisson
from winsor.planning.budget import Payment

Array = NDArray[np.float64]


class Groups:
    """k groups over n records, formed by one of the two rules."""

    def __init__(self, n: int, k: int, grouping: str, relation: Neighbouring) -> None:
        choice("grouping", grouping, ("partition", "poisson"))
        whole("groups", k)
        if n < k:
            raise ConfigurationError(
                f"groups must be at most n = {n}, so that no group is empty by design. Got {k} "
                "instead. Use fewer groups, or clipped_mean."
            )
        self.n, self.k = n, int(k)
        self.size = n / self.k
        self.poisson = grouping == "poisson" and self.k > 1
        self.relation = relation
        self.sampler = Poisson(n, 1 / self.k) if self.poisson else FullBatch(n)

    def payment(self, radius: float, rounds: int = 1) -> Payment:
        """Return the line of a plan for ``rounds`` rounds of group means."""
        return Payment(self.sampler, self.sensitivity(radius), self._releases(rounds))

    def pay(
        self, door: PrepaidDoor, mechanism: Gaussian, radius: float, d: int, rounds: int = 1
    ) -> Receipt:
        """Pay for ``rounds`` rounds of group means of d numbers each."""
        shape = (d,) if self.poisson else (self.k, d)
        return door.pay(
            mechanism, self.sampler, self.sensitivity(radius), self._releases(rounds), shape
        )

    def _releases(self, rounds: int) -> int:
        return rounds * self.k if self.poisson else rounds

    def sensitivity(self, radius: float) -> Sensitivity:
        """Return how far a record moves the group means."""
        return Sensitivity.per_sample(
            radius / self.size,
            "one record touches one group mean by R/m, given the groups of the others, public m",
        )

    def members(self, key: bytes, round_: int) -> list[NDArray[np.int64]]:
        """Return the records of each group in one round: a function of (key, round)."""
        if self.poisson:
            return [self.sampler.indices(key, round_ * self.k + j) for j in range(self.k)]
        generator = stream(key, "groups", round_)
        if self.relation is Neighbouring.REPLACE_ONE:
            return np.array_split(generator.permutation(self.n), self.k)
        label = generator.integers(self.k, size=self.n)
        order = np.argsort(label, kind="stable")
        return np.split(order, np.searchsorted(label[order], np.arange(1, self.k)))

    def released_means(self, sums: Array, receipt: Receipt) -> Array:
        """Return (k, d) noisy means from the (k, d) sums of clipped rows."""
        means = sums / self.size
        if not self.poisson:
            return receipt.release(means)
        for row in means:
            receipt.release(row)
        return means
