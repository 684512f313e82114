"""Whole trainings with one mistake each, as `mutants.py` has single releases.

Sampler, engine, rule, door, ledger and accountant are the real ones. What is wrong is the user's
model, in ways that no bound on a row can mend: `private.check` and the guard of weights and buffers
exist because of them. Here neither is asked, and the audit must see for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from dp_accounting.dp_event import DpEvent
from torch import nn
from torch.utils.data import TensorDataset
from winsor_papers.neighbouring import AuditSetting, Floats

from selfaudit.trainings import HUGE, Recorder
from winsor.audit.claims import gaussian_mu
from winsor.audit.curve import PRESENT
from winsor.audit.suite import Prepared, certified
from winsor.core.contract import Neighbouring
from winsor.core.noise.gaussian import Gaussian
from winsor.core.sampling.samplers import FullBatch
from winsor.rules.flat import Flat
from winsor.training.loop import PrivateTraining
from winsor.training.make_private import make_private
from winsor.training.tamper_guard import TamperGuard

OTHERS = 8
NOISE = 1 / gaussian_mu(4.0, 1e-5)


class Unguarded(TamperGuard):
    """Looks away."""

    def check(self, *_: Any, **__: Any) -> None:
        return


@dataclass(frozen=True, eq=False)
class MistakenTraining:
    """One full-batch step per run; the adversary sees the gradient and what the model keeps."""

    network: type[nn.Module]
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE

    def scores(self, dataset: int, runs: int, part: int) -> Floats:
        return np.asarray([self._score(dataset, part, run) for run in range(runs)])

    @property
    def history(self) -> list[tuple[DpEvent, int]]:
        private, _ = self._trained(0, -1, 0)
        return private.ledger.history()

    def _score(self, dataset: int, part: int, run: int) -> float:
        private, optimizer = self._trained(dataset, part, run)
        noisy_sum = float(optimizer.seen[0]) * private.sampler.expected_size  # n is public
        kept = sum(float(buffer.abs().sum()) for buffer in private.model.buffers())
        return abs(noisy_sum) + kept

    def _trained(self, dataset: int, part: int, run: int) -> tuple[PrivateTraining, Recorder]:
        inputs = torch.zeros(OTHERS + (dataset == PRESENT), 1)
        if dataset == PRESENT:
            inputs[-1] = HUGE
        model = self.network()
        optimizer = Recorder(model)
        setting = AuditSetting(Gaussian(NOISE), FullBatch(OTHERS), self.relation)
        key = setting.key(self.network.__name__, dataset, part, run)
        private = make_private(
            model=model,
            optimizer=optimizer,
            dataset=TensorDataset(inputs),
            rule=Flat(1.0),
            batch_size=len(inputs),
            sampling="full",
            delta=1e-5,
            noise_multiplier=NOISE,
            steps=1,
            seed=int.from_bytes(key[:8], "little"),
        )
        private._guard = Unguarded(model)
        for (rows,) in private.batches():
            private.step(private.model(rows)[:, 0])
        private.detach()
        return private, optimizer


def mistaken(network: type[nn.Module], adversary: str) -> Prepared:
    return certified(MistakenTraining(network), adversary)
