"""The whole training loop under attack: sampler, engine, rule, door, ledger and optimiser.

The model is one weight and the loss of a record is its input times that weight, so gradients do not
depend on where the training is: every step of one long run is a fresh run of one step. What the
adversary sees is what the optimiser is given at each step, empty batches included. It knows n,
hence the expected batch size by which training divides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from dp_accounting.dp_event import DpEvent
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from winsor_papers.neighbouring import AuditSetting, Floats, RuleExperiment
from winsor_papers.records import LINE, GradientRecords

from winsor.core.contract import Neighbouring
from winsor.core.noise.gaussian import Gaussian
from winsor.core.sampling.samplers import Poisson
from winsor.rules.flat import Flat
from winsor.rules.rule import Rule
from winsor.training.loop import PrivateTraining
from winsor.training.make_private import make_private

HUGE = 1e4


class Recorder(torch.optim.SGD):
    """Keeps what it is given, and leaves the weight alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=1.0)
        self.seen: list[Tensor] = []

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        (weight,) = self.param_groups[0]["params"]
        self.seen.append(weight.grad.detach().flatten().clone())


@dataclass(frozen=True, eq=False)
class TrainingExperiment:
    """Single steps of a real `PrivateTraining` with Poisson batches of a few records."""

    noise_multiplier: float
    q: float = 0.5
    others: int = 3
    rule: Rule = Flat(1.0)  # noqa: RUF009 - frozen
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE

    @property
    def records(self) -> GradientRecords:
        """Silent records, which change the size of a batch, and one that speaks."""
        z = torch.full((1, 1), HUGE)
        return GradientRecords("canary", z.new_zeros((self.others, 1)), z[:0], z, LINE)

    @cached_property
    def _reference(self) -> RuleExperiment:
        """The same step outside the loop: it supplies the exact likelihood ratio."""
        sampler = Poisson(self.others, self.q)
        setting = AuditSetting(Gaussian(self.noise_multiplier), sampler, self.relation)
        return RuleExperiment(self.rule, self.records, setting)

    def training(self, dataset: int, steps: int, part: int) -> tuple[PrivateTraining, Recorder]:
        inputs = self.records.rows(dataset)
        model = nn.Linear(1, 1, bias=False)
        optimizer = Recorder(model)
        key = self._reference.setting.key("training", dataset, part)
        private = make_private(
            model=model,
            optimizer=optimizer,
            dataset=TensorDataset(inputs),
            rule=self.rule,
            batch_size=self.q * len(inputs),  # type: ignore[arg-type]
            delta=1e-5,
            noise_multiplier=self.noise_multiplier,
            steps=steps,
            sampling=Poisson(len(inputs), self.q),
            seed=int.from_bytes(key[:8], "little"),
        )
        return private, optimizer

    @property
    def history(self) -> list[tuple[DpEvent, int]]:
        """One step of the ledger that a real run wrote."""
        private, _ = self.training(0, 2, -1)
        train(private)
        ((event, _),) = private.ledger.history()
        return [(event, 1)]

    def scores(self, dataset: int, runs: int, part: int) -> Floats:
        private, optimizer = self.training(dataset, runs, part)
        train(private)
        released = torch.stack(optimizer.seen).double().numpy() * private.sampler.expected_size
        _, likelihoods = self._reference._steps[0]
        std = self.noise_multiplier * 1.0  # times the clipping norm
        return likelihoods.ratio(np.asarray(released) / std)


def train(private: PrivateTraining) -> None:
    for (inputs,) in private.batches():
        private.step(private.model(inputs)[:, 0])
    private.detach()
