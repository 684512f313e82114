"""Value clipping with f(w) under attack: one record with a large loss among many that fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from dp_accounting.dp_event import GaussianDpEvent
from torch import Tensor

from winsor.audit.suite import Audit, Prepared
from winsor.contrib.value.wgc import WeakGrowth
from winsor.core.contract import Bounded, Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.sampling.samplers import FullBatch
from winsor.gradients.view import Need, View
from winsor.rules.rule import Rule, State, Sums
from winsor_papers.attack import ADD, DELTA, attack
from winsor_papers.neighbouring import AuditSetting, RuleExperiment
from winsor_papers.records import LINE, GradientRecords
from winsor_papers.value.claim import ValueRun, as_printed


def value_audits() -> Iterator[Audit]:
    yield Audit("Value clipping, Algorithm 3 with f(w)", _value_attack, 1_000_000, 200_000)


def _value_attack() -> Prepared:
    run = ValueRun(4.0, DELTA, sampling_probability=1.0, steps=1)
    n, residual = 1000, 2.5
    z = torch.full((1, 1), residual)
    name = "one record with a large loss among many that fit"
    records = GradientRecords(name, z.new_zeros((n, 1)), z[:0], z, LINE, _squared)
    setting = AuditSetting(Gaussian(run.noise_multiplier), FullBatch(n), ADD)
    law = GaussianDpEvent(run.noise_multiplier / residual)
    return attack(RuleExperiment(PrintedValue(), records, setting), run.claim(), name, law)


def _squared(rows: Tensor) -> Tensor:
    return rows[:, 0].square() / 2


@dataclass(frozen=True)
class PrintedValue(Rule):
    """Algorithm 3 with f(w), as if its rows were bounded by C. Least squares on x = 1."""

    max_grad_norm: float = 1.0

    needs = Need.LOSSES | Need.WEIGHTED_SUM
    couples_rows = True

    def contributions(self, view: View, state: State) -> Sums:
        if not view.size:
            return {"grad": view.total()}
        growth = WeakGrowth(2.0)  # f = r^2/2 and |grad f|^2 = r^2 = 2 f
        return {"grad": as_printed(view, growth, self.max_grad_norm)}

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        claimed = Sensitivity.per_sample(self.max_grad_norm, "as published: rows bounded by C")
        return {"grad": Bounded(sums["grad"], claimed)}
