"""Theorem 6 under attack: the smallest group mean, which no order can hide."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from dp_accounting.dp_event import GaussianDpEvent
from scipy.special import ndtri_exp

from winsor.audit.curve import PRESENT
from winsor.audit.suite import Audit, Prepared
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.randomness import stream
from winsor.tables.means.groups import Groups
from winsor_papers.attack import DELTA, REPLACE, attack
from winsor_papers.neighbouring import Floats, audit_key
from winsor_papers.sco.claim import theorem_6_claim, theorem_6_rho


def sco_audits() -> Iterator[Audit]:
    name = "Heavy-tailed DP-SCO, Theorem 6, 1,000,000 shuffled groups"
    yield Audit(name, _shuffling_attack, 8_000_000, 4_000_000)


def _shuffling_attack() -> Prepared:
    k = 1_000_000
    rho = theorem_6_rho(0.212, DELTA, k)
    law = GaussianDpEvent(1 / math.sqrt(2 * rho))
    adversary = "the smallest group mean, which no order can hide"
    claim = theorem_6_claim(rho, DELTA, k)
    return attack(ShuffledGroups(rho, k), claim, adversary, law, REPLACE)


@dataclass(frozen=True, eq=False)
class ShuffledGroups:
    """k noisy group means in random order; group 1 sits at -R, all others at +R.

    The smallest mean ignores the order, and it is group 1's. The first mean is released by the real
    prepaid door; of the k - 1 others only the smallest matters, drawn from its exact law.
    """

    rho: float
    k: int
    size: int = 100_000
    radius: float = 1.0

    def scores(self, dataset: int, runs: int, part: int) -> Floats:
        key = audit_key(dataset, part)
        groups = Groups(self.k * self.size, self.k, "partition", REPLACE)
        door = PrepaidDoor(Ledger({}), REPLACE, key)
        sensitivity = groups.sensitivity(self.radius)
        # (19): rho = (2R/m)^2 / (2 s^2), and s is the multiplier times R/m.
        mechanism = Gaussian(math.sqrt(2 / self.rho))
        receipt = door.pay(mechanism, groups.sampler, sensitivity, 1, (runs,))
        # One record of group 1 at +R instead of -R moves its mean by 2R/m.
        mean = -self.radius + (2 * self.radius / self.size if dataset == PRESENT else 0.0)
        first = receipt.release(np.full(runs, mean))
        uniform = stream(key, "others", 0).random(runs)
        others = self.radius + receipt.std * _smallest_normal(uniform, self.k - 1)
        return np.minimum(first, others)


def _smallest_normal(uniform: Floats, count: int) -> Floats:
    """The smallest of ``count`` standard normals: P(min > x) = P(z > x)^count."""
    return -np.asarray(ndtri_exp(np.log(uniform) / count))
