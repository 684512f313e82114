"""ModelMix's own audits, to be run beside those of `winsor/audit`: honest ones, and mutants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor
from winsor_papers.modelmix.experiment import MixingExperiment, exact_step_claim

from selfaudit.mistakes import LowNoise
from winsor.audit.suite import Audit, Prepared, certified
from winsor.contrib.modelmix.mechanism import MixedGaussian
from winsor.contrib.modelmix.update import MixingUpdate
from winsor.core.noise.protocol import Mechanism


def honest() -> list[Audit]:
    """Audits whose claims are certified: a violation of any is a bug in winsor."""
    return [*_runs(), *_single_steps()]


def mutants() -> list[Audit]:
    """Wrong forms of ModelMix; the verdict on each must be a violation."""
    momentum = MomentumExperiment(tau_over_lr=2.0, noise_multiplier=0.5, q=1.0, steps=20)
    again = "the same noisy gradient at every later step"
    prepare = partial(certified, momentum, again, points=8)
    low = partial(_exact_step, LowMixedExperiment(0.1, 1.0, q=1.0, steps=1))
    narrow = partial(_exact_step, NoWidthExperiment(0.3, 0.35, q=1.0, steps=1))
    return [
        Audit("momentum under ModelMix's amplified account", prepare, 100_000, 20_000),
        Audit("ModelMix, noise 10 % low", low, 200_000, 100_000),
        Audit("ModelMix, no mixing where iterates are equal", narrow),
    ]


def _runs() -> Iterator[Audit]:
    experiments = {
        "full batch, 20 steps, one coordinate": MixingExperiment(2.0, 0.5, p=1, q=1.0, steps=20),
        "q=0.2, 10 steps, one coordinate": MixingExperiment(10.0, 0.5, p=1),
        "q=0.2, 10 steps, 4 coordinates": MixingExperiment(10.0, 0.5, p=4),
        "Laplace, q=0.2, 10 steps, one coordinate": MixingExperiment(10.0, 0.5, noise="laplace"),
    }
    crafted = "saturated coordinates, crafted at every step"
    for name, experiment in experiments.items():
        prepare = partial(certified, experiment, crafted, points=8)
        yield Audit(f"ModelMix, {name}", prepare, 100_000, 20_000)


def _single_steps() -> Iterator[Audit]:
    for noise in ("gaussian", "laplace"):
        for how, tau, multiplier in (("widely", 0.3, 0.35), ("narrowly", 0.1, 1.0)):
            single = MixingExperiment(tau, multiplier, q=1.0, steps=1, noise=noise)
            name = f"ModelMix, {noise}, {how} mixed, exact law of one step"
            yield Audit(name, partial(_exact_step, single))


def _exact_step(experiment: MixingExperiment) -> Prepared:
    return Prepared(experiment, exact_step_claim(experiment), "saturated coordinate")


# ---------------------------------------------------------------------------------------- mutants


class MomentumUpdate(MixingUpdate):
    """Adds up old noisy gradients before mixing, which uses each of them many times."""

    momentum = 0.9

    def move(self, grad: Mapping[str, Tensor], entry: int, std: float) -> None:
        kept = self.__dict__.setdefault("_velocity", {})
        for name, tensor in grad.items():
            kept[name] = self.momentum * kept[name] + tensor if name in kept else tensor.clone()
        super().move({name: tensor.clone() for name, tensor in kept.items()}, entry, std)


@dataclass(frozen=True, eq=False)
class MomentumExperiment(MixingExperiment):
    """The real mixing experiment on momentum; the adversary knows of it."""

    kind: ClassVar[type[MixingUpdate]] = MomentumUpdate

    def shift(self, step: int) -> float:
        gain = MomentumUpdate.momentum
        return super().shift(step) * (1 - gain ** (step + 1)) / (1 - gain)

    def spread(self, std: float, step: int) -> float:
        gain = MomentumUpdate.momentum**2
        return std * math.sqrt((1 - gain ** (step + 1)) / (1 - gain))


class LowMixed(LowNoise, MixedGaussian):
    """ModelMix with nine tenths of the noise it states."""


@dataclass(frozen=True, eq=False)
class LowMixedExperiment(MixingExperiment):
    def mechanism(self, expected_size: float) -> Mechanism:
        return LowMixed(self.noise_multiplier, self.mix, expected_size)


class SignOfZero(MixingUpdate):
    """Pushes iterates apart along the sign of their difference, which is zero at the start."""

    def _width(self, name: str, parameter: Tensor, tau: float) -> Tensor:
        return super()._width(name, parameter, tau) * (parameter != self._before[name])


@dataclass(frozen=True, eq=False)
class NoWidthExperiment(MixingExperiment):
    kind: ClassVar[type[MixingUpdate]] = SignOfZero
