"""`make_private`: from a model, an optimiser, a dataset and a budget to a private training run.

All validation happens here, before any row is read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from dp_accounting import dp_event
from torch import nn
from torch.utils.data import Dataset

from winsor.accounting import calibrate
from winsor.arguments import as_relation, check_delta, dataset_size, make_sampler, planned_steps
from winsor.contract import Bounded, ConfigurationError, Neighbouring
from winsor.contrib.modelmix.laplace import MixedLaplace
from winsor.contrib.modelmix.mechanism import MixedGaussian, ModelMix
from winsor.contrib.modelmix.update import MixingUpdate
from winsor.grads import make_engine, refuse_unsupported, trainable_parameters
from winsor.ledger.ledger import Ledger
from winsor.mechanisms import noise
from winsor.mechanisms.gaussian import Gaussian
from winsor.mechanisms.laplace import Laplace
from winsor.randomness import new_key, subkey
from winsor.release.door import Door, Mechanism
from winsor.rules.rule import Rule
from winsor.sampling.feed import Feed
from winsor.sampling.samplers import Sampler
from winsor.training.iterates import Ball, Iterates
from winsor.training.loop import Budget, PrivateTraining
from winsor.training.update import OptimizerUpdate, Update


class Options(TypedDict, total=False):
    """The rarer arguments of `make_private`."""

    sampling: str | Sampler  # "poisson" (default), "fixed", "full", or a Sampler
    relation: str | Neighbouring  # "add_or_remove_one" (default) or "replace_one"
    max_physical_batch_size: int | None  # rows per forward pass; default: no limit
    ledger: str | os.PathLike[str] | None  # path of the ledger on disk; default: in memory
    seed: int | None  # reproducible, hence not secret; default: a fresh secret key
    mechanism: str | ModelMix | None  # "gaussian" (default), "laplace", or ModelMix(...)
    iterate: str  # which iterate to release: "last" (default), "averaged" or "random"
    ball: Ball | None  # project every iterate onto this ball
    engine: str  # "auto" (default), "ghost", "func" or "loop"
    scheduler: torch.optim.lr_scheduler.LRScheduler | None  # stepped once per logical step
    collate_fn: Callable[[list[Any]], Any] | None
    num_workers: int
    allow_large_delta: bool  # accept delta >= 1/n


def make_private(
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Dataset[Any],
    rule: Rule,
    batch_size: int,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    **options: Unpack[Options],
) -> PrivateTraining:
    """Make the training of ``model`` differentially private.

    Parameters
    ----------
    model, optimizer, dataset
        As in plain PyTorch; the optimiser owns the model's trainable parameters, the dataset is
        map-style with a length.
    rule
        How gradients are bounded, for instance ``winsor.rules.Flat(1.0)``.
    batch_size
        Expected size of a logical batch; the sampling rate is ``batch_size / len(dataset)``.
    delta
        Must be below ``1/len(dataset)`` unless ``allow_large_delta=True``.
    epsilon
        Target. Without ``noise_multiplier`` the noise is calibrated to spend it in the planned
        steps; with it, the run stops with `BudgetExceeded` before the step that would exceed it.
    noise_multiplier
        Noise standard deviation (Laplace: scale) over the rule's add/remove sensitivity.
    epochs, steps
        Length of the run; give one of them.
    **options
        See `Options`.

    Guarantee
    ---------
    `PrivateTraining.spent()` is an upper bound, under the stated neighbouring relation, on the
    privacy loss of all released gradients, hence of every model along the way.
    """
    n = dataset_size(dataset)
    check_delta(delta, n, options.get("allow_large_delta", False))
    sampler = make_sampler(options.get("sampling", "poisson"), n, batch_size)
    relation = as_relation(options.get("relation", Neighbouring.ADD_OR_REMOVE_ONE))
    refuse_unsupported(model)
    parameters = trainable_parameters(model)
    engine = make_engine(model, parameters, options.get("engine", "auto"), rule.needs)
    parts = dry_run(rule, parameters, sampler.expected_size)
    asked = options.get("mechanism")
    mix = asked if isinstance(asked, ModelMix) else None
    plan = Plan(parts, asked, sampler, relation, delta, planned_steps(epochs, steps, sampler))
    mechanism, budget = plan.noise_and_budget(epsilon, noise_multiplier)
    path = options.get("ledger")
    key = _key(options.get("seed"), path if mix is not None else None)
    scheduler = options.get("scheduler")
    update: Update = OptimizerUpdate(parameters, optimizer, scheduler)
    if mix is not None:
        update = MixingUpdate(parameters, optimizer, scheduler, mix, key)
    feed = Feed(
        dataset,
        sampler,
        key,
        options.get("max_physical_batch_size"),
        options.get("collate_fn"),
        options.get("num_workers", 0),
    )
    config = run_config(rule, mechanism, sampler, relation, delta, parameters)
    door = Door(Ledger(config, path), mechanism, sampler, relation, key)
    iterates = Iterates(options.get("iterate", "last"), subkey(key, "iterate"))
    return PrivateTraining(
        model, engine, rule, door, feed, update, budget, iterates, options.get("ball")
    )


@dataclass(frozen=True)
class Plan:
    """What a run will release, before it releases anything: enough to choose its noise."""

    parts: Mapping[str, Bounded]
    asked: str | ModelMix | None
    sampler: Sampler
    relation: Neighbouring
    delta: float
    steps: int

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        size = self.sampler.expected_size
        match self.asked:
            case None | "gaussian":
                return Gaussian(noise_multiplier)
            case "laplace":
                return Laplace(noise_multiplier)
            case ModelMix(noise="laplace") as mix:
                return MixedLaplace(noise_multiplier, mix, size)
            case ModelMix() as mix:
                return MixedGaussian(noise_multiplier, mix, size)
        raise ConfigurationError(
            f'mechanism must be "gaussian", "laplace" or ModelMix(...). Got {self.asked!r} instead.'
        )

    def events(self, noise_multiplier: float) -> list[tuple[dp_event.DpEvent, int]]:
        """The events of the planned steps, with how often each happens."""
        mechanism = self.mechanism(noise_multiplier)
        starts = [0]
        if isinstance(self.asked, ModelMix):
            starts = [first for first, _ in self.asked.schedule if first < self.steps]
        return [
            (self.sampler.amplify(mechanism.event(self.parts, first), self.relation), last - first)
            for first, last in zip(starts, [*starts[1:], self.steps], strict=True)
        ]

    def noise_and_budget(
        self, epsilon: float | None, noise_multiplier: float | None
    ) -> tuple[Mechanism, Budget]:
        """The mechanism, and the steps that the target covers with it."""
        if epsilon is not None and not (math.isfinite(epsilon) and epsilon > 0):
            raise ConfigurationError(
                f"epsilon must be positive and finite. Got {epsilon!r} instead."
            )
        if noise_multiplier is None:
            if epsilon is None:
                raise ConfigurationError("give epsilon (the target) or noise_multiplier. Got none.")
            noise_multiplier = self._calibrated(epsilon)
            return self.mechanism(noise_multiplier), self._budget(epsilon, self.steps)
        events = self.events(noise_multiplier)  # refuses what cannot be accounted for
        if epsilon is None:
            return self.mechanism(noise_multiplier), self._budget(None, None)
        allowed = min(
            calibrate.max_steps(event, epsilon, self.delta, self.relation) for event, _ in events
        )
        return self.mechanism(noise_multiplier), self._budget(epsilon, allowed)

    def _budget(self, epsilon: float | None, allowed: int | None) -> Budget:
        return Budget(self.delta, self.steps, epsilon, allowed)

    def _calibrated(self, epsilon: float) -> float:
        def whole_run(multiplier: float) -> dp_event.DpEvent:
            return dp_event.ComposedDpEvent(
                [dp_event.SelfComposedDpEvent(e, count) for e, count in self.events(multiplier)]
            )

        return calibrate.noise_multiplier(whole_run, 1, epsilon, self.delta, self.relation)


def _key(seed: int | None, hidden_beside: str | os.PathLike[str] | None) -> bytes:
    """The run's key. A run that must hide it from checkpoints keeps it in a file of its own."""
    if seed is not None or hidden_beside is None:
        return new_key(seed)
    path = Path(hidden_beside).with_suffix(".key")
    if path.exists():
        return bytes.fromhex(path.read_text().strip())
    key = new_key()
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(key.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    return key


def dry_run(
    rule: Rule, parameters: Mapping[str, nn.Parameter], expected_size: float
) -> dict[str, Bounded]:
    """The bounded parts of a step without data: what calibration and planning need to know."""
    from winsor.grads.rows import RowsView

    rows = {name: p.detach().new_zeros((0, *p.shape)) for name, p in parameters.items()}
    state = rule.init(dict(parameters), expected_size)
    return rule.bounded(rule.contributions(RowsView(rows, torch.zeros(0)), state), state)


def run_config(
    rule: Rule,
    mechanism: Mechanism,
    sampler: Sampler,
    relation: Neighbouring,
    delta: float,
    parameters: Mapping[str, nn.Parameter],
) -> dict[str, Any]:
    """What must not change between a ledger and the run that continues it."""
    return {
        "rule": repr(rule),
        **mechanism.config(),
        "noise": noise.method(),
        **sampler.config(),
        "relation": relation.value,
        "delta": delta,
        "parameters": {name: list(p.shape) for name, p in parameters.items()},
    }
