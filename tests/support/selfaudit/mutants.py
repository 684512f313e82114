"""Deliberately wrong mechanisms. The audit must flag every one of them.

Each mutant is the real code with one mistake that has been made in practice; its claim is what the
mistaken author would report. A mutant that passes means that the audit, not the mutant, is weak.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from winsor_papers.neighbouring import (
    NOMINAL,
    AuditSetting,
    Floats,
    RuleExperiment,
    StackedExperiment,
    canary,
    log_sum,
)

from selfaudit.honest import (
    ADD,
    SINGLE,
    calibrated,
    correlated,
    full_batch,
    network,
    sampled,
    transcript,
    turning,
    units,
)
from selfaudit.mistakes import (
    Centred,
    HalfAveraged,
    LeakyQuantile,
    LowNoise,
    OneDraw,
    Overlapping,
    PowerIteration,
    RankAtC1,
    RawSums,
    RealisedMean,
    Remembering,
    SinglePrecision,
    TenthAveraged,
    Underpaid,
)
from selfaudit.ranges import AllColumns, RangeExperiment
from selfaudit.training_mutants import mistaken
from winsor.audit.claims import gaussian_mu, point_claim
from winsor.audit.curve import PRESENT
from winsor.audit.suite import Audit, Prepared, certified
from winsor.core.door import Door
from winsor.core.noise.gaussian import Gaussian
from winsor.core.randomness import stream
from winsor.core.sampling.samplers import FullBatch, Poisson
from winsor.rules.flat import Flat
from winsor.rules.rule import State


def mutants() -> list[Audit]:
    """Every mutant; the verdict on each must be a violation."""
    poisson = partial(sampled, Poisson(NOMINAL, 0.05), 200, ADD, LowNoise)
    ranked = RankAtC1(1.0, 0.1, selection="rank", rank_by="norm", seed=0)
    silent = "silent record: the noise tells the batch size"
    returning = Overlapping(NOMINAL, 0.5)
    noise = calibrated(returning, 8, ADD)
    one_by_one = partial(units, bounded_once=False)
    return [
        Audit("noise 10 % low, full batch", partial(full_batch, Flat(1.0), ADD, LowNoise(SINGLE))),
        Audit("noise 10 % low, Poisson, 200 steps", poisson, 100_000, 50_000),
        Audit(
            "divided by the realised batch size", partial(full_batch, RealisedMean(1.0, NOMINAL))
        ),
        Audit(
            "noise divided by the realised batch size", partial(certified, RealisedNoise(), silent)
        ),
        Audit(
            "sensitivity too small by the batch size",
            partial(full_batch, TenthAveraged(1.0)),
        ),
        Audit("sensitivity too small by two", partial(full_batch, HalfAveraged(1.0))),
        Audit("rank cut accounted at c1", partial(full_batch, ranked)),
        Audit("noise reused between steps", partial(turning, 2, ReusedNoise)),
        Audit("shuffled batches accounted as Poisson", _shuffled),
        Audit("correlated noise under plain Poisson", partial(correlated, returning, 8, 4, noise)),
        Audit("a person's rows clipped one by one", one_by_one, 10_000, 1_500),
        Audit(
            "adaptive threshold from unreleased counts",
            partial(transcript, LeakyQuantile(1.0)),
            800,
            200,
        ),
        Audit(
            "power-iteration bound in value clipping",
            partial(network, PowerIteration(1.0, form="value")),
        ),
        Audit("sampling rate rounded up", partial(sampled, Underpaid(NOMINAL, 0.2), 20, ADD)),
        Audit("delta not split between 16 releases", _unsplit_delta),
        Audit(
            "the same noise over two sums",
            partial(certified, NoiseOverTwoSums(), "difference of the two releases"),
        ),
        Audit(
            "gradient after the release without its noise",
            partial(certified, SeenAfter(RawSums(1.0)), "the gradient that training uses"),
        ),
        Audit(
            "float32 noise on float64 sums",
            partial(certified, LowBits(), "is the release a float32 number?"),
            10_000,
            2_000,
        ),
        Audit(
            "the mean of the batch, detached",
            partial(mistaken, Centred, "one huge record among silent ones"),
            400,
            150,
        ),
        Audit(
            "a buffer that remembers a row",
            partial(mistaken, Remembering, "the state of the model"),
            400,
            150,
        ),
        Audit("histograms of columns not paid for", _unpaid_columns, 10_000, 1_000),
    ]


def _unpaid_columns() -> Prepared:
    zoom = AllColumns(RangeExperiment.columns, rounds=2, indicators=True)
    experiment = RangeExperiment(SINGLE * 2**0.5, ADD, zoom)
    return certified(experiment, "a record that is no indicator, both rounds")


@dataclass(frozen=True, eq=False)
class ReusedNoise(AuditSetting):
    def door(self, key: bytes) -> Door:
        door = super().door(key)
        door.noise = OneDraw(key, prefetch=False)
        return door


@dataclass(frozen=True, eq=False)
class NoiseOverTwoSums(StackedExperiment):
    """Two runs under one key: the same rows, the labels of one turned round, and the same noise.

    Both are paid for. Their difference holds no noise at all.
    """

    setting: AuditSetting = ReusedNoise(Gaussian(SINGLE * 2**0.5), FullBatch(NOMINAL), ADD, 2)

    def play(self, dataset: int, runs: int, door: Door, key: bytes) -> Floats:
        record = torch.full((runs, 1), float(dataset == PRESENT))
        noisy = [
            door.release(step, Flat(1.0).bounded({"grad": turn * record}, {})).values["grad"]
            for step, turn in enumerate((1.0, -1.0))
        ]
        return np.asarray((noisy[0] - noisy[1])[:, 0].double().numpy())


@dataclass(frozen=True, eq=False)
class LowBits(StackedExperiment):
    """Looks at the last bits only: a sum of 0 leaves them empty, a sum of 1/3 fills them."""

    setting: AuditSetting = AuditSetting(  # noqa: RUF009 - frozen
        SinglePrecision(SINGLE), FullBatch(NOMINAL), ADD
    )

    def play(self, dataset: int, runs: int, door: Door, key: bytes) -> Floats:
        sums = torch.full((runs, 1), (dataset == PRESENT) / 3, dtype=torch.float64)
        released = door.release(0, Flat(1.0).bounded({"grad": sums}, {})).values["grad"][:, 0]
        return np.asarray((released != released.float().double()).double().numpy())


@dataclass(frozen=True, eq=False)
class RealisedNoise(StackedExperiment):
    """(sum + noise) / realised size. The gradients are silent; the scale of the noise speaks.

    In many coordinates the spread of the release shows how many rows there were.
    """

    setting: AuditSetting = AuditSetting(Gaussian(SINGLE), FullBatch(NOMINAL), ADD)  # noqa: RUF009
    coordinates: int = 200
    stack: ClassVar[int] = 10_000

    def play(self, dataset: int, runs: int, door: Door, key: bytes) -> Floats:
        silence = {"grad": torch.zeros(runs, self.coordinates)}
        released = door.release(0, Flat(1.0).bounded(silence, {}))
        mean = released.values["grad"] / (NOMINAL + (dataset == PRESENT))
        return np.asarray(-mean.double().square().sum(1).numpy())


@dataclass(frozen=True, eq=False)
class SeenAfter(StackedExperiment):
    """The adversary sees what `Rule.after` makes of a release, as whoever holds the model does."""

    rule: Flat
    setting: AuditSetting = AuditSetting(Gaussian(SINGLE), FullBatch(NOMINAL), ADD)  # noqa: RUF009

    def play(self, dataset: int, runs: int, door: Door, key: bytes) -> Floats:
        state: State = {}
        record = torch.full((runs, 1), float(dataset == PRESENT))
        released = door.release(0, self.rule.bounded({"grad": record}, state))
        gradient, _ = self.rule.after(released, state)
        return np.asarray(gradient.values["grad"][:, 0].double().numpy())


# ------------------------------------------------------------------------------------ bookkeeping


def _unsplit_delta() -> Prepared:
    """Each release may fail with the whole delta; the epsilons are added up, the deltas are not."""
    releases, epsilon, delta = 16, 0.001, 0.02
    mechanism = Gaussian(1 / gaussian_mu(epsilon, delta))
    setting = AuditSetting(mechanism, FullBatch(NOMINAL), ADD, releases)
    experiment = RuleExperiment(Flat(1.0), canary(ADD), setting)
    claim = point_claim(releases * epsilon, delta, "epsilons added up, delta stated once")
    return Prepared(experiment, claim, "Dirac canary at every step", delta=delta)


# -------------------------------------------------------------------------------------- shuffling


@dataclass(frozen=True, eq=False)
class Shuffled(StackedExperiment):
    """One epoch of shuffled batches of fixed size, accounted as Poisson batches.

    All others hold -C, the record +C; when it is absent, its place in its batch stays empty (the
    friendliest reading). Then every batch but one sums to -bC, and that one to (2-b)C or (1-b)C:
    the adversary knows that there is exactly one odd batch, which Poisson sampling would hide.
    """

    batch: int
    setting: AuditSetting

    def play(self, dataset: int, runs: int, door: Door, key: bytes) -> Floats:
        steps = self.setting.steps
        place = stream(key, "shuffle", 0).integers(steps, size=runs)
        odd = 2.0 if dataset == PRESENT else 1.0
        releases = []
        for step in range(steps):
            sums = torch.from_numpy(-self.batch + odd * (place == step)).float()[:, None]
            released = door.release(step, Flat(1.0).bounded({"grad": sums}, {}))
            releases.append(released.values["grad"][:, 0].double().numpy() + self.batch)
        x = np.stack(releases, axis=1) / released.std["grad"]
        unit = 1 / released.std["grad"]
        return log_sum(2 * unit * x - 2 * unit**2) - log_sum(unit * x - unit**2 / 2)


def _shuffled() -> Prepared:
    steps, batch = 10, 5
    sampler = Poisson(steps * batch, 1 / steps)
    setting = AuditSetting(Gaussian(calibrated(sampler, steps, ADD)), sampler, ADD, steps)
    return certified(Shuffled(batch, setting), "exactly one odd batch per epoch")
