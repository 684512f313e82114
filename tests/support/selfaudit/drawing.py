"""Ways of drawing under attack: correlated noise with cyclic sampling, and persons as units.

Correlated noise is C^-1 z, so the adversary who sees X computes C X = C S + s z: independent noise
again, in which one visit of the record shows as a column of C. What it does not know is at which of
the possible steps the record was drawn; it enumerates these patterns. It is told the record's group
(the coin that the proof averages over), which makes the claim exact, and the audit sharp.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from dp_accounting.dp_event import DpEvent, NoOpDpEvent
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset
from winsor_papers.neighbouring import AuditSetting, Floats, StackedExperiment, log_sum

from selfaudit.trainings import HUGE, Recorder, TrainingExperiment, train
from winsor.audit.curve import PRESENT
from winsor.core.door import Door
from winsor.core.noise.banded import BandedGaussian
from winsor.core.randomness import stream
from winsor.core.sampling.cyclic import CyclicPoisson
from winsor.core.sampling.samplers import Poisson
from winsor.planning.bands import Banded
from winsor.rules.flat import Flat
from winsor.training.loop import PrivateTraining
from winsor.training.make_private import make_private


def banded_matrix(column: tuple[float, ...], steps: int) -> Floats:
    """C, lower-triangular with ``column`` below each diagonal entry."""
    lags = np.subtract.outer(np.arange(steps), np.arange(steps))
    padded = np.r_[column, np.zeros(steps)]
    return np.where((lags >= 0) & (lags < len(column)), padded[np.clip(lags, 0, None)], 0.0)


# ------------------------------------------------------------------------------- correlated noise


@dataclass(frozen=True, eq=False)
class CorrelatedExperiment(StackedExperiment):
    """A record that moves the sum by C whenever it is drawn, under noise of several bands."""

    setting: AuditSetting

    @property
    def mechanism(self) -> BandedGaussian:
        assert isinstance(self.setting.mechanism, BandedGaussian)
        return self.setting.mechanism

    @cached_property
    def _law(self) -> tuple[NDArray[np.float64], Floats]:
        """(patterns, steps) of visits, and the probability of each."""
        sampler, steps = self.setting.sampler, self.setting.steps
        if isinstance(sampler, CyclicPoisson):
            possible, rate = range(0, steps, sampler.bands), sampler.group_rate
        else:
            assert isinstance(sampler, Poisson)
            possible, rate = range(steps), sampler.q
        choices = np.array(list(itertools.product([0.0, 1.0], repeat=len(possible))))
        patterns = np.zeros((len(choices), steps))
        patterns[:, list(possible)] = choices
        visits = choices.sum(1)
        return patterns, rate**visits * (1 - rate) ** (len(possible) - visits)

    @property
    def history(self) -> list[tuple[DpEvent, int]]:
        return [(event, n) for event, n in super().history if not isinstance(event, NoOpDpEvent)]

    def play(self, dataset: int, runs: int, door: Door, key: bytes) -> Floats:
        patterns, law = self._law
        drawn = stream(key, "visits", 0).choice(len(law), size=runs, p=law)
        self.mechanism.restart()
        releases = []
        for step in range(self.setting.steps):
            here = patterns[drawn, step] * (dataset == PRESENT)
            sums = torch.from_numpy(here).float()[:, None]
            released = door.release(step, Flat(1.0).bounded({"grad": sums}, {}))
            releases.append(released.values["grad"][:, 0].double().numpy())
        matrix = banded_matrix(self.mechanism.column, self.setting.steps)
        y = np.stack(releases, axis=1) @ matrix.T / self.mechanism.noise_multiplier
        centres = patterns @ matrix.T / self.mechanism.noise_multiplier
        return log_sum(y @ centres.T - 0.5 * (centres**2).sum(1) + np.log(law))


@dataclass(frozen=True, eq=False)
class CorrelatedTraining(TrainingExperiment):
    """A real `PrivateTraining` with correlated noise, a round of groups at a time.

    Rounds of one long run, from the record's group on, are independent: in C X the noise is, and
    the record's visits do not overlap.
    """

    bands: int = 2
    q: float = 0.25

    def training(self, dataset: int, steps: int, part: int) -> tuple[PrivateTraining, Recorder]:
        inputs = self.records.rows(dataset)
        model = nn.Linear(1, 1, bias=False)
        optimizer = Recorder(model)
        key = self._reference.setting.key("correlated training", dataset, part)
        private = make_private(
            model=model,
            optimizer=optimizer,
            dataset=TensorDataset(inputs),
            rule=self.rule,
            batch_size=self.q * len(inputs),  # type: ignore[arg-type]
            delta=1e-5,
            noise_multiplier=self.noise_multiplier,
            steps=(steps + 1) * self.bands,
            sampling=CyclicPoisson(len(inputs), self.bands, self.q),
            mechanism=Banded(self.bands),
            seed=int.from_bytes(key[:8], "little"),
        )
        return private, optimizer

    @property
    def history(self) -> list[tuple[DpEvent, int]]:
        private, _ = self.training(0, 2, -1)
        train(private)
        paid = [e for e, _ in private.ledger.history() if not isinstance(e, NoOpDpEvent)]
        (event,) = paid
        return [(event, 1)]

    def scores(self, dataset: int, runs: int, part: int) -> Floats:
        private, optimizer = self.training(dataset, runs, part)
        train(private)
        sampler, mechanism = private.sampler, private._door.mechanism
        assert isinstance(sampler, CyclicPoisson) and isinstance(mechanism, BandedGaussian)
        x = torch.stack(optimizer.seen).double().numpy()[:, 0] * sampler.expected_size
        y = np.convolve(x, mechanism.column)[: len(x)] / self.noise_multiplier
        first = 0
        if dataset == PRESENT:  # the record is the last one
            first = sampler.group_of(private._feed.key, sampler.n - 1)
        rounds = y[first : first + runs * self.bands].reshape(runs, self.bands)
        shift = np.asarray(mechanism.column) / self.noise_multiplier
        rate = sampler.group_rate
        terms = np.stack(
            [np.full(runs, np.log1p(-rate)), np.log(rate) + rounds @ shift - 0.5 * shift @ shift],
            axis=1,
        )
        return log_sum(terms)


# ------------------------------------------------------------------------------------------ units


@dataclass(frozen=True, eq=False)
class UnitTraining(TrainingExperiment):
    """A person with many loud rows among persons with one silent row each.

    ``bounded_once`` False is the mistake of clipping the person's rows one by one.
    """

    rows: int = 50
    rows_per_unit: int = 8
    bounded_once: bool = True

    def training(self, dataset: int, steps: int, part: int) -> tuple[PrivateTraining, Recorder]:
        persons = self.others + (dataset == PRESENT)
        sizes = [1] * self.others + [self.rows] * (dataset == PRESENT)
        ids = np.repeat(np.arange(persons), sizes)
        inputs = torch.where(torch.from_numpy(ids)[:, None] < self.others, 0.0, HUGE)
        model = nn.Linear(1, 1, bias=False)
        optimizer = Recorder(model)
        key = self._reference.setting.key("units", dataset, part)
        private = make_private(
            model=model,
            optimizer=optimizer,
            dataset=TensorDataset(inputs),
            rule=self.rule,
            batch_size=self.q * persons,  # type: ignore[arg-type]
            delta=1e-5,
            noise_multiplier=self.noise_multiplier,
            steps=steps,
            sampling=Poisson(persons, self.q),
            seed=int.from_bytes(key[:8], "little"),
            unit=ids,
            rows_per_unit=self.rows_per_unit,
            within_unit="sum",
        )
        if not self.bounded_once:
            private._grouping = None
        return private, optimizer
