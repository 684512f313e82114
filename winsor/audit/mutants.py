"""Deliberately wrong mechanisms. The audit must flag every one of them.

Each mutant is the real code with one mistake that has been made in practice; its claim is what the
mistaken author would report. A mutant that passes means that the audit, not the mutant, is weak.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from dp_accounting import dp_event
from torch import Tensor, nn

from winsor.audit.adversaries import NOMINAL, canary, pairs, worst
from winsor.audit.curve import PRESENT
from winsor.audit.honest import ADD, SINGLE, calibrated, exact_step
from winsor.audit.records import ModelRecords
from winsor.audit.suite import Audit, Prepared, certified
from winsor.audit.transcripts import TranscriptExperiment
from winsor.audit.value_worlds import value_records
from winsor.audit.worlds import Floats, RuleExperiment, Setting
from winsor.contract import Bounded, Released, Sensitivity, Tree
from winsor.contrib.modelmix.audit_worlds import MixingExperiment
from winsor.contrib.modelmix.mechanism import MixedGaussian
from winsor.contrib.modelmix.update import MixingUpdate
from winsor.grads.forward import ForwardView
from winsor.grads.view import View
from winsor.mechanisms.gaussian import DrawNormal, Gaussian
from winsor.mechanisms.noise import NoiseSource
from winsor.randomness import stream
from winsor.release.door import Door, Mechanism
from winsor.rules.averaged import Averaged
from winsor.rules.discriminative import Discriminative
from winsor.rules.flat import Flat
from winsor.rules.quantile import Quantile
from winsor.rules.rule import State, Sums
from winsor.rules.value import FORMS, Value
from winsor.rules.value_bounds.spectral import OperatorNorms
from winsor.sampling.samplers import FullBatch, Poisson


def mutants() -> list[Audit]:
    """Every mutant; the verdict on each must be a violation."""
    return [
        Audit("noise 10 % low, full batch", _low_noise),
        Audit("noise 10 % low, Poisson, 200 steps", _low_noise_poisson, 100_000, 50_000),
        Audit("divided by the realised batch size", _realised_size),
        Audit("noise divided by the realised batch size", _realised_noise),
        Audit("sensitivity too small by the batch size", partial(_small_sensitivity, 1 / NOMINAL)),
        Audit("sensitivity too small by two", partial(_small_sensitivity, 0.5)),
        Audit("rank cut accounted at c1", _rank_at_c1),
        Audit("noise reused between steps", _reused_noise),
        Audit("shuffled batches accounted as Poisson", _shuffled),
        Audit("adaptive threshold from unreleased counts", _leaky_threshold, 800, 200),
        Audit("power-iteration bound in value clipping", _power_iteration),
        Audit("momentum under ModelMix's amplified account", _momentum, 100_000, 20_000),
        Audit("ModelMix, noise 10 % low", _low_mixed_noise, 200_000, 100_000),
        Audit("ModelMix, no mixing where iterates are equal", _no_width),
    ]


# ---------------------------------------------------------------------------------------- noise


class LowNoise(Gaussian):
    """Adds nine tenths of the noise it states."""

    def add_noise(
        self, parts: Mapping[str, Bounded], std: Mapping[str, float], draw: DrawNormal
    ) -> dict[str, Any]:
        return super().add_noise(parts, {name: 0.9 * s for name, s in std.items()}, draw)


def _low_noise() -> Prepared:
    experiment = worst(Flat(1.0), Setting(LowNoise(SINGLE), FullBatch(NOMINAL), ADD))
    return certified(experiment, experiment.records.name, ADD)


def _low_noise_poisson() -> Prepared:
    steps, sampler = 200, Poisson(NOMINAL, 0.05)
    setting = Setting(LowNoise(calibrated(sampler, steps, ADD)), sampler, ADD, steps)
    return certified(RuleExperiment(Flat(1.0), canary(ADD), setting), "Dirac canary", ADD)


class OneDraw(NoiseSource):
    """Forgets the step: the same noise at every step."""

    def normal(self, step: int, stream: str, size: int) -> Tensor:
        return super().normal(0, stream, size)

    def add(self, step: int, stream: str, flat: Tensor, std: float) -> None:
        super().add(0, stream, flat, std)


@dataclass(frozen=True, eq=False)
class ReusedNoise(Setting):
    def door(self, key: bytes) -> Door:
        door = super().door(key)
        door.noise = OneDraw(key, prefetch=False)
        return door


def _reused_noise() -> Prepared:
    steps = 2
    setting = ReusedNoise(Gaussian(SINGLE * steps**0.5), FullBatch(NOMINAL), ADD, steps)
    experiment = RuleExperiment(Flat(1.0), canary(ADD), setting, alternating=True)
    return certified(experiment, "crafted gradient, turned round at every step", ADD)


# ----------------------------------------------------------------------------- the realised size


class RealisedMean(Flat):
    """Divides the clipped sum by the rows present, and accounts C over the nominal size."""

    def contributions(self, view: View, state: State) -> Sums:
        sums = super().contributions(view, state)
        size = max(1, view.size)
        return {"grad": {name: tensor / size for name, tensor in sums["grad"].items()}}

    def clipped_norm(self, state: State) -> float:
        return self.max_grad_norm / NOMINAL


def _realised_size() -> Prepared:
    experiment = worst(RealisedMean(1.0), Setting(Gaussian(SINGLE), FullBatch(NOMINAL), ADD))
    return certified(experiment, experiment.records.name, ADD)


@dataclass(frozen=True, eq=False)
class RealisedNoise:
    """(sum + noise) / realised size. The gradients are silent; the scale of the noise speaks.

    In many coordinates the spread of the release shows how many rows there were.
    """

    setting: Setting
    coordinates: int = 200

    @property
    def history(self) -> list[tuple[dp_event.DpEvent, int]]:
        door = self.setting.door(self.setting.key("history"))
        door.release(0, self._parts(1))
        return door.ledger.history()

    def _parts(self, runs: int) -> dict[str, Bounded]:
        (part,) = Flat(1.0).bounded({"grad": torch.zeros(runs, self.coordinates)}, {}).values()
        return {"grad": part}

    def scores(self, world: int, runs: int, part: int) -> Floats:
        pieces, size = [], NOMINAL + (world == PRESENT)
        for start in range(0, runs, 10_000):
            door = self.setting.door(self.setting.key(world, part, start))
            released = door.release(0, self._parts(min(10_000, runs - start)))
            mean = released.values["grad"] / size
            pieces.append(-mean.double().square().sum(1).numpy())
        return np.concatenate(pieces)


def _realised_noise() -> Prepared:
    experiment = RealisedNoise(Setting(Gaussian(SINGLE), FullBatch(NOMINAL), ADD))
    return certified(experiment, "silent record: the noise tells the batch size", ADD)


# ----------------------------------------------------------------------------------- sensitivity


@dataclass(frozen=True)
class SmallSensitivity(Averaged):
    """Averaged clipping with a stated sensitivity that is too small."""

    factor: float = 0.5

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        (part,) = super().bounded(sums, state).values()
        stated = Sensitivity.of_range(part.sensitivity.add_remove / 2 * self.factor, "wrong")
        return {"grad": replace(part, sensitivity=stated)}


def _small_sensitivity(factor: float) -> Prepared:
    rule = SmallSensitivity(1.0, factor)
    experiment = worst(rule, Setting(Gaussian(SINGLE), FullBatch(NOMINAL), ADD))
    return certified(experiment, experiment.records.name, ADD)


class RankAtC1(Discriminative):
    """Ranks the batch, and accounts as if membership depended on the row alone."""

    def _sensitivity(self) -> Sensitivity:
        return Sensitivity.per_sample(self.c1, "wrong: one row pushes another out")


def _rank_at_c1() -> Prepared:
    rule = RankAtC1(1.0, 0.1, selection="rank", rank_by="norm", seed=0)
    experiment = worst(rule, Setting(Gaussian(SINGLE), FullBatch(NOMINAL), ADD))
    return certified(experiment, experiment.records.name, ADD)


class LeakyQuantile(Quantile):
    """Moves the threshold by the exact count instead of the released one."""

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        state["exact"] = float(sums["count"])
        return super().bounded(sums, state)

    def after(self, released: Released, state: State) -> tuple[Tree, State]:
        exact = torch.tensor(state["exact"])
        values = {**released.values, "count": exact}
        return super().after(replace(released, values=values), state)


def _leaky_threshold() -> Prepared:
    steps = 2
    setting = Setting(Gaussian(SINGLE * steps**0.5), FullBatch(NOMINAL), ADD, steps)
    records = next(iter(pairs(ADD)))
    experiment = TranscriptExperiment(LeakyQuantile(1.0), records, setting)
    return certified(experiment, "reads the count off the next threshold", ADD)


# -------------------------------------------------------------------------------------- shuffling


@dataclass(frozen=True, eq=False)
class Shuffled:
    """One epoch of shuffled batches of fixed size, accounted as Poisson batches.

    All others hold -C, the record +C; when it is absent, its place in its batch stays empty (the
    friendliest reading). Then every batch but one sums to -bC, and that one to (2-b)C or (1-b)C:
    the adversary knows that there is exactly one odd batch, which Poisson sampling would hide.
    """

    steps: int
    batch: int
    setting: Setting

    @property
    def history(self) -> list[tuple[dp_event.DpEvent, int]]:
        door = self.setting.door(self.setting.key("history"))
        for step in range(self.steps):
            door.release(step, self._parts(np.zeros(1)))
        return door.ledger.history()

    def _parts(self, sums: Floats) -> dict[str, Bounded]:
        grad = torch.from_numpy(sums).float()[:, None]
        return Flat(1.0).bounded({"grad": grad}, {})

    def scores(self, world: int, runs: int, part: int) -> Floats:
        key = self.setting.key(world, part)
        door = self.setting.door(key)
        place = stream(key, "shuffle", 0).integers(self.steps, size=runs)
        releases = []
        for step in range(self.steps):
            odd = 2.0 if world == PRESENT else 1.0
            sums = -self.batch + odd * (place == step)
            released = door.release(step, self._parts(sums))
            releases.append(released.values["grad"][:, 0].double().numpy() + self.batch)
        x = np.stack(releases, axis=1) / released.std["grad"]
        unit = 1 / released.std["grad"]
        return _log_mean_exp(2 * unit * x - 2 * unit**2) - _log_mean_exp(unit * x - unit**2 / 2)


def _log_mean_exp(terms: Floats) -> Floats:
    peak = terms.max(axis=1)
    return np.asarray(peak + np.log(np.exp(terms - peak[:, None]).mean(axis=1)))


def _shuffled() -> Prepared:
    steps, batch = 10, 5
    sampler = Poisson(steps * batch, 1 / steps)
    setting = Setting(Gaussian(calibrated(sampler, steps, ADD)), sampler, ADD, steps)
    return certified(Shuffled(steps, batch, setting), "exactly one odd batch per epoch", ADD)


# --------------------------------------------------------------------------- value clipping, mixing


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


def _power_iteration() -> Prepared:
    records: ModelRecords = value_records()
    setting = Setting(Gaussian(SINGLE), FullBatch(records.count(0)), ADD)
    experiment = RuleExperiment(PowerIteration(1.0, form="value"), records, setting)
    return certified(experiment, records.name, ADD)


class MomentumUpdate(MixingUpdate):
    """Adds up old noisy gradients before mixing, which uses each of them many times."""

    momentum = 0.9

    def apply(self, grad: Tree, expected_size: float) -> None:
        kept = self.__dict__.setdefault("_velocity", {})
        for name, tensor in grad.items():
            kept[name] = self.momentum * kept[name] + tensor if name in kept else tensor.clone()
        super().apply({name: tensor.clone() for name, tensor in kept.items()}, expected_size)


@dataclass(frozen=True, eq=False)
class MomentumExperiment(MixingExperiment):
    """The real mixing experiment on momentum; the adversary knows of it."""

    def update(self, weight: nn.Parameter, key: bytes) -> MixingUpdate:
        plain = super().update(weight, key)
        return MomentumUpdate(plain.parameters, plain.optimizer, None, plain.mix, key)

    def shift(self, step: int) -> float:
        gain = MomentumUpdate.momentum
        return super().shift(step) * (1 - gain ** (step + 1)) / (1 - gain)

    def spread(self, std: float, step: int) -> float:
        gain = MomentumUpdate.momentum**2
        return std * math.sqrt((1 - gain ** (step + 1)) / (1 - gain))


def _momentum() -> Prepared:
    experiment = MomentumExperiment(tau_over_lr=2.0, noise_multiplier=0.5, q=1.0, steps=20)
    return certified(experiment, "the same noisy gradient at every later step", ADD, points=8)


class LowMixed(LowNoise, MixedGaussian):
    """ModelMix with nine tenths of the noise it states."""


@dataclass(frozen=True, eq=False)
class LowMixedExperiment(MixingExperiment):
    def mechanism(self, expected_size: float) -> Mechanism:
        return LowMixed(self.noise_multiplier, self.mix, expected_size)


def _low_mixed_noise() -> Prepared:
    return exact_step(LowMixedExperiment(0.1, 1.0, q=1.0, steps=1))


class SignOfZero(MixingUpdate):
    """Pushes iterates apart along the sign of their difference, which is zero at the start."""

    def _move(
        self, name: str, parameter: nn.Parameter, step: Tensor, weights: Tensor, tau: float
    ) -> None:
        apart = (parameter - self._before[name]).sign().abs()
        super()._move(name, parameter, step, weights.to(apart) * apart, tau)


@dataclass(frozen=True, eq=False)
class NoWidthExperiment(MixingExperiment):
    def update(self, weight: nn.Parameter, key: bytes) -> MixingUpdate:
        plain = super().update(weight, key)
        return SignOfZero(plain.parameters, plain.optimizer, None, plain.mix, key)


def _no_width() -> Prepared:
    return exact_step(NoWidthExperiment(0.3, 0.35, q=1.0, steps=1))
