"""Runs one at a time: rules that draw coins, and rules whose public state follows their releases.

`RandomRuleExperiment` calls the real rule once per run, with draws of its own, and then noises all
runs together. The law of its values, which the score needs, comes from runs that are not tested.

`TranscriptExperiment` plays whole runs of several steps, as training does: rule, door, `after`,
next state. The adversary sees the releases and the public state after every step. Besides the
likelihood ratio it checks whether a public state is what *unreleased* values would have led to:
for an honest rule that has probability zero; where it happens, nothing else needs to be known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from winsor_papers.neighbouring import (
    AuditSetting,
    Floats,
    Likelihoods,
    StackedExperiment,
    in_noise_units,
)
from winsor_papers.records import Parts, Records, stacked

from winsor.audit.curve import ABSENT, DATASETS, PRESENT
from winsor.core.contract import Released
from winsor.core.door import Door
from winsor.rules.rule import Rule, State

LAW_RUNS = 300
"""Hold-out runs per dataset from which the law of a randomised rule is learnt."""
CERTAIN = 1e6
"""Score of a transcript that is possible on one dataset only."""


@dataclass(frozen=True, eq=False)
class RandomRuleExperiment(StackedExperiment):
    """One step of a rule with coins of its own, on the full batch."""

    rule: Rule
    records: Records
    setting: AuditSetting

    @cached_property
    def _state(self) -> State:
        return self.records.start(self.rule, self.setting.sampler.expected_size)

    def _values(self, dataset: int, runs: int, label: bytes) -> Parts:
        """The rule's output for each run, with the draws of that run."""
        return stacked(self._outputs(dataset, runs, label))

    def _outputs(self, dataset: int, runs: int, label: bytes) -> list[Parts]:
        everyone = np.ones(self.records.count(dataset), dtype=bool)
        states = ({**self._state, "key": label.hex(), "step": run} for run in range(runs))
        return [self.records.output(self.rule, dataset, everyone, s) for s in states]

    @cached_property
    def _likelihoods(self) -> Likelihoods:
        key = self.setting.key
        table = stacked([o for w in DATASETS for o in self._outputs(w, LAW_RUNS, key("law", w))])
        weights = np.repeat(np.eye(2), LAW_RUNS, axis=1) / LAW_RUNS
        return Likelihoods.of(table, self.setting.mechanism.std(table), weights)

    def play(self, dataset: int, runs: int, door: Door, key: bytes) -> Floats:
        """Return the log-likelihood ratios of single steps, each with coins of its own."""
        released = door.release(0, self._values(dataset, runs, key))
        return self._likelihoods.ratio(in_noise_units(released))


@dataclass(frozen=True, eq=False)
class TranscriptExperiment(StackedExperiment):
    """Whole runs of ``setting.steps`` steps on the full batch, state and all."""

    rule: Rule
    records: Records
    setting: AuditSetting

    def play(self, dataset: int, runs: int, door: Door, key: bytes) -> Floats:
        # One door for all runs, each with step numbers of its own: fresh noise, one noise source.
        """Return the evidence of whole runs, state included."""
        steps = self.setting.steps
        return np.array([sum(self._steps(dataset, door, run * steps)) for run in range(runs)])

    def _steps(self, dataset: int, door: Door, first: int) -> Iterator[float]:
        """The evidence of each step of one run."""
        state = self.records.start(self.rule, self.setting.sampler.expected_size)
        everyone = [np.ones(self.records.count(w), dtype=bool) for w in DATASETS]
        for step in range(first, first + self.setting.steps):
            imagined = [dict(state), dict(state)]
            outputs = [
                self.records.output(self.rule, w, everyone[w], imagined[w]) for w in DATASETS
            ]
            std = self.setting.mechanism.std(outputs[dataset])
            absent, present = (_vector(_values(output), std) for output in outputs)
            unreleased = [
                self._state_after(output, std, imagined[w]) for w, output in enumerate(outputs)
            ]
            real = self.records.output(self.rule, dataset, everyone[dataset], state)
            released = door.release(step, real)
            x = _vector(released.values, std)
            _, state = self.rule.after(released, state)
            ratio = (x - (absent + present) / 2) @ (present - absent)
            yield float(ratio) + _state_evidence(state, unreleased)

    def _state_after(self, output: Parts, std: dict[str, float], state: State) -> State:
        """The next state if the exact values were used in place of the released ones."""
        exact = Released.imagined(_values(output), std)
        return self.rule.after(exact, state)[1]


def _values(output: Parts) -> dict[str, Any]:
    return {name: part.value for name, part in output.items()}


def _vector(values: dict[str, Any], std: dict[str, float]) -> Tensor:
    """Everything released by one run as one vector in noise units."""
    leaves = []
    for name, value in values.items():
        tensors = value.values() if isinstance(value, dict) else (torch.as_tensor(value),)
        leaves += [tensor.flatten() / std[name] for tensor in tensors]
    return torch.cat(leaves).double()


def _state_evidence(state: State, unreleased: list[State]) -> float:
    if unreleased[ABSENT] == unreleased[PRESENT]:
        return 0.0
    return CERTAIN * ((state == unreleased[PRESENT]) - (state == unreleased[ABSENT]))
