"""ModelMix under attack: the real mixing update, with every run a row of its own.

The adversary crafts the record's gradient afresh at every step (each coordinate saturated, all on
one coordinate or spread over p) and sees all iterates. Consecutive iterates, with midpoint m, give

    r = (m - w_k) B / eta = G + N(0, s^2) - U(-1/2, 1/2) width B / eta,

so its score is the exact log-likelihood ratio: the sum over steps of
log(1 - q + q prod_j f(r_j - v) / f(r_j)), where f is the density of Gaussian plus uniform noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray
from scipy.special import log_ndtr
from torch import Tensor, nn

from winsor.audit.curve import PRESENT
from winsor.audit.records import GradientRecords, Parts, chosen, stacked
from winsor.audit.worlds import Floats, Setting
from winsor.contract import Neighbouring
from winsor.mechanisms.modelmix import MixedGaussian, ModelMix
from winsor.mixing import MixingUpdate
from winsor.rules.linf import LInf
from winsor.sampling import Poisson

LEARNING_RATE = 0.5
NOMINAL = 10


@dataclass(frozen=True, eq=False)
class MixingExperiment:
    """``steps`` of ModelMix with l2 + l-inf clipping to norm 1, seen as iterates."""

    tau_over_lr: float
    noise_multiplier: float
    p: int = 1
    q: float = 0.2
    steps: int = 10
    seed: int = 0

    @property
    def setting(self) -> Setting:
        mix = ModelMix(self.tau_over_lr)
        sampler = Poisson(NOMINAL, self.q)
        mechanism = MixedGaussian(self.noise_multiplier, mix, sampler.expected_size)
        relation = Neighbouring.ADD_OR_REMOVE_ONE
        return Setting(mechanism, sampler, relation, self.steps, self.seed)

    @property
    def records(self) -> GradientRecords:
        """A huge gradient along p coordinates: after clipping each is at its bound."""
        z = torch.full((1, self.p), 1e6)
        nobody = torch.zeros((0, self.p))
        return GradientRecords("saturated", nobody, nobody, z, {"weight": (self.p,)})

    @property
    def history(self) -> list[tuple[DpEvent, int]]:
        setting = self.setting
        door = setting.door(setting.key("history"))
        table = self._table()
        for step in range(self.steps):
            door.release(step, chosen(table, np.zeros(1, dtype=np.int64)))
        return door.ledger.history()

    def _table(self) -> Parts:
        """The rule's output for a batch without and with the record."""
        rule, records = LInf(1.0, self.p), self.records
        state = records.start(rule, self.setting.sampler.expected_size)
        masks = (np.zeros(1, dtype=bool), np.ones(1, dtype=bool))
        return stacked([records.output(rule, PRESENT, mask, state) for mask in masks])

    def scores(self, world: int, runs: int, part: int) -> Floats:
        setting = self.setting
        key = setting.key(world, part)
        door, table = setting.door(key), self._table()
        coins = np.random.default_rng(list(setting.key("coins", world, part)))
        weight = nn.Parameter(torch.zeros(runs, self.p))
        update = self.update(weight, key)
        previous = weight.detach().clone()
        total = np.zeros(runs)
        for step in range(self.steps):
            joins = (coins.random(runs) < self.q) & (world == PRESENT)
            released = door.release(step, chosen(table, joins.astype(np.int64)))
            before = weight.detach().clone()
            update.apply(released.values["grad"], setting.sampler.expected_size)
            total += self._evidence(previous, before, weight.detach(), released.std["grad"], step)
            previous = before
        return total

    def update(self, weight: nn.Parameter, key: bytes) -> MixingUpdate:
        optimizer = torch.optim.SGD([weight], lr=LEARNING_RATE)
        return MixingUpdate({"weight": weight}, optimizer, None, ModelMix(self.tau_over_lr), key)

    def shift(self, step: int) -> float:
        """How far the record moves each coordinate of r at a step, given that it joins."""
        return float(self.p**-0.5)

    def spread(self, std: float, step: int) -> float:
        """Standard deviation of the Gaussian part of r."""
        return std

    def _evidence(
        self, previous: Tensor, before: Tensor, after: Tensor, std: float, step: int
    ) -> Floats:
        scale = self.setting.sampler.expected_size / LEARNING_RATE
        r = ((previous + before) / 2 - after).double().numpy() * scale
        gap = (before - previous).abs().double().numpy()
        width = np.maximum(gap, self.tau_over_lr * LEARNING_RATE) * scale
        s = self.spread(std, step)
        ratio = _log_density(r - self.shift(step), width, s) - _log_density(r, width, s)
        together = ratio.sum(1)
        if self.q == 1:
            return np.asarray(together)
        return np.asarray(np.logaddexp(np.log1p(-self.q), np.log(self.q) + together))


def _log_density(x: Floats, width: NDArray[np.float64], s: float) -> Floats:
    """log of Phi((x + w/2)/s) - Phi((x - w/2)/s): the density up to the factor 1/w."""
    x = np.abs(x)  # symmetric; the tail of the normal is then taken on its accurate side
    upper, lower = log_ndtr(-(x - width / 2) / s), log_ndtr(-(x + width / 2) / s)
    return np.asarray(upper + np.log1p(-np.exp(np.minimum(lower - upper, -1e-300))))
