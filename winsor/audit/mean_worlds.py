"""Heavy-tailed means under attack: the real clipping, grouping, prepaid door and noise.

Runs are stacked in one paid release. Add/remove is audited as the library states it, with n public:
both worlds are rescaled by their own n, so that what remains is the record and not the count.

`ClippedMeanExperiment`: everybody at the centre, one record far outside the ball.
`GroupMeansExperiment`: the whole transcript of the iterative mean, all k noisy group means, is the
release (everything after them is post-processing). The record sits in one secret group, or joins
each with probability 1/k; the score averages over where it may be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from winsor.audit.curve import PRESENT
from winsor.audit.worlds import Floats, Setting
from winsor.contract import Neighbouring
from winsor.ledger import Ledger
from winsor.means.clipped import clip_factors, clipped_sum, distances, mean_sensitivity
from winsor.means.groups import Groups
from winsor.mechanisms.gaussian import Gaussian
from winsor.prepaid import PrepaidDoor
from winsor.sampling import FullBatch

RADIUS = 2.0
FAR = 1e8


def _rows(world: int, n: int, d: int, relation: Neighbouring) -> Floats:
    """Everybody at the origin but the record in question, which comes last."""
    rows = np.zeros((n, d))
    record = np.full((1, d), FAR)
    if relation is Neighbouring.REPLACE_ONE:
        rows[-1] = record if world == PRESENT else -record
        return rows
    return np.concatenate([rows, record]) if world == PRESENT else rows


@dataclass(frozen=True, eq=False)
class ClippedMeanExperiment:
    """One release of the clipped mean of n rows in d dimensions."""

    noise_multiplier: float
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    n: int = 20
    d: int = 2
    seed: int = 0

    def _release(self, world: int, runs: int, *label: object) -> tuple[Floats, PrepaidDoor]:
        """(runs, d) noisy sums in units of the noise."""
        rows = _rows(world, self.n, self.d, self.relation)
        n, origin = len(rows), np.zeros(self.d)
        mean = clipped_sum(rows, origin, distances(rows, origin), RADIUS) / n
        key = _setting(self.noise_multiplier, self.relation, self.seed).key(world, *label)
        door = PrepaidDoor(Ledger({}), self.relation, key)
        sensitivity = mean_sensitivity(RADIUS, n)
        shape = (runs, self.d)
        receipt = door.pay(Gaussian(self.noise_multiplier), FullBatch(n), sensitivity, 1, shape)
        released = receipt.release(np.tile(mean, (runs, 1)))
        return released / receipt.std, door

    @property
    def history(self) -> list[tuple[DpEvent, int]]:
        return self._release(PRESENT, 1, "history")[1].ledger.history()

    def scores(self, world: int, runs: int, part: int) -> Floats:
        return np.asarray(self._release(world, runs, part)[0].sum(1))


@dataclass(frozen=True, eq=False)
class GroupMeansExperiment:
    """All noisy means of k groups: partition (secret or known) or Poisson groups."""

    noise_multiplier: float
    grouping: str
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    k: int = 4
    n: int = 20
    d: int = 2
    known_groups: bool = False
    seed: int = 0

    def _groups(self, world: int) -> Groups:
        n = len(_rows(world, self.n, self.d, self.relation))
        return Groups(n, self.k, self.grouping, self.relation)

    def _door(self, world: int, *label: object) -> PrepaidDoor:
        key = _setting(self.noise_multiplier, self.relation, self.seed).key(world, *label)
        return PrepaidDoor(Ledger({}), self.relation, key)

    @property
    def history(self) -> list[tuple[DpEvent, int]]:
        door = self._door(PRESENT, "history")
        self._groups(PRESENT).pay(door, Gaussian(self.noise_multiplier), RADIUS, self.d)
        return door.ledger.history()

    def scores(self, world: int, runs: int, part: int) -> Floats:
        groups = self._groups(world)
        sums, where = self._sums(world, groups, runs, part)
        door = self._door(world, part)
        # One receipt for all runs: the same noise per entry as `Groups.pay`, on a stacked shape.
        sensitivity = groups.sensitivity(RADIUS)
        mechanism = Gaussian(self.noise_multiplier)
        receipt = door.pay(mechanism, groups.sampler, sensitivity, 1, sums.shape)
        means = receipt.release(sums / groups.size) / receipt.std
        shift = RADIUS / groups.size / receipt.std * self.d**-0.5
        return self._evidence(means, shift, where)

    def _sums(
        self, world: int, groups: Groups, runs: int, part: int
    ) -> tuple[Floats, NDArray[np.int64]]:
        """(runs, k, d) sums of clipped rows, with the members that the real grouping drew."""
        rows = _rows(world, self.n, self.d, self.relation)
        factors = clip_factors(distances(rows, np.zeros(self.d)), RADIUS)
        clipped = rows * factors[:, None]
        key = _setting(self.noise_multiplier, self.relation, self.seed).key("groups", world, part)
        sums = np.zeros((runs, self.k, self.d))
        where = np.zeros(runs, dtype=np.int64)
        for run in range(runs):
            for j, members in enumerate(groups.members(key, run)):
                sums[run, j] = clipped[members].sum(0)
                if len(rows) - 1 in members:
                    where[run] = j
        if world != PRESENT and self.relation is Neighbouring.ADD_OR_REMOVE_ONE:
            where = np.random.default_rng(list(key)).integers(self.k, size=runs)
        return sums, where

    def _evidence(self, means: Floats, shift: float, where: NDArray[np.int64]) -> Floats:
        sign = 2.0 if self.relation is Neighbouring.REPLACE_ONE else 1.0
        offset = 0.0 if self.relation is Neighbouring.REPLACE_ONE else 0.5
        along = means.sum(2) * shift  # (runs, k)
        size = self.d * shift**2
        exponent = sign * (along - offset * size)
        if self.known_groups:
            return np.asarray(exponent[np.arange(len(where)), where])
        rate = 1 / self.k
        if self.grouping == "partition":
            peak = exponent.max(1)
            return np.asarray(peak + np.log(np.exp(exponent - peak[:, None]).mean(1)))
        if self.relation is Neighbouring.REPLACE_ONE:
            up = np.log1p(rate * np.expm1(along - size / 2))
            down = np.log1p(rate * np.expm1(-along - size / 2))
            return np.asarray((up - down).sum(1))
        return np.asarray(np.log1p(rate * np.expm1(exponent)).sum(1))


def _setting(noise_multiplier: float, relation: Neighbouring, seed: int) -> Setting:
    return Setting(Gaussian(noise_multiplier), FullBatch(1), relation, seed=seed)
