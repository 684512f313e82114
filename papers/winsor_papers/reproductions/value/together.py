"""The runs of paper 3 that share their batches, as one cell: their steps are taken in lockstep.

Each is a run that `make_private` could make by itself: the rule is the library's, the standard
deviation of the noise is what the door would have been told to add, and the events are those that
the ledger would hold, from the same plan. Runs of one seed share their Poisson batches and their
start; each has noise of its own. Plain SGD and Algorithm 3 as printed run beside them, without an
account.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from winsor.core.accounting import certify
from winsor.core.accounting.lattice import on_grid
from winsor.core.buffers import values_in
from winsor.core.checks import as_relation
from winsor.core.events.registry import History, event_from_json, event_to_json
from winsor.core.sampling.samplers import Poisson
from winsor.gradients import trainable_parameters
from winsor.planning.run import PlannedRun
from winsor.rules.rule import dry_run
from winsor_papers.reproductions.aclip.lockstep import poisson_batches
from winsor_papers.reproductions.cells import Values, Wanted, cell, data_name, described, model_name
from winsor_papers.reproductions.training_runs import Problem
from winsor_papers.reproductions.value.lockstep import AsPrinted, Lockstep, Run

EARLY = 5
"""Before its end a run is looked at on every so many of the training rows: all of them take longer
than the steps of a linear model."""

NOTE = (
    "Runs of a seed were advanced together, on the same Poisson batches, each with noise of its "
    "own: the rows' weights are those of winsor's rules. The data are public and no run had a "
    "ledger; epsilon is winsor's account of the sampling and the noise that were used."
)


@dataclass(frozen=True)
class Accuracies:
    """Per cent on the training and the test rows at every look, and the account if it has one."""

    training_curve: tuple[float, ...]
    test_curve: tuple[float, ...]
    clipped_curve: tuple[float, ...]
    """Per cent of gradients longer than the bound since the look before; for gradient clipping."""
    history: History = ()

    @property
    def training(self) -> float:
        return self.training_curve[-1]

    @property
    def test(self) -> float:
        return self.test_curve[-1]

    def epsilon(self, delta: float) -> float:
        """Certified, of runs that have an account."""
        return _epsilon(tuple(self.history), delta)


@functools.cache  # of every seed and rate the same
def _epsilon(history: History, delta: float) -> float:
    return certify(list(history), delta).epsilon


def advanced(problem: Problem, runs: Sequence[Run], seed: int, looks: int) -> list[Accuracies]:
    """All ``runs`` with this seed, looked at so often along the way: one cell."""
    values = cell(_wanted(problem, runs, seed, looks))
    columns = (values[name] for name in ("training", "test", "clipped", "histories"))
    return [
        Accuracies(tuple(training), tuple(test), tuple(clipped), _read(history))
        for training, test, clipped, history in zip(*columns, strict=True)
    ]


def _read(history: Sequence[Sequence[Any]]) -> History:
    return tuple((event_from_json(event), count) for event, count in history)


def _wanted(problem: Problem, runs: Sequence[Run], seed: int, looks: int) -> Wanted:
    count = len(runs)

    def work() -> Values:
        accounts = [account(problem, run) for run in runs]
        noisy = [replace(run, std=std) for run, (std, _) in zip(runs, accounts, strict=True)]
        histories = [
            [[event_to_json(event), times] for event, times in history] for _, history in accounts
        ]
        return {**curves(problem, noisy, seed, looks), "histories": histories}

    return Wanted(
        f"{problem.name}, {count} runs in lockstep, {problem.steps} steps of "
        f"{problem.batch_size}, looks {looks}",
        {
            "data": data_name(*problem.train, *problem.test),
            "model": model_name(problem.model),
            "runs": [described(run) for run in runs],
            "seed": seed,
        },
        work,
        {
            **dict.fromkeys(("training", "test", "clipped"), [[50.0] * looks] * count),
            "histories": [
                [[event_to_json(event), times] for event, times in account(problem, run)[1]]
                for run in runs
            ],
        },
        problem.steps,
        lambda steps: curves(
            problem.for_steps(steps), [replace(run, std=1e-3) for run in runs], seed, 1
        ),
    )


def account(problem: Problem, run: Run) -> tuple[float, History]:
    """The standard deviation of the noise in the sum, and the events of the whole run."""
    if run.clip is None:
        return 0.0, ()
    if isinstance(run.clip, AsPrinted):
        return run.noise_multiplier * run.clip.max_grad_norm, ()
    sampler = Poisson.of_batch_size(len(problem.train[1]), problem.batch_size)
    parts = dry_run(run.clip, trainable_parameters(problem.model()), sampler.expected_size)
    relation = as_relation("add_or_remove_one")
    planned = PlannedRun(sampler, parts, "gaussian", relation, problem.delta, problem.steps)
    mechanism = planned.with_noise(run.noise_multiplier)
    sizes = {name: values_in(part.value) for name, part in parts.items()}
    std, _ = on_grid(mechanism, parts, sizes)
    return std["grad"], tuple(planned.history(run.noise_multiplier))


def curves(problem: Problem, runs: Sequence[Run], seed: int, looks: int) -> Values:
    """Advance the runs to their end; what was seen of each at the looks."""
    torch.manual_seed(seed)
    state = Lockstep(problem.model(), runs, problem.batch_size)
    (x, y), steps = problem.train, problem.steps
    name = int(data_name(x, y), 16)
    rng = np.random.Generator(np.random.SFC64([seed, name]))
    batches = poisson_batches(rng, len(y), problem.batch_size / len(y), steps)
    noise = _own_noise(f"{seed} {name} {[described(run) for run in runs]}")
    found: dict[str, list[list[float]]] = {"training": [], "test": [], "clipped": []}
    ends = [round(steps * (look + 1) / looks) for look in range(looks)]
    for step, picked in enumerate(batches, 1):
        rows = torch.from_numpy(picked)
        state.advance(x[rows], y[rows], noise)
        if step in ends:
            every = 1 if step == steps else EARLY
            found["training"].append(state.accuracies(x[::every], y[::every]))
            found["test"].append(state.accuracies(*problem.test))
            found["clipped"].append(state.frequencies())
    if not all(bool(layer.isfinite().all()) for layer in state.layers):
        raise FloatingPointError("a run of a lockstep has diverged")
    return {key: [list(own) for own in zip(*at, strict=True)] for key, at in found.items()}


def _own_noise(name: str) -> functools.partial[Tensor]:
    """A stream that no other cell has; what a run draws from it no other run gets."""
    digest = hashlib.blake2b(name.encode(), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    return functools.partial(_drawn, generator, {})


def _drawn(generator: torch.Generator, buffers: dict[torch.Size, Tensor], like: Tensor) -> Tensor:
    """In a buffer of its shape: it stays in the processor's cache."""
    buffer = buffers.setdefault(like.shape, torch.empty_like(like))
    return buffer.normal_(generator=generator)
