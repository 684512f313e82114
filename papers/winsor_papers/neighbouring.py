"""Pairs of neighbouring datasets, run through the real rule, sampler, mechanism and door.

The datasets are tiny. What is enumerated beforehand is only what the adversary knows anyway:
the value that the real rule computes for each possible batch, and the sampler's probability of that
batch. Runs are stacked: one call of the real `Door.release` noises the values of all runs at once,
each run a slice of its own, with the standard deviation and the ledger event that a training step
would get.

The score is the exact log-likelihood ratio of the transcript, by Neyman and Pearson the best test:

    sum over steps of  log sum_b P1(b) exp(-|x - v_b|^2/2) - log sum_b P0(b) exp(-|x - v_b|^2/2)

with batches b, their values v_b and the release x, all in units of the noise that was declared
(Laplace noise: its own density).

`pairs` are datasets that hurt: one record chosen to move a release as far as it can. Each is the
worst case of some family of rules. Which hurts a given rule most is computed (`worst`), not
measured: a rule is deterministic, so its shift is known before any noise is drawn.
"""

from __future__ import annotations

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray
from torch import Tensor

from winsor.audit.curve import ABSENT, DATASETS, PRESENT
from winsor.core.contract import ConfigurationError, Neighbouring, Released
from winsor.core.door import Door
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.laplace import Laplace
from winsor.core.noise.protocol import Mechanism
from winsor.core.noise.slices import without_thread
from winsor.core.randomness import stream
from winsor.core.sampling.samplers import FixedSize, FullBatch, Poisson, Sampler
from winsor.rules.rule import Rule, State
from winsor_papers.records import (
    LINE,
    MODEL,
    GradientRecords,
    Parts,
    Records,
    Shapes,
    chosen,
    dimension,
    flat,
    stacked,
)

Floats = NDArray[np.float64]

STACK = 1 << 16
"""Runs that pass the door together."""


def audit_key(*labels: object, seed: int = 0) -> bytes:
    """Return the key of everything that is drawn under these labels."""
    text = repr((seed, labels)).encode()
    return hashlib.blake2b(text, digest_size=32, person=b"winsor-audit").digest()


@dataclass(frozen=True, eq=False)
class AuditSetting:
    """How a rule is run: noise, sampler, and the public numbers of the run."""

    mechanism: Mechanism
    sampler: Sampler  # its n is nominal: the number of common records, on either dataset
    relation: Neighbouring
    steps: int = 1
    seed: int = 0

    def key(self, *labels: object) -> bytes:
        """Return the key of everything that is drawn under these labels, for this seed."""
        return audit_key(*labels, seed=self.seed)

    def door(self, key: bytes) -> Door:
        """Return a fresh door of this setting, with a ledger of its own."""
        ledger = Ledger({})
        return Door(ledger, self.mechanism, self.sampler, self.relation, key, without_thread)


# ------------------------------------------------------------------------------------- batches


def batches(sampler: Sampler, n: int) -> tuple[NDArray[np.bool_], Floats]:
    """Return every batch a sampler can draw from n records, as masks, and its probability."""
    if isinstance(sampler, FullBatch):
        return np.ones((1, n), dtype=bool), np.ones(1)
    masks = np.array(list(itertools.product([False, True], repeat=n)), dtype=bool).reshape(2**n, n)
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


def drawn_batches(
    sampler: Sampler, n: int, runs: int, key: bytes, step: int = 0, steps: int = 1
) -> NDArray[np.int64]:
    """Return which of `batches` each run gets at one of its steps, drawn by the sampler.

    Runs are consecutive stretches of ``steps`` steps under one key, as steps of a training are.
    """
    masks, _ = batches(sampler, n)
    position = {mask.tobytes(): i for i, mask in enumerate(masks)}
    own = replace(sampler, n=n)  # type: ignore[type-var]
    which = np.empty(runs, dtype=np.int64)
    for run in range(runs):
        mask = np.zeros(n, dtype=bool)
        mask[own.indices(key, run * steps + step)] = True
        which[run] = position[mask.tobytes()]
    return which


# ----------------------------------------------------------------------------------- the score


def in_noise_units(released: Released) -> Floats:
    """Return (runs, coordinates) of everything released, each part over its declared noise."""
    parts = [flat(value).double() / released.std[name] for name, value in released.values.items()]
    return np.asarray(torch.cat(parts, dim=1).numpy())


@dataclass(frozen=True, eq=False)
class Likelihoods:
    """The law of one release in noise units: a mixture of unit Gaussians on each dataset."""

    centres: Floats  # (batches, coordinates)
    log_weights: Floats  # (2, batches); -inf where a batch cannot occur

    @classmethod
    def of(cls, table: Parts, std: Mapping[str, float], weights: Floats) -> Likelihoods:
        """Return the law of a release: its value for each batch, and each batch's weight."""
        scaled = [flat(part.value).double().numpy() / std[name] for name, part in table.items()]
        centres, inverse = np.unique(np.concatenate(scaled, axis=1), axis=0, return_inverse=True)
        merged = np.stack([np.bincount(inverse.ravel(), w, len(centres)) for w in weights])
        with np.errstate(divide="ignore"):
            return cls(centres, np.log(merged))

    def ratio(self, x: Floats) -> Floats:
        """Return (runs,) log-likelihood ratios of present against absent."""
        affinity = self.log_densities(x)
        present, absent = (affinity + self.log_weights[dataset] for dataset in (PRESENT, ABSENT))
        return log_sum(present) - log_sum(absent)

    def log_densities(self, x: Floats) -> Floats:
        """Return (runs, batches) log-densities, up to a term that is the same for all batches."""
        return np.asarray(x @ self.centres.T - 0.5 * (self.centres**2).sum(1))


class LaplaceLikelihoods(Likelihoods):
    """The same for Laplace noise of standard deviation 1 on every coordinate."""

    def log_densities(self, x: Floats) -> Floats:
        """Return the same for Laplace noise."""
        distances = [np.abs(x - centre).sum(1) for centre in self.centres]
        return -(2**0.5) * np.stack(distances, axis=1)


def log_sum(terms: Floats) -> Floats:
    """Return (runs,) logarithms of sums of exponentials."""
    peak = terms.max(axis=1, keepdims=True)
    return np.asarray(np.log(np.exp(terms - peak).sum(axis=1)) + peak[:, 0])


# ------------------------------------------------------------------------------ the experiment


class StackedExperiment(ABC):
    """Runs through the real door, ``stack`` of them at once, each stack under a key of its own."""

    stack: ClassVar[int] = STACK

    if TYPE_CHECKING:  # a field of some experiments, a property of others

        @property
        def setting(self) -> AuditSetting: ...

    @abstractmethod
    def play(self, dataset: int, runs: int, door: Door, key: bytes) -> Floats:
        """Return (runs,) scores of runs on one dataset, all releases through ``door``."""

    @property
    def relation(self) -> Neighbouring:
        """Neighbouring relation of the two datasets."""
        return self.setting.relation

    @property
    def history(self) -> list[tuple[DpEvent, int]]:
        """What the ledger holds after one run: the events that the claim is made of."""
        key = self.setting.key("history")
        door = self.setting.door(key)
        self.play(ABSENT, 1, door, key)
        return door.ledger.history()

    def scores(self, dataset: int, runs: int, part: int) -> Floats:
        """Return (runs,) scores, played a stack at a time."""
        pieces = []
        for start in range(0, runs, self.stack):
            key = self.setting.key(dataset, part, start)
            count = min(self.stack, runs - start)
            pieces.append(self.play(dataset, count, self.setting.door(key), key))
        return np.concatenate(pieces)


@dataclass(frozen=True, eq=False)
class RuleExperiment(StackedExperiment):
    """A rule on two neighbouring datasets, for ``setting.steps`` steps.

    With ``alternating`` the adversary turns every gradient round at every other step, as crafted
    records can: noise that is not fresh at each step then cancels.
    ``real_sampler`` lets the sampler itself draw every batch of every run (slow); otherwise batches
    come from the law in `batches`, which a test compares with the sampler. ``draw`` numbers the
    coins of a rule that draws some; the adversary knows them.
    """

    rule: Rule
    records: Records
    setting: AuditSetting
    alternating: bool = False
    real_sampler: bool = False
    draw: int = 0

    @cached_property
    def _state(self) -> State:
        state = self.records.start(self.rule, self.setting.sampler.expected_size)
        return {**state, "step": self.draw} if "step" in state else state

    @cached_property
    def _laws(self) -> tuple[tuple[NDArray[np.bool_], Floats], ...]:
        """Possible batches and their probabilities, of each dataset."""
        return tuple(batches(self.setting.sampler, self.records.count(w)) for w in DATASETS)

    def _table(self, records: Records) -> Parts:
        """The rule's output for every batch of the absent dataset, then of the present one."""
        return stacked(
            [
                records.output(self.rule, dataset, mask, self._state)
                for dataset in DATASETS
                for mask in self._laws[dataset][0]
            ]
        )

    @cached_property
    def _steps(self) -> list[tuple[Parts, Likelihoods]]:
        """Tables and likelihoods for a step with the gradients as they are, and turned round."""
        absent, present = self._laws[ABSENT][1], self._laws[PRESENT][1]
        weights = np.zeros((2, len(absent) + len(present)))
        weights[ABSENT, : len(absent)] = absent
        weights[PRESENT, len(absent) :] = present
        tables = [self._table(self.records)]
        if self.alternating:
            # gradients of a real network cannot be turned round at will
            assert isinstance(self.records, GradientRecords)
            tables.append(self._table(self.records.turned()))
        std = self.setting.mechanism.std(tables[0])
        law = LaplaceLikelihoods if isinstance(self.setting.mechanism, Laplace) else Likelihoods
        return [(table, law.of(table, std, weights)) for table in tables]

    def shift(self) -> float:
        """Return the distance of the two releases in noise units, for one possible batch each."""
        _, likelihoods = self._steps[0]
        return float(np.linalg.norm(np.ptp(likelihoods.centres, axis=0)))

    def play(self, dataset: int, runs: int, door: Door, key: bytes) -> Floats:
        """Return the log-likelihood ratios of whole runs, summed over steps."""
        total = np.zeros(runs)
        for step in range(self.setting.steps):
            table, likelihoods = self._steps[step % len(self._steps)]
            released = door.release(step, chosen(table, self._draw(dataset, runs, step, door.run)))
            total += likelihoods.ratio(in_noise_units(released))
        return total

    def _draw(self, dataset: int, runs: int, step: int, label: str) -> NDArray[np.int64]:
        """Row of the table for each run: the batch that the sampler drew."""
        offset = len(self._laws[ABSENT][1]) if dataset == PRESENT else 0
        masks, law = self._laws[dataset]
        key = self.setting.key("batches", label, step)
        if len(law) == 1:
            return np.full(runs, offset, dtype=np.int64)
        if self.real_sampler:
            n, setting = masks.shape[1], self.setting
            whole = setting.key("batches", label)
            return offset + drawn_batches(setting.sampler, n, runs, whole, step, setting.steps)
        uniforms = stream(key, "audit batches", 0).random(runs)
        return offset + np.searchsorted(np.cumsum(law)[:-1], uniforms, side="right")


# ------------------------------------------------------------------------- datasets that hurt

NOMINAL = 10
"""Records in the adversary's datasets (the one in question not counted)."""
DRAWS = 24
"""Draws tried for a rule with coins of its own."""
TIE = 1e-4
"""Of pairs whose shifts differ by no more than this share, the simplest is taken."""
SCALES = (1e6, 1e2, 3.0, 1.0, 0.3, 0.02)
"""Lengths of gradients, from far above any threshold to far below."""


def directions(shapes: Shapes) -> dict[str, Tensor]:
    """Return one coordinate alone, all coordinates alike, and one that is neither."""
    d = dimension(shapes)
    one_hot = torch.zeros(d)
    one_hot[0] = 1.0
    generator = torch.Generator().manual_seed(7)
    mixed = torch.randn(d, generator=generator)
    return {
        "one-hot": one_hot,
        "spread": torch.full((d,), d**-0.5),
        "mixed": mixed / mixed.norm(),
    }


def pairs(
    relation: Neighbouring, shapes: Shapes = MODEL, few: bool = False
) -> Iterator[GradientRecords]:
    """Return every pair of datasets tried, or a ``few``, long and in one direction."""
    for label, u in directions(shapes).items():
        if few and label != "mixed":
            continue
        for length in SCALES[1:3] if few else SCALES:
            g = length * u
            for name, common, z, instead in _stories(g):
                other = z.new_zeros((0, len(u)))
                if relation is Neighbouring.REPLACE_ONE:
                    other = instead[None]
                title = f"{name}, {label}, {length:g}"
                yield GradientRecords(title, common, other, z[None], shapes)


def _stories(g: Tensor) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """(name, common records, the record in question, what it replaces) for a gradient g."""
    nothing = g.new_zeros((0, len(g)))
    others = g.expand(NOMINAL, -1)
    yield "canary, other batch empty", nothing, g, -g
    yield "canary among silent", g.new_zeros((NOMINAL, len(g))), g, -g
    # The newcomer outranks one of the others, which falls out of the tail. What it replaces is
    # half as long: a count of long records notices, too.
    yield "rank bump", -others, 2 * g, -g
    yield "opposite to the others", -others, g, -g
    # Alone it outweighs all others together, so a clipped mean changes its sign.
    yield "mean flip", -others, 100 * NOMINAL * g, -g
    # Whoever is displaced by the newcomer flips the next microbatch in turn.
    chain = torch.stack([-100 * g, 10 * g, -g])
    yield "chain of flips", chain, 1000 * g, -1000 * g
    # Only the size of the batch changes.
    yield "silent record", others, 0 * g, g


def worst(rule: Rule, setting: AuditSetting, shapes: Shapes = MODEL) -> RuleExperiment:
    """Return the pair with the largest shift, in units of the declared noise, on all rows.

    A rule that draws coins is given to an adversary who knows them: its sensitivity is stated for
    the worst draw, so it must hold for the worst of a few. (A rule whose *event* rests on its coins
    being secret is not bounded that way; see `transcripts.RandomRuleExperiment`.)
    """
    experiments = [
        RuleExperiment(rule, pair, setting, draw=draw)
        for pair in pairs(setting.relation, shapes, few=rule.randomised)
        for draw in range(DRAWS if rule.randomised else 1)
    ]
    shifts = [experiment.shift() for experiment in experiments]
    enough = (1 - TIE) * max(shifts)
    return next(e for e, shift in zip(experiments, shifts, strict=True) if shift >= enough)


def canary(relation: Neighbouring, silent: int = 0) -> GradientRecords:
    """Return one huge coordinate among ``silent`` zeros, which hurts per-sample clipping most."""
    z = torch.tensor([[1e6]])
    other = -z if relation is Neighbouring.REPLACE_ONE else z.new_zeros((0, 1))
    return GradientRecords("Dirac canary", z.new_zeros((silent, 1)), other, z, LINE)
