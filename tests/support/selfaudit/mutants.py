"""Deliberately wrong mechanisms. The audit must flag every one of them.

Each mutant is the real code with one mistake that has been made in practice; its claim is what the
mistaken author would report. A mutant that passes means that the audit, not the mutant, is weak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from dp_accounting.dp_event import DpEvent
from torch import Tensor

from selfaudit.drawing_worlds import Overlapping
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
from selfaudit.range_worlds import AllColumns, RangeExperiment
from selfaudit.training_mutants import Centred, Remembering, mistaken
from winsor.audit.adversaries import NOMINAL, canary
from winsor.audit.claims import gaussian_mu, point_claim
from winsor.audit.curve import PRESENT
from winsor.audit.suite import Audit, Prepared, certified
from winsor.audit.worlds import AuditSetting, Floats, RuleExperiment, StackedExperiment, log_sum
from winsor.contrib.value.bounds.spectral import OperatorNorms
from winsor.contrib.value.engine import ForwardView
from winsor.contrib.value.value import FORMS, Value
from winsor.core.contract import Bounded, Neighbouring, Released, Sensitivity
from winsor.core.door import Door
from winsor.core.noise.gaussian import Gaussian
from winsor.core.noise.protocol import DrawNoise, LocalEvent
from winsor.core.noise.source import NoiseSource
from winsor.core.randomness import stream
from winsor.core.sampling.samplers import FullBatch, Poisson
from winsor.gradients.view import View
from winsor.rules.averaged import Averaged
from winsor.rules.discriminative import Discriminative
from winsor.rules.flat import Flat
from winsor.rules.quantile import Quantile
from winsor.rules.rule import State, Sums


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
        Audit("divided by the realised batch size", partial(full_batch, RealisedMean(1.0))),
        Audit(
            "noise divided by the realised batch size", partial(certified, RealisedNoise(), silent)
        ),
        Audit(
            "sensitivity too small by the batch size",
            partial(full_batch, SmallSensitivity(1.0, 1 / NOMINAL)),
        ),
        Audit("sensitivity too small by two", partial(full_batch, SmallSensitivity(1.0, 0.5))),
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
        Audit("sampling rate rounded up", partial(sampled, RoundedUp(NOMINAL, 0.2), 20, ADD)),
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


# ---------------------------------------------------------------------------------------- noise


class LowNoise(Gaussian):
    """Adds nine tenths of the noise it states."""

    def add_noise(
        self, parts: Mapping[str, Bounded], std: Mapping[str, float], draw: DrawNoise
    ) -> dict[str, Any]:
        return super().add_noise(parts, {name: 0.9 * s for name, s in std.items()}, draw)


class OneDraw(NoiseSource):
    """Forgets the entry: the same noise for every release."""

    def add_slice(self, entry: int, *place: Any, **grid: Any) -> None:
        super().add_slice(0, *place, **grid)


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

    def play(self, world: int, runs: int, door: Door, key: bytes) -> Floats:
        record = torch.full((runs, 1), float(world == PRESENT))
        noisy = [
            door.release(step, Flat(1.0).bounded({"grad": turn * record}, {})).values["grad"]
            for step, turn in enumerate((1.0, -1.0))
        ]
        return np.asarray((noisy[0] - noisy[1])[:, 0].double().numpy())


class SinglePrecision(Gaussian):
    """Draws float32 noise for float64 sums: enough of it, and with low bits that stay empty."""

    def add_noise(
        self, parts: Mapping[str, Bounded], std: Mapping[str, float], draw: DrawNoise
    ) -> dict[str, Any]:
        silent = {n: replace(p, value=torch.zeros_like(p.value).float()) for n, p in parts.items()}
        noise = super().add_noise(silent, std, draw)
        return {name: part.value + noise[name].double() for name, part in parts.items()}


@dataclass(frozen=True, eq=False)
class LowBits(StackedExperiment):
    """Looks at the last bits only: a sum of 0 leaves them empty, a sum of 1/3 fills them."""

    setting: AuditSetting = AuditSetting(  # noqa: RUF009 - frozen
        SinglePrecision(SINGLE), FullBatch(NOMINAL), ADD
    )

    def play(self, world: int, runs: int, door: Door, key: bytes) -> Floats:
        sums = torch.full((runs, 1), (world == PRESENT) / 3, dtype=torch.float64)
        released = door.release(0, Flat(1.0).bounded({"grad": sums}, {})).values["grad"][:, 0]
        return np.asarray((released != released.float().double()).double().numpy())


# ----------------------------------------------------------------------------- the realised size


class RealisedMean(Flat):
    """Divides the clipped sum by the rows present, and accounts C over the nominal size."""

    def contributions(self, view: View, state: State) -> Sums:
        sums = super().contributions(view, state)
        size = max(1, view.size)
        return {"grad": {name: tensor / size for name, tensor in sums["grad"].items()}}

    def clipped_norm(self, state: State) -> float:
        return self.max_grad_norm / NOMINAL


@dataclass(frozen=True, eq=False)
class RealisedNoise(StackedExperiment):
    """(sum + noise) / realised size. The gradients are silent; the scale of the noise speaks.

    In many coordinates the spread of the release shows how many rows there were.
    """

    setting: AuditSetting = AuditSetting(Gaussian(SINGLE), FullBatch(NOMINAL), ADD)  # noqa: RUF009
    coordinates: int = 200
    stack: ClassVar[int] = 10_000

    def play(self, world: int, runs: int, door: Door, key: bytes) -> Floats:
        silence = {"grad": torch.zeros(runs, self.coordinates)}
        released = door.release(0, Flat(1.0).bounded(silence, {}))
        mean = released.values["grad"] / (NOMINAL + (world == PRESENT))
        return np.asarray(-mean.double().square().sum(1).numpy())


# ----------------------------------------------------------------------------------- sensitivity


@dataclass(frozen=True)
class SmallSensitivity(Averaged):
    """Averaged clipping with a stated sensitivity that is too small."""

    factor: float = 0.5

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        (part,) = super().bounded(sums, state).values()
        stated = Sensitivity.of_range(part.sensitivity.add_remove / 2 * self.factor, "wrong")
        return {"grad": replace(part, sensitivity=stated)}


class RankAtC1(Discriminative):
    """Ranks the batch, and accounts as if membership depended on the row alone."""

    def _sensitivity(self) -> Sensitivity:
        return Sensitivity.per_sample(self.c1, "wrong: one row pushes another out")


class LeakyQuantile(Quantile):
    """Moves the threshold by the exact count instead of the released one."""

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        state["exact"] = float(sums["count"])
        return super().bounded(sums, state)

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        exact = torch.tensor(state["exact"])
        values = {**released.values, "count": exact}
        return super().after(replace(released, values=values), state)


# -------------------------------------------------------------------------------- after the door


class RawSums(Flat):
    """Bounds, pays for and noises its sums, and then hands on those without noise."""

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        state["raw"] = sums["grad"].clone()
        return super().bounded(sums, state)

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        return released.with_grad(state["raw"]), state


@dataclass(frozen=True, eq=False)
class SeenAfter(StackedExperiment):
    """The adversary sees what `Rule.after` makes of a release, as whoever holds the model does."""

    rule: Flat
    setting: AuditSetting = AuditSetting(Gaussian(SINGLE), FullBatch(NOMINAL), ADD)  # noqa: RUF009

    def play(self, world: int, runs: int, door: Door, key: bytes) -> Floats:
        state: State = {}
        record = torch.full((runs, 1), float(world == PRESENT))
        released = door.release(0, self.rule.bounded({"grad": record}, state))
        gradient, _ = self.rule.after(released, state)
        return np.asarray(gradient.values["grad"][:, 0].double().numpy())


# ------------------------------------------------------------------------------------ bookkeeping


@dataclass(frozen=True)
class RoundedUp(Poisson):
    """Draws at a rate that was rounded up, and accounts the rate that was asked for."""

    def amplify(self, event: LocalEvent, relation: Neighbouring) -> DpEvent:
        return Poisson(self.n, 0.75 * self.q).amplify(event, relation)


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

    def play(self, world: int, runs: int, door: Door, key: bytes) -> Floats:
        steps = self.setting.steps
        place = stream(key, "shuffle", 0).integers(steps, size=runs)
        odd = 2.0 if world == PRESENT else 1.0
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


# -------------------------------------------------------------------------------- value clipping


class OneIteration(OperatorNorms):
    """Spectral norms by a single power iteration from a fixed start: a lower bound."""

    def matrix(self, name: str | None, weight: Tensor) -> float:
        start = torch.full((weight.shape[1],), weight.shape[1] ** -0.5, dtype=torch.float64)
        return float((weight.detach().double() @ start).norm())


class PowerIteration(Value):
    """Value clipping that takes power iteration for a bound."""

    def weights(self, view: View, state: State) -> Tensor:
        if not isinstance(view, ForwardView):
            return super().weights(view, state)
        squares = FORMS["value"](view, OneIteration({}))
        return (self.max_grad_norm * squares.rsqrt()).clamp_max(1.0)
