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
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from dp_accounting.dp_event import DpEvent
from torch import Tensor

from winsor.audit.curve import ABSENT, PRESENT
from winsor.audit.records import Parts, Records, stacked
from winsor.audit.worlds import STACK, Floats, Likelihoods, Setting, in_noise_units
from winsor.contract import Released
from winsor.release.door import Door
from winsor.rules.rule import Rule, State

LAW_RUNS = 300
"""Hold-out runs per world from which the law of a randomised rule is learnt."""
CERTAIN = 1e6
"""Score of a transcript that is possible in one world only."""


@dataclass(frozen=True, eq=False)
class RandomRuleExperiment:
    """One step of a rule with coins of its own, on the full batch."""

    rule: Rule
    records: Records
    setting: Setting

    @cached_property
    def _state(self) -> State:
        return self.records.start(self.rule, self.setting.sampler.expected_size)

    def _values(self, world: int, runs: int, label: bytes) -> Parts:
        """The rule's output for each run, with the draws of that run."""
        everyone = np.ones(self.records.count(world), dtype=bool)
        states = ({**self._state, "key": label.hex(), "step": run} for run in range(runs))
        return stacked([self.records.output(self.rule, world, everyone, s) for s in states])

    @cached_property
    def _likelihoods(self) -> Likelihoods:
        tables = [self._values(w, LAW_RUNS, self.setting.key("law", w)) for w in (ABSENT, PRESENT)]
        std = self.setting.mechanism.std(tables[0])
        weights = np.zeros((2, 2 * LAW_RUNS))
        weights[ABSENT, :LAW_RUNS] = weights[PRESENT, LAW_RUNS:] = 1 / LAW_RUNS
        both = {
            name: replace(part, value=_joined(part.value, tables[1][name].value))
            for name, part in tables[0].items()
        }
        return Likelihoods.of(both, std, weights)

    @property
    def history(self) -> list[tuple[DpEvent, int]]:
        door = self.setting.door(self.setting.key("history"))
        door.release(0, self._values(ABSENT, 1, self.setting.key("history")))
        return door.ledger.history()

    def scores(self, world: int, runs: int, part: int) -> Floats:
        pieces = []
        for start in range(0, runs, STACK):
            key = self.setting.key(world, part, start)
            values = self._values(world, min(STACK, runs - start), key)
            released = self.setting.door(key).release(0, values)
            pieces.append(self._likelihoods.ratio(in_noise_units(released)))
        return np.concatenate(pieces)


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, dict):
        return {name: torch.cat([first[name], second[name]]) for name in first}
    return torch.cat([first, second])


@dataclass(frozen=True, eq=False)
class TranscriptExperiment:
    """Whole runs of ``setting.steps`` steps on the full batch, state and all."""

    rule: Rule
    records: Records
    setting: Setting

    @property
    def history(self) -> list[tuple[DpEvent, int]]:
        door = self.setting.door(self.setting.key("history"))
        for _ in self._play(ABSENT, door, 0):
            pass
        return door.ledger.history()

    def scores(self, world: int, runs: int, part: int) -> Floats:
        # One door for all runs, each with step numbers of its own: fresh noise, one noise source.
        door = self.setting.door(self.setting.key(world, part))
        steps = self.setting.steps
        return np.array([sum(self._play(world, door, run * steps)) for run in range(runs)])

    def _play(self, world: int, door: Door, first: int) -> Iterator[float]:
        """The evidence of each step of one run."""
        state = self.records.start(self.rule, self.setting.sampler.expected_size)
        everyone = [np.ones(self.records.count(w), dtype=bool) for w in (ABSENT, PRESENT)]
        for step in range(first, first + self.setting.steps):
            imagined = [dict(state), dict(state)]
            outputs = [
                self.records.output(self.rule, w, everyone[w], imagined[w])
                for w in (ABSENT, PRESENT)
            ]
            std = self.setting.mechanism.std(outputs[world])
            absent, present = (_vector(_values(output), std) for output in outputs)
            unreleased = [
                self._state_after(output, std, imagined[w]) for w, output in enumerate(outputs)
            ]
            real = self.records.output(self.rule, world, everyone[world], state)
            released = door.release(step, real)
            x = _vector(released.values, std)
            _, state = self.rule.after(released, state)
            ratio = (x - (absent + present) / 2) @ (present - absent)
            yield float(ratio) + _state_evidence(state, unreleased)

    def _state_after(self, output: Parts, std: dict[str, float], state: State) -> State:
        """The next state if the exact values were used in place of the released ones."""
        exact = Released(_values(output), std, 0)
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
