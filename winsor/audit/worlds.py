"""Two neighbouring worlds, run through the real rule, sampler, mechanism and door.

A world is a tiny dataset of explicit per-sample gradients. What is enumerated beforehand is only
what the adversary knows anyway: the value that the real rule computes for each possible batch, and
the sampler's probability of that batch. Runs are stacked: one call of the real `Door.release`
noises the values of all runs at once, each run a slice of its own, with the standard deviation and
the ledger event that a training step would get.

The score is the exact log-likelihood ratio of the transcript, by Neyman and Pearson the best test:

    sum over steps of  log sum_b P1(b) exp(-|x - v_b|^2/2) - log sum_b P0(b) exp(-|x - v_b|^2/2)

with batches b, their values v_b and the release x, all in units of the noise that was declared.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winsor.audit.curve import ABSENT, PRESENT
from winsor.contract import (
    Bounded,
    ConfigurationError,
    Neighbouring,
    Released,
    UnsoundRelease,
)
from winsor.door import Door, Mechanism
from winsor.grads.rows import RowsView
from winsor.ledger import Ledger
from winsor.randomness import stream
from winsor.rules.rule import Rule, State
from winsor.sampling import FixedSize, FullBatch, Poisson, Sampler

Floats = NDArray[np.float64]
Parts = dict[str, Bounded]

Shapes = Mapping[str, tuple[int, ...]]
MODEL: Shapes = {"body.weight": (4, 5), "body.bias": (4,), "head.weight": (2, 4)}
"""A model-shaped parameter space: several groups, 32 coordinates."""
LINE: Shapes = {"weight": (1,)}
"""One coordinate, for runs of many steps."""
STACK = 1 << 16
"""Runs that pass the door together."""


def dimension(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def as_tree(rows: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """(n, dimension) -> {name: (n, *shape)}."""
    pieces = torch.split(rows, [math.prod(shape) for shape in shapes.values()], dim=1)
    return {
        name: piece.reshape(len(rows), *shape)
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Two datasets of gradients that differ in one record."""

    name: str
    common: Tensor  # (n, dimension)
    absent: Tensor  # (0, dimension), or (1, dimension) when a record is replaced
    present: Tensor  # (1, dimension)
    shapes: Shapes = field(default_factory=lambda: MODEL)

    def rows(self, world: int) -> Tensor:
        return torch.cat([self.common, self.present if world == PRESENT else self.absent])

    @property
    def relation(self) -> Neighbouring:
        replaced = len(self.absent) == len(self.present)
        return Neighbouring.REPLACE_ONE if replaced else Neighbouring.ADD_OR_REMOVE_ONE


@dataclass(frozen=True, eq=False)
class Setting:
    """How a rule is run: noise, sampler, and the public numbers of the run."""

    mechanism: Mechanism
    sampler: Sampler  # its n is nominal: the number of common records, whichever world is real
    relation: Neighbouring
    steps: int = 1
    seed: int = 0

    def key(self, *labels: object) -> bytes:
        text = repr((self.seed, labels)).encode()
        return hashlib.blake2b(text, digest_size=32, person=b"winsor-audit").digest()

    def door(self, key: bytes) -> Door:
        return Door(Ledger({}), self.mechanism, self.sampler, self.relation, key)


# ------------------------------------------------------------------------------------- batches


def batches(sampler: Sampler, n: int) -> tuple[NDArray[np.bool_], Floats]:
    """Every batch a sampler can draw from n records, as masks, with its probability."""
    if isinstance(sampler, FullBatch):
        return np.ones((1, n), dtype=bool), np.ones(1)
    masks = np.array(list(itertools.product([False, True], repeat=n)), dtype=bool).reshape(-1, n)
    sizes = masks.sum(1)
    if isinstance(sampler, Poisson):
        return masks, sampler.q**sizes * (1 - sampler.q) ** (n - sizes)
    if isinstance(sampler, FixedSize):
        kept = sizes == sampler.size
        return masks[kept], np.full(kept.sum(), 1 / kept.sum())
    raise ConfigurationError(
        f"sampler must be FullBatch, Poisson or FixedSize. Got {type(sampler).__name__} instead: "
        "the audit does not know which batches it draws."
    )


def drawn_batches(sampler: Sampler, n: int, runs: int, key: bytes) -> NDArray[np.int64]:
    """Which of `batches` each run gets, drawn one by one by the sampler itself."""
    masks, _ = batches(sampler, n)
    position = {mask.tobytes(): i for i, mask in enumerate(masks)}
    own = replace(sampler, n=n)  # type: ignore[type-var]
    which = np.empty(runs, dtype=np.int64)
    for run in range(runs):
        mask = np.zeros(n, dtype=bool)
        mask[own.indices(key, run)] = True
        which[run] = position[mask.tobytes()]
    return which


# --------------------------------------------------------------------------------- rule outputs


def rule_output(rule: Rule, rows: Tensor, shapes: Shapes, state: State) -> Parts:
    """What the real rule would hand to the door for this batch."""
    norms = torch.linalg.vector_norm(rows, dim=1)
    view = RowsView(as_tree(rows, shapes), norms)  # a long gradient has a large loss
    return rule.bounded(rule.contributions(view, state), state)


def initial_state(rule: Rule, shapes: Shapes, expected_size: float) -> State:
    parameters = {name: torch.zeros(shape) for name, shape in shapes.items()}
    return rule.init(parameters, expected_size)


def flat(part: Any) -> Tensor:
    """(runs, coordinates) of a stacked part."""
    leaves = list(part.values()) if isinstance(part, dict) else [part]
    return torch.cat([leaf.reshape(len(leaf), -1) for leaf in leaves], dim=1)


def in_noise_units(released: Released) -> Floats:
    """(runs, coordinates) of everything released, each part over its declared noise."""
    parts = [flat(value).double() / released.std[name] for name, value in released.values.items()]
    return np.asarray(torch.cat(parts, dim=1).numpy())


def stacked(outputs: list[Parts]) -> Parts:
    """One `Bounded` per part whose value has a leading dimension over ``outputs``.

    The bounds must be the same for every batch: noise or an event that depends on the data would
    itself be a leak.
    """
    first = outputs[0]
    for output in outputs[1:]:
        for name, part in output.items():
            if (part.sensitivity, part.share) != (first[name].sensitivity, first[name].share):
                raise UnsoundRelease(
                    f"the sensitivity of {name!r} must not depend on the rows. Got "
                    f"{part.sensitivity} and {first[name].sensitivity} for two batches."
                )
    return {
        name: replace(part, value=_stack([output[name].value for output in outputs]))
        for name, part in first.items()
    }


def _stack(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {name: torch.stack([value[name] for value in values]) for name in values[0]}
    return torch.stack([torch.as_tensor(value) for value in values])


def chosen(table: Parts, which: NDArray[np.int64]) -> Parts:
    """A fresh stack of runs: run r gets row ``which[r]`` of the table."""
    index = torch.from_numpy(which)

    def pick(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: tensor[index] for name, tensor in value.items()}
        return value[index]

    return {name: replace(part, value=pick(part.value)) for name, part in table.items()}


# ----------------------------------------------------------------------------------- the score


@dataclass(frozen=True, eq=False)
class Likelihoods:
    """The law of one release in noise units: a mixture of unit Gaussians in each world."""

    centres: Floats  # (batches, coordinates)
    log_weights: Floats  # (2, batches); -inf where a batch cannot occur

    @staticmethod
    def of(table: Parts, std: Mapping[str, float], weights: Floats) -> Likelihoods:
        scaled = [flat(part.value).double().numpy() / std[name] for name, part in table.items()]
        centres, inverse = np.unique(np.concatenate(scaled, axis=1), axis=0, return_inverse=True)
        merged = np.stack([np.bincount(inverse.ravel(), w, len(centres)) for w in weights])
        with np.errstate(divide="ignore"):
            return Likelihoods(centres, np.log(merged))

    def ratio(self, x: Floats) -> Floats:
        """(runs,) log-likelihood ratios of present against absent."""
        affinity = x @ self.centres.T - 0.5 * (self.centres**2).sum(1)
        return _log_sum(affinity + self.log_weights[PRESENT]) - _log_sum(
            affinity + self.log_weights[ABSENT]
        )


def _log_sum(terms: Floats) -> Floats:
    peak = terms.max(axis=1, keepdims=True)
    return np.asarray(np.log(np.exp(terms - peak).sum(axis=1)) + peak[:, 0])


# ------------------------------------------------------------------------------ the experiment


@dataclass(frozen=True, eq=False)
class RuleExperiment:
    """A stateless, deterministic rule on two neighbouring datasets, for ``setting.steps`` steps.

    With ``alternating`` the adversary turns every gradient round at every other step, as crafted
    records can: noise that is not fresh at each step then cancels.
    ``real_sampler`` lets the sampler itself draw every batch of every run (slow); otherwise batches
    come from the law in `batches`, which a test compares with the sampler.
    """

    rule: Rule
    neighbours: Neighbours
    setting: Setting
    alternating: bool = False
    real_sampler: bool = False

    @cached_property
    def _state(self) -> State:
        size = self.setting.sampler.expected_size
        return initial_state(self.rule, self.neighbours.shapes, size)

    def _laws(self, world: int) -> tuple[NDArray[np.bool_], Floats]:
        return batches(self.setting.sampler, len(self.neighbours.rows(world)))

    def _table(self, sign: float) -> Parts:
        """The rule's output for every batch of the absent world, then of the present one."""
        outputs = []
        for world in (ABSENT, PRESENT):
            rows = sign * self.neighbours.rows(world)
            for mask in self._laws(world)[0]:
                batch = rows[torch.from_numpy(mask)]
                outputs.append(
                    rule_output(self.rule, batch, self.neighbours.shapes, self._state)
                )
        return stacked(outputs)

    @cached_property
    def _steps(self) -> list[tuple[Parts, Likelihoods]]:
        """Tables and likelihoods for a step with the gradients as they are, and turned round."""
        absent, present = self._laws(ABSENT)[1], self._laws(PRESENT)[1]
        weights = np.zeros((2, len(absent) + len(present)))
        weights[ABSENT, : len(absent)] = absent
        weights[PRESENT, len(absent) :] = present
        signs = (1.0, -1.0) if self.alternating else (1.0,)
        tables = [self._table(sign) for sign in signs]
        std = self.setting.mechanism.std(tables[0])
        return [(table, Likelihoods.of(table, std, weights)) for table in tables]

    @property
    def history(self) -> list[Any]:
        """What the ledger holds after one run: the events that the claim is made of."""
        door = self.setting.door(self.setting.key("history"))
        self._run(ABSENT, 1, door)
        return door.ledger.history()

    def shift(self) -> float:
        """Distance of the two worlds in noise units, for a single possible batch each."""
        table, likelihoods = self._steps[0]
        del table
        return float(np.linalg.norm(np.ptp(likelihoods.centres, axis=0)))

    def scores(self, world: int, runs: int, part: int) -> Floats:
        pieces = []
        for start in range(0, runs, STACK):
            door = self.setting.door(self.setting.key(world, part, start))
            pieces.append(self._run(world, min(STACK, runs - start), door))
        return np.concatenate(pieces)

    def _run(self, world: int, runs: int, door: Door) -> Floats:
        total = np.zeros(runs)
        for step in range(self.setting.steps):
            table, likelihoods = self._steps[step % len(self._steps)]
            released = door.release(step, chosen(table, self._draw(world, runs, step, door.run)))
            total += likelihoods.ratio(in_noise_units(released))
        return total

    def _draw(self, world: int, runs: int, step: int, label: str) -> NDArray[np.int64]:
        """Row of the table for each run: the batch that the sampler drew in this world."""
        offset = len(self._laws(ABSENT)[1]) if world == PRESENT else 0
        masks, law = self._laws(world)
        key = self.setting.key("batches", label, step)
        if len(law) == 1:
            return np.full(runs, offset, dtype=np.int64)
        if self.real_sampler:
            n = masks.shape[1]
            return offset + drawn_batches(self.setting.sampler, n, runs, key)
        uniforms = stream(key, "audit batches", 0).random(runs)
        return offset + np.searchsorted(np.cumsum(law)[:-1], uniforms, side="right")
