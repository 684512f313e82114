"""ModelMix under attack: the real mixing update, with every run a row of its own.

The adversary crafts the record's gradient afresh at every step (each coordinate saturated, all on
one coordinate or spread over p) and sees all iterates. Consecutive iterates, with midpoint m, give

    r = (m - w_k) B / eta = G + N(0, s^2) - U(-1/2, 1/2) width B / eta,

so its score is the exact log-likelihood ratio: the sum over steps of
log(1 - q + q prod_j f(r_j - v) / f(r_j)), where f is the density of Gaussian (or Laplace) plus
uniform noise.

The account of ModelMix goes through Renyi divergences and is far from tight for a few steps, so
that no attack could tell a small error in the noise. `exact_step_claim` is therefore tested too:
the law of one step on one coordinate, integrated numerically, which the real mechanism must meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_ndtr
from torch import Tensor, nn

from winsor.audit.claims import Claim, claim_of
from winsor.audit.curve import PRESENT
from winsor.contrib.modelmix.mechanism import MixedGaussian, MixedLaplace, ModelMix
from winsor.contrib.modelmix.update import MixingUpdate
from winsor.core.contract import Neighbouring
from winsor.core.door import Door
from winsor.core.noise.protocol import Mechanism
from winsor.core.randomness import stream
from winsor.core.sampling.samplers import Poisson
from winsor.rules.coordinates import L1, LInf
from winsor.rules.rule import Rule
from winsor_papers.neighbouring import AuditSetting, Floats, StackedExperiment
from winsor_papers.records import GradientRecords, Parts, chosen, stacked

LEARNING_RATE = 0.5
NOMINAL = 10


@dataclass(frozen=True, eq=False)
class MixingExperiment(StackedExperiment):
    """``steps`` of ModelMix on gradients clipped to norm 1, seen as iterates.

    Gaussian noise goes with l2 + l-inf clipping, Laplace noise with L1 clipping.
    """

    tau_over_lr: float
    noise_multiplier: float
    p: int = 1
    q: float = 0.2
    steps: int = 10
    noise: str = "gaussian"
    kind: ClassVar[type[MixingUpdate]] = MixingUpdate

    @property
    def mix(self) -> ModelMix:
        return ModelMix(self.tau_over_lr, noise=self.noise)

    @property
    def setting(self) -> AuditSetting:
        sampler = Poisson(NOMINAL, self.q)
        mechanism = self.mechanism(sampler.expected_size)
        return AuditSetting(mechanism, sampler, Neighbouring.ADD_OR_REMOVE_ONE, self.steps)

    def mechanism(self, expected_size: float) -> Mechanism:
        kind = MixedLaplace if self.noise == "laplace" else MixedGaussian
        return kind(self.noise_multiplier, self.mix, expected_size)

    @property
    def rule(self) -> Rule:
        return L1(1.0, self.p) if self.noise == "laplace" else LInf(1.0, self.p)

    @property
    def records(self) -> GradientRecords:
        """A huge gradient along p coordinates: after clipping each is at its bound."""
        z = torch.full((1, self.p), 1e6)
        nobody = torch.zeros((0, self.p))
        return GradientRecords("saturated", nobody, nobody, z, {"weight": (self.p,)})

    def _table(self) -> Parts:
        """The rule's output for a batch without and with the record."""
        rule, records = self.rule, self.records
        state = records.start(rule, self.setting.sampler.expected_size)
        masks = (np.zeros(1, dtype=bool), np.ones(1, dtype=bool))
        return stacked([records.output(rule, PRESENT, mask, state) for mask in masks])

    def play(self, dataset: int, runs: int, door: Door, key: bytes) -> Floats:
        table, coins = self._table(), stream(key, "coins", 0)
        weight = nn.Parameter(torch.zeros(runs, self.p))
        update = self.update(weight, key)
        update.seal = door.seal
        previous = weight.detach().clone()
        total = np.zeros(runs)
        for step in range(self.steps):
            joins = (coins.random(runs) < self.q) & (dataset == PRESENT)
            released = door.release(step, chosen(table, joins.astype(np.int64)))
            before = weight.detach().clone()
            update.apply(released)
            total += self._evidence(previous, before, weight.detach(), released.std["grad"], step)
            previous = before
        return total

    def update(self, weight: nn.Parameter, key: bytes) -> MixingUpdate:
        optimizer = torch.optim.SGD([weight], lr=LEARNING_RATE)
        size = self.setting.sampler.expected_size
        return self.kind({"weight": weight}, optimizer, None, size, self.mix, key)

    def shift(self, step: int) -> float:
        """How far the record moves each coordinate of r at a step, given that it joins."""
        return 1 / self.p if self.noise == "laplace" else float(self.p**-0.5)

    def spread(self, std: float, step: int) -> float:
        """Scale of the noise in r: its standard deviation, over sqrt(2) for Laplace."""
        return std / 2**0.5 if self.noise == "laplace" else std

    def _evidence(
        self, previous: Tensor, before: Tensor, after: Tensor, std: float, step: int
    ) -> Floats:
        scale = self.setting.sampler.expected_size / LEARNING_RATE
        r = ((previous + before) / 2 - after).double().numpy() * scale
        gap = (before - previous).abs().double().numpy()
        width = np.maximum(gap, self.tau_over_lr * LEARNING_RATE) * scale
        s, log_density = self.spread(std, step), LOG_DENSITIES[self.noise]
        ratio = log_density(r - self.shift(step), width, s) - log_density(r, width, s)
        together = ratio.sum(1)
        if self.q == 1:
            return np.asarray(together)
        return np.asarray(np.logaddexp(np.log1p(-self.q), np.log(self.q) + together))


def gaussian_plus_uniform(x: Floats, width: NDArray[np.float64], s: float) -> Floats:
    """log of Phi((x + w/2)/s) - Phi((x - w/2)/s): the log-density up to log w."""
    x = np.abs(x)  # symmetric; the tail of the normal is then taken on its accurate side
    upper, lower = log_ndtr(-(x - width / 2) / s), log_ndtr(-(x + width / 2) / s)
    return np.asarray(upper + np.log1p(-np.exp(np.minimum(lower - upper, -1e-300))))


def laplace_plus_uniform(x: Floats, width: NDArray[np.float64], b: float) -> Floats:
    """log of F((x + w/2)/b) - F((x - w/2)/b), F the standard Laplace distribution function."""
    x, half = np.abs(x) / b, np.asarray(width) / (2 * b)
    outside = np.log(np.sinh(half)) - np.maximum(x, half)
    inside = np.log1p(-np.exp(-half) * np.cosh(np.minimum(x, half)))
    return np.asarray(np.where(x > half, outside, inside))


LOG_DENSITIES = {"gaussian": gaussian_plus_uniform, "laplace": laplace_plus_uniform}


def exact_step_claim(experiment: MixingExperiment) -> Claim:
    """The whole curve of the first step on the full batch and one coordinate.

    delta(epsilon) is the integral of max(0, f(r - 1) - e^epsilon f(r)), by the trapezoidal rule on
    20,001 points; `SLACK` covers its error. The reversed order has the same curve: f is symmetric.
    """
    setting = experiment.setting
    (part,) = setting.mechanism.std(experiment._table()).values()
    scale = experiment.spread(part, 0)
    width = experiment.tau_over_lr * setting.sampler.expected_size
    reach = width / 2 + 40 * scale + 1
    r = np.linspace(-reach, reach, 20_001)
    log_density = LOG_DENSITIES[experiment.noise]
    absent, present = (
        np.exp(log_density(r - shift, np.asarray(width), scale)) / width for shift in (0.0, 1.0)
    )

    def delta(epsilons: Floats) -> Floats:
        excess = np.maximum(present - np.exp(epsilons)[:, None] * absent, 0.0)
        return np.asarray(np.trapezoid(excess, r, axis=1)) + SLACK

    return claim_of(delta, "exact law of one step")


SLACK = 3e-6
"""Error of the integral above, generously: a test divides its step by four and sees less than half
of it. Three millionths are far below what the runs of an audit can see."""
