"""Statistics that are sums over rows under attack: the pair of tables that moves a sum most."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import statistic_battery
import torch
from winsor_papers.neighbouring import (
    AuditSetting,
    Floats,
    Likelihoods,
    StackedExperiment,
    in_noise_units,
)
from winsor_papers.records import Parts, chosen, stacked

from winsor.audit.curve import DATASETS, PRESENT
from winsor.core.contract import Bounded, Neighbouring
from winsor.core.door import Door
from winsor.tables.statistics import Statistic


@dataclass(frozen=True, eq=False)
class StatisticExperiment(StackedExperiment):
    """One release of a statistic, of ordinary rows without and with a record (or another)."""

    statistic: Statistic
    setting: AuditSetting

    @cached_property
    def _pair(self) -> tuple[Floats, Floats]:
        """The two tables, of all that the battery knows, whose sums are farthest apart."""
        columns = self.statistic.columns
        rows = np.random.default_rng(3).standard_normal((self.setting.sampler.n, columns))
        hostile = [row[None] for row in statistic_battery.hostile_rows(columns)]
        others = hostile if self.relation is Neighbouring.REPLACE_ONE else [rows[:0]]
        pairs = [(np.r_[rows, a], np.r_[rows, b]) for a in others for b in hostile]
        apart = [np.linalg.norm(self._sum(b) - self._sum(a)) for a, b in pairs]
        return pairs[int(np.argmax(apart))]

    def _sum(self, rows: Floats) -> Floats:
        return statistic_battery.summed(self.statistic, rows)

    @cached_property
    def _law(self) -> tuple[Parts, Likelihoods]:
        claim = self.statistic.bounded(self._pair[0][:0]).sensitivity
        sums = [torch.from_numpy(self._sum(rows)) for rows in self._pair]
        table = stacked([{"grad": Bounded(value, claim)} for value in sums])
        return table, Likelihoods.of(table, self.setting.mechanism.std(table), np.eye(2))

    def play(self, dataset: int, runs: int, door: Door, key: bytes) -> Floats:
        assert dataset in DATASETS and PRESENT == 1  # the order of the table
        table, law = self._law
        released = door.release(0, chosen(table, np.full(runs, dataset)))
        return law.ratio(in_noise_units(released))
