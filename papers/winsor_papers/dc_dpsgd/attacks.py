"""DC-DPSGD under attack: a record that enters the tail pushes another one out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from dp_accounting.dp_event import DpEvent, MixtureOfGaussiansDpEvent

from winsor.audit.curve import ABSENT, PRESENT
from winsor.audit.suite import Audit, Prepared
from winsor.core.door import Door
from winsor.core.noise.gaussian import Gaussian
from winsor.core.randomness import stream
from winsor.core.sampling.samplers import FullBatch
from winsor_papers.attack import ADD, attack
from winsor_papers.dc_dpsgd.claim import DcDpsgdRun
from winsor_papers.neighbouring import (
    AuditSetting,
    Floats,
    Likelihoods,
    StackedExperiment,
    in_noise_units,
)
from winsor_papers.records import LINE, GradientRecords, Parts, chosen, stacked

SETTINGS = (  # reading of the noise, budget for the trace, budget for the gradient
    ("two noises", 2.0, 6.0),
    ("two noises", 1.0, 7.0),
    ("two noises", 4.0, 4.0),
    ("per record", 4.0, 4.0),
    ("public code", 1.0, 1.0),
    ("public code", 4.0, 4.0),
)


def dc_dpsgd_audits() -> Iterator[Audit]:
    for reading, trace, gradient in SETTINGS:
        name = f'DC-DPSGD, noise read as "{reading}", budget {trace:g}+{gradient:g}'
        quick = 2_000_000 if trace == 2 else 500_000  # 2+6 exceeds its claim by 11 % only
        yield Audit(name, partial(_rank_attack, reading, trace, gradient), 4_000_000, quick)


def _rank_attack(reading: str, trace: float, gradient: float) -> Prepared:
    run = DcDpsgdRun(trace, gradient, batch=100, records=100, steps=1, reading=reading)
    instance = RankInstance(run)
    adversary = "the target outranks another record and pushes it out of the tail"
    return attack(instance, run.claim(), adversary, instance.law)


@dataclass(frozen=True, eq=False)
class RankInstance(StackedExperiment):
    """Everybody holds -L e, the target +L e; all traces have one law, so ranks are uniform.

    The target is in the tail with probability k/(n+1), and then pushes another record out. The sums
    of both cases come from the real rank rule; which case a run gets is drawn from that law, since
    calling the rule millions of times would change nothing (a test compares the two).
    """

    run: DcDpsgdRun

    @property
    def records(self) -> GradientRecords:
        z = torch.full((1, 1), 1e3)
        return GradientRecords("ranked", -z.expand(self.run.batch, 1), z[:0], z, LINE)

    @property
    def setting(self) -> AuditSetting:
        """The certified rule with exactly the published noise."""
        noise = Gaussian(self.run.noise_multiplier("rank"))
        return AuditSetting(noise, FullBatch(self.run.batch), ADD)

    @property
    def in_tail(self) -> float:
        return round(self.run.tail_fraction * self.run.batch) / (self.run.batch + 1)

    @property
    def law(self) -> DpEvent:
        run, p = self.run, self.in_tail
        shifts = (2 * run.c1 - run.c2, run.c2)
        return MixtureOfGaussiansDpEvent(run.noise_std, shifts, (p, 1 - p))

    def outcome(self, dataset: int, draw: int) -> Parts:
        """The real rule's output with the tie-breaking keys of one draw."""
        records, rule = self.records, self.run.rule("rank")
        rule = type(rule)(rule.c1, rule.c2, selection="rank", rank_by="norm", seed=0)
        state = {**records.start(rule, self.run.batch), "step": draw}
        everyone = np.ones(records.count(dataset), dtype=bool)
        return records.output(rule, dataset, everyone, state)

    @cached_property
    def _table(self) -> Parts:
        """Absent; present and in the tail; present and not."""
        outcomes = [self.outcome(PRESENT, draw) for draw in range(400)]
        sums = [float(outcome["grad"].value["weight"]) for outcome in outcomes]
        cases = [outcomes[int(np.argmax(sums))], outcomes[int(np.argmin(sums))]]
        return stacked([self.outcome(ABSENT, 0), *cases])

    @cached_property
    def _likelihoods(self) -> Likelihoods:
        weights = np.array([[1.0, 0.0, 0.0], [0.0, self.in_tail, 1 - self.in_tail]])
        return Likelihoods.of(self._table, self.setting.mechanism.std(self._table), weights)

    def play(self, dataset: int, runs: int, door: Door, key: bytes) -> Floats:
        which = np.zeros(runs, dtype=np.int64)
        if dataset == PRESENT:
            outside = stream(key, "rank", 0).random(runs) >= self.in_tail
            which = 1 + outside.astype(np.int64)
        released = door.release(0, chosen(self._table, which))
        return self._likelihoods.ratio(in_noise_units(released))
