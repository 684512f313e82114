"""Heavy-tailed means under attack: the real clipping, grouping, prepaid door and noise.

Everybody is at the centre, one record far outside the ball. Add/remove is audited as the library
states it, with n public: both worlds are rescaled by their own n, so that what remains is the
record and not the count.

`ClippedMeanExperiment`: runs stacked in one paid release.
`CalledMeanExperiment`: `clipped_mean` or `iterative_mean` themselves, called once per run.
`GroupMeansExperiment`: the whole transcript of the iterative mean with Poisson groups.
`RadiusExperiment`: every noisy count of the search for a private radius.

The transcript of the iterative mean is all of its k noisy group means; what comes after them is
post-processing. In a partition the record's group is known to the adversary, for the account holds
given the groups; with Poisson groups the score averages over the groups it may have joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent

from winsor.audit.claims import USUAL_DELTA
from winsor.audit.curve import PRESENT
from winsor.audit.worlds import Floats, Setting
from winsor.contract import Neighbouring
from winsor.ledger.ledger import Ledger
from winsor.means.clipped import (
    clip_factors,
    clipped_mean,
    clipped_sum,
    distances,
    mean_sensitivity,
)
from winsor.means.groups import Groups
from winsor.means.iterative import iterative_mean
from winsor.means.radius import PrivateRadius
from winsor.means.result import MeanEstimate
from winsor.mechanisms.gaussian import Gaussian
from winsor.randomness import stream
from winsor.release.prepaid import PrepaidDoor, Receipt
from winsor.sampling.samplers import FullBatch

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


# ----------------------------------------------------------------------------- as users call it


@dataclass(frozen=True, eq=False)
class CalledMeanExperiment:
    """`clipped_mean`, or with ``k`` groups `iterative_mean` over a partition, as users call it."""

    epsilon: float
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    k: int | None = None
    n: int = 20
    d: int = 2
    seed: int = 0

    def _call(self, world: int, key: bytes) -> MeanEstimate:
        rows = _rows(world, self.n, self.d, self.relation)
        options: dict[str, Any] = {
            "epsilon": self.epsilon,
            "delta": USUAL_DELTA,
            "radius": RADIUS,
            "relation": self.relation,
            "random_state": key,
        }
        if self.k is None:
            return clipped_mean(rows, **options)
        return iterative_mean(rows, groups=self.k, grouping="partition", combine="mean", **options)

    @property
    def history(self) -> list[tuple[DpEvent, int]]:
        return self._call(PRESENT, self._key(PRESENT, "history")).ledger.history()

    def scores(self, world: int, runs: int, part: int) -> Floats:
        return np.array([self._score(world, self._key(world, part, run)) for run in range(runs)])

    def _key(self, world: int, *label: object) -> bytes:
        return _setting(1.0, self.relation, self.seed).key(world, *label)

    def _score(self, world: int, key: bytes) -> float:
        result = self._call(world, key)
        seen = np.asarray(result.estimate)
        if self.k is not None:
            assert result.group_means is not None
            seen = result.group_means[self._group(world, key)]
        return float(seen.sum() / result.noise_std)

    def _group(self, world: int, key: bytes) -> int:
        """Where the record is; where it would be, if it is absent."""
        assert self.k is not None
        n = len(_rows(world, self.n, self.d, self.relation))
        if world != PRESENT and self.relation is Neighbouring.ADD_OR_REMOVE_ONE:
            return int(stream(key, "absent record", 0).integers(self.k))
        members = Groups(n, self.k, "partition", self.relation).members(key, 0)
        return next(j for j, who in enumerate(members) if n - 1 in who)


# -------------------------------------------------------------------------------- Poisson groups


@dataclass(frozen=True, eq=False)
class GroupMeansExperiment:
    """All noisy means of k Poisson groups."""

    noise_multiplier: float
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    k: int = 4
    n: int = 20
    d: int = 2
    seed: int = 0

    def _groups(self, world: int) -> Groups:
        n = len(_rows(world, self.n, self.d, self.relation))
        return Groups(n, self.k, "poisson", self.relation)

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
        sums = self._sums(world, groups, runs, part)
        door = self._door(world, part)
        # One receipt for all runs: the same noise per entry as `Groups.pay`, on a stacked shape.
        sensitivity = groups.sensitivity(RADIUS)
        mechanism = Gaussian(self.noise_multiplier)
        receipt = door.pay(mechanism, groups.sampler, sensitivity, 1, sums.shape)
        means = receipt.release(sums / groups.size) / receipt.std
        return self._evidence(means, RADIUS / groups.size / receipt.std * self.d**-0.5)

    def _sums(self, world: int, groups: Groups, runs: int, part: int) -> Floats:
        """(runs, k, d) sums of clipped rows, with the members that the real grouping drew."""
        rows = _rows(world, self.n, self.d, self.relation)
        factors = clip_factors(distances(rows, np.zeros(self.d)), RADIUS)
        clipped = rows * factors[:, None]
        key = _setting(self.noise_multiplier, self.relation, self.seed).key("groups", world, part)
        return np.array(
            [[clipped[who].sum(0) for who in groups.members(key, run)] for run in range(runs)]
        )

    def _evidence(self, means: Floats, shift: float) -> Floats:
        """The record is ``shift`` away in each of d coordinates of the means it takes part in."""
        along, size = means.sum(2) * shift, self.d * shift**2
        rate = 1 / self.k
        joined = np.log1p(rate * np.expm1(along - size / 2))
        if self.relation is Neighbouring.ADD_OR_REMOVE_ONE:
            return np.asarray(joined.sum(1))
        opposite = np.log1p(rate * np.expm1(-along - size / 2))
        return np.asarray((joined - opposite).sum(1))


# ------------------------------------------------------------------------------ a private radius


class _GlassDoor(PrepaidDoor):
    """A prepaid door through which the adversary sees every release."""

    def pay(self, *arguments: Any) -> Receipt:
        receipt = super().pay(*arguments)
        release, self.std = receipt.release, receipt.std
        self.seen: list[float] = []

        def seen_release(value: Floats) -> Floats:
            released = release(value)
            self.seen.append(float(released.sum()))
            return released

        receipt.release = seen_release  # type: ignore[method-assign]
        return receipt


@dataclass(frozen=True, eq=False)
class RadiusExperiment:
    """The real search of `PrivateRadius`: others outside every radius, the record inside.

    So the record adds its whole vote to every count, whichever way the search goes.
    """

    noise_multiplier: float
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    radius: PrivateRadius = PrivateRadius(1.0, 8.0, level=0.5, ratio=2.0)  # noqa: RUF009 - frozen
    n: int = 10
    seed: int = 0

    def _search(self, world: int, *label: object) -> _GlassDoor:
        norms = np.full(self.n, FAR)
        if self.relation is Neighbouring.REPLACE_ONE:
            norms[-1] = 0.0 if world == PRESENT else FAR
        elif world == PRESENT:
            norms = np.append(norms, 0.0)
        key = _setting(self.noise_multiplier, self.relation, self.seed).key(world, *label)
        door = _GlassDoor(Ledger({}), self.relation, key)
        level = self.radius.level
        assert level is not None
        self.radius.search(norms, level, door, Gaussian(self.noise_multiplier))
        return door

    @property
    def history(self) -> list[tuple[DpEvent, int]]:
        return self._search(PRESENT, "history").ledger.history()

    def scores(self, world: int, runs: int, part: int) -> Floats:
        doors = (self._search(world, part, run) for run in range(runs))
        return np.array([sum(door.seen) / door.std for door in doors])


def _setting(noise_multiplier: float, relation: Neighbouring, seed: int) -> Setting:
    return Setting(Gaussian(noise_multiplier), FullBatch(1), relation, seed=seed)
