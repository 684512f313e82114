"""Heavy-tailed means under attack: the real clipping, grouping, prepaid door and noise.

Everybody is at the centre, one record far outside the ball. Add/remove is audited as the library
states it, with n public: both datasets are rescaled by their own n, so that what remains is the
record and not the count.

`ClippedMeanExperiment`: runs stacked in one paid release.
`CalledMeanExperiment`: `clipped_mean` or `iterative_mean` themselves, called once per run.
`AveragedMeanExperiment`: `averaged_mean`, whose every record sits at one end of the ball, but one.
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
from winsor_papers.neighbouring import Floats, audit_key

from winsor.audit.claims import USUAL_DELTA
from winsor.audit.curve import PRESENT
from winsor.core.contract import Neighbouring
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor, Receipt
from winsor.core.randomness import stream
from winsor.core.sampling.samplers import FullBatch
from winsor.tables.means.averaged import averaged_mean
from winsor.tables.means.clipped import clipped_mean, clipped_sum, mean_sensitivity
from winsor.tables.means.groups import Groups
from winsor.tables.means.iterative import iterative_mean
from winsor.tables.means.radius import PrivateRadius
from winsor.tables.means.result import MeanEstimate

History = list[tuple[DpEvent, int]]
ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE

ROWS, DIMENSION = 20, 2
COUNTED = 10
"""Records whose norms a search for a radius counts."""
RADIUS = 2.0
FAR = 1e8


def _rows(dataset: int, relation: Neighbouring) -> Floats:
    """Everybody at the origin but the record in question, which comes last."""
    rows = np.zeros((ROWS, DIMENSION))
    record = np.full((1, DIMENSION), FAR)
    if relation is REPLACE:
        rows[-1] = record if dataset == PRESENT else -record
        return rows
    return np.concatenate([rows, record]) if dataset == PRESENT else rows


def _door(relation: Neighbouring, *label: object) -> PrepaidDoor:
    return PrepaidDoor(Ledger({}), relation, audit_key(*label))


@dataclass(frozen=True, eq=False)
class ClippedMeanExperiment:
    """One release of the clipped mean."""

    noise_multiplier: float
    relation: Neighbouring = ADD

    def _release(self, dataset: int, runs: int, label: object) -> tuple[Floats, PrepaidDoor]:
        """(runs, d) noisy means in units of the noise."""
        rows, origin = _rows(dataset, self.relation), np.zeros(DIMENSION)
        n = len(rows)
        mean = clipped_sum(rows, origin, RADIUS) / n
        door = _door(self.relation, dataset, label)
        mechanism, sensitivity = Gaussian(self.noise_multiplier), mean_sensitivity(RADIUS, n)
        receipt = door.pay(mechanism, FullBatch(n), sensitivity, 1, (runs, DIMENSION))
        return receipt.release(np.tile(mean, (runs, 1))) / receipt.std, door

    @property
    def history(self) -> History:
        return self._release(PRESENT, 1, "history")[1].ledger.history()

    def scores(self, dataset: int, runs: int, part: int) -> Floats:
        return np.asarray(self._release(dataset, runs, part)[0].sum(1))


# ----------------------------------------------------------------------------- as users call it


@dataclass(frozen=True, eq=False)
class CalledMeanExperiment:
    """`clipped_mean`, or with ``k`` groups `iterative_mean`, as users call it."""

    epsilon: float
    relation: Neighbouring = ADD
    k: int | None = None
    grouping: str = "partition"

    def _call(self, dataset: int, key: bytes) -> MeanEstimate:
        rows = _rows(dataset, self.relation)
        options: dict[str, Any] = {
            "epsilon": self.epsilon,
            "delta": USUAL_DELTA,
            "radius": RADIUS,
            "relation": self.relation,
            "random_state": key,
        }
        if self.k is None:
            return clipped_mean(rows, **options)
        return iterative_mean(
            rows, groups=self.k, grouping=self.grouping, combine="mean", **options
        )

    @property
    def history(self) -> History:
        return self._call(PRESENT, audit_key(PRESENT, "history")).ledger.history()

    def scores(self, dataset: int, runs: int, part: int) -> Floats:
        return np.array(
            [self._score(dataset, audit_key(dataset, part, run)) for run in range(runs)]
        )

    def _score(self, dataset: int, key: bytes) -> float:
        result = self._call(dataset, key)
        if self.k is None:
            return float(np.sum(result.estimate) / result.noise_std)
        assert result.group_means is not None
        means = result.group_means / result.noise_std
        groups = Groups(len(_rows(dataset, self.relation)), self.k, self.grouping, self.relation)
        if self.grouping == "partition":
            return float(means[self._group(groups, dataset, key)].sum())
        return self._evidence(means, RADIUS / groups.size / result.noise_std)

    def _group(self, groups: Groups, dataset: int, key: bytes) -> int:
        """Where the record is; where it would be, if it is absent."""
        if dataset != PRESENT and self.relation is ADD:
            return int(stream(key, "absent record", 0).integers(groups.k))
        return next(j for j, who in enumerate(groups.members(key, 0)) if groups.n - 1 in who)

    def _evidence(self, means: Floats, shift: float) -> float:
        """The record is ``shift`` away in the means of the Poisson groups that it joined."""
        assert self.k is not None
        along, size = means.sum(1) * DIMENSION**-0.5 * shift, shift**2
        joined = np.log1p(np.expm1(along - size / 2) / self.k)
        if self.relation is ADD:
            return float(joined.sum())
        return float((joined - np.log1p(np.expm1(-along - size / 2) / self.k)).sum())


@dataclass(frozen=True, eq=False)
class AveragedMeanExperiment:
    """`averaged_mean` as users call it: one record carries the average across the whole ball."""

    epsilon: float
    relation: Neighbouring = ADD

    def _call(self, dataset: int, key: bytes) -> MeanEstimate:
        rows = np.full((ROWS, DIMENSION), -FAR)
        if dataset == PRESENT:  # outweighs all others together
            record = np.full((1, DIMENSION), 10.0 * ROWS * FAR)
            rows = np.concatenate([rows[: ROWS - (self.relation is REPLACE)], record])
        return averaged_mean(
            rows,
            clip=RADIUS,
            epsilon=self.epsilon,
            delta=USUAL_DELTA,
            relation=self.relation,
            random_state=key,
        )

    @property
    def history(self) -> History:
        return self._call(PRESENT, audit_key(PRESENT, "history")).ledger.history()

    def scores(self, dataset: int, runs: int, part: int) -> Floats:
        results = (self._call(dataset, audit_key(dataset, part, run)) for run in range(runs))
        return np.array([float(np.sum(r.estimate) / r.noise_std) for r in results])


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
    relation: Neighbouring = ADD
    radius: PrivateRadius = PrivateRadius(1.0, 8.0, level=0.5, ratio=2.0)  # noqa: RUF009 - frozen

    def _search(self, dataset: int, *label: object) -> _GlassDoor:
        norms = np.full(COUNTED, FAR)
        if self.relation is REPLACE:
            norms[-1] = 0.0 if dataset == PRESENT else FAR
        elif dataset == PRESENT:
            norms = np.append(norms, 0.0)
        door = _GlassDoor(Ledger({}), self.relation, audit_key(dataset, *label))
        level = self.radius.level
        assert level is not None
        self.radius.search(norms, level, door, Gaussian(self.noise_multiplier))
        return door

    @property
    def history(self) -> History:
        return self._search(PRESENT, "history").ledger.history()

    def scores(self, dataset: int, runs: int, part: int) -> Floats:
        doors = (self._search(dataset, part, run) for run in range(runs))
        return np.array([sum(door.seen) / door.std for door in doors])
