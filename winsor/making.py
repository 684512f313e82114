"""`make_private`: from a model, an optimiser, a dataset and a budget to a private training run.

All validation happens here, before any row is read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from dp_accounting import dp_event
from torch import nn
from torch.utils.data import Dataset

from winsor.accounting import calibrate
from winsor.contract import Bounded, ConfigurationError, Neighbouring
from winsor.door import Door, Mechanism
from winsor.feeding import Feed
from winsor.grads import make_engine, refuse_unsupported, trainable_parameters
from winsor.iterates import Ball, Iterates
from winsor.ledger import Ledger
from winsor.mechanisms.gaussian import Gaussian
from winsor.mechanisms.modelmix import MixedGaussian, ModelMix
from winsor.mixing import MixingUpdate
from winsor.randomness import new_key, subkey
from winsor.rules.rule import Rule
from winsor.sampling import FixedSize, FullBatch, Poisson, Sampler
from winsor.training import Budget, PrivateTraining
from winsor.update import OptimizerUpdate, Update


class Options(TypedDict, total=False):
    """The rarer arguments of `make_private`."""

    sampling: str | Sampler  # "poisson" (default), "fixed", "full", or a Sampler
    relation: str | Neighbouring  # "add_or_remove_one" (default) or "replace_one"
    max_physical_batch_size: int | None  # rows per forward pass; default: no limit
    ledger: str | os.PathLike[str] | None  # path of the ledger on disk; default: in memory
    seed: int | None  # reproducible, hence not secret; default: a fresh secret key
    mechanism: ModelMix | None  # mix iterates; default: plain Gaussian noise
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
        Noise standard deviation over the rule's add/remove sensitivity.
    epochs, steps
        Length of the run; give one of them.
    **options
        See `Options`.

    Guarantee
    ---------
    `PrivateTraining.spent()` is an upper bound, under the stated neighbouring relation, on the
    privacy loss of all released gradients, hence of every model along the way.
    """
    n = _dataset_size(dataset)
    _check_delta(delta, n, options.get("allow_large_delta", False))
    sampler = _sampler(options.get("sampling", "poisson"), n, batch_size)
    relation = _relation(options.get("relation", Neighbouring.ADD_OR_REMOVE_ONE))
    planned = _planned_steps(epochs, steps, sampler)
    parameters = trainable_parameters(model)
    refuse_unsupported(model)
    engine = make_engine(model, parameters, options.get("engine", "auto"), rule.needs)
    parts = dry_run(rule, parameters, sampler.expected_size)
    mix = options.get("mechanism")

    def build(multiplier: float) -> Mechanism:
        if mix is None:
            return Gaussian(multiplier)
        return MixedGaussian(multiplier, mix, sampler.expected_size)

    def run_event(multiplier: float) -> dp_event.DpEvent:
        """Everything the planned run releases, as one event."""
        return _composed(build(multiplier), mix, parts, sampler, relation, planned)

    multiplier = _noise(epsilon, noise_multiplier, run_event, delta, relation)
    mechanism = build(multiplier)
    path = options.get("ledger")
    key = _key(options.get("seed"), path if mix is not None else None)
    config = run_config(rule, mechanism, sampler, relation, delta, parameters)
    door = Door(Ledger(config, path), mechanism, sampler, relation, key)
    event = door.event(parts)  # refuses here what the sampler or mechanism cannot account for
    allowed = None if epsilon is None else planned
    if epsilon is not None and noise_multiplier is not None:
        allowed = calibrate.max_steps(event, epsilon, delta, relation)
    feed = Feed(
        dataset,
        sampler,
        key,
        options.get("max_physical_batch_size"),
        options.get("collate_fn"),
        options.get("num_workers", 0),
    )
    scheduler = options.get("scheduler")
    update: Update = OptimizerUpdate(parameters, optimizer, scheduler)
    if mix is not None:
        update = MixingUpdate(parameters, optimizer, scheduler, mix, key)
    budget = Budget(delta, planned, epsilon, allowed)
    iterates = Iterates(options.get("iterate", "last"), subkey(key, "iterate"))
    return PrivateTraining(
        model, engine, rule, door, feed, update, budget, iterates, options.get("ball")
    )


def _composed(
    mechanism: Mechanism,
    mix: ModelMix | None,
    parts: Mapping[str, Bounded],
    sampler: Sampler,
    relation: Neighbouring,
    steps: int,
) -> dp_event.DpEvent:
    starts = [0] if mix is None else [first for first, _ in mix.schedule if first < steps]
    ends = [*starts[1:], steps]
    return dp_event.ComposedDpEvent(
        [
            dp_event.SelfComposedDpEvent(
                sampler.amplify(mechanism.event(parts, first), relation), last - first
            )
            for first, last in zip(starts, ends, strict=True)
        ]
    )


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
        **sampler.config(),
        "relation": relation.value,
        "delta": delta,
        "parameters": {name: list(p.shape) for name, p in parameters.items()},
    }


# ---------------------------------------------------------------------------------- validation


def _dataset_size(dataset: Dataset[Any]) -> int:
    try:
        n = len(dataset)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigurationError(
            "dataset must be map-style, with a length and rows by index: the sampling rate must be "
            f"known. Got {type(dataset).__name__} instead, which has no length."
        ) from error
    if n < 1:
        raise ConfigurationError("dataset must have at least one row. Got none.")
    return n


def _check_delta(delta: float, n: int, allow_large: bool) -> None:
    if not (isinstance(delta, float | int) and 0 < delta < 1):
        raise ConfigurationError(
            f"delta must be strictly between 0 and 1. Got {delta!r} instead. A common choice is "
            f"1/(10 n) = {1 / (10 * n):.3g}."
        )
    if delta >= 1 / n and not allow_large:
        raise ConfigurationError(
            f"delta must be below 1/n = {1 / n:.3g}: otherwise publishing one record at random "
            f"would pass as private. Got {delta!r} instead. Choose a smaller delta, or say "
            "allow_large_delta=True."
        )


def _sampler(sampling: str | Sampler, n: int, batch_size: int) -> Sampler:
    if isinstance(sampling, Sampler):
        if sampling.n != n:
            raise ConfigurationError(
                f"the sampler must be built for this dataset of n = {n} rows. Got n = {sampling.n}."
            )
        if not math.isclose(sampling.expected_size, batch_size, rel_tol=1e-6):
            raise ConfigurationError(
                f"batch_size must equal the sampler's expected size {sampling.expected_size:g}. "
                f"Got {batch_size!r} instead."
            )
        return sampling
    if not isinstance(batch_size, int | float) or isinstance(batch_size, bool):
        raise ConfigurationError(f"batch_size must be a number. Got {batch_size!r} instead.")
    if batch_size > n:
        raise ConfigurationError(
            f"batch_size must be at most n = {n}, the number of rows. Got {batch_size!r} instead. "
            'Use sampling="full" to take all rows at each step.'
        )
    match sampling:
        case "poisson":
            return Poisson.of_batch_size(n, batch_size)
        case "fixed":
            return FixedSize(n, batch_size)
        case "full":
            return FullBatch(n)
    raise ConfigurationError(
        f'sampling must be "poisson", "fixed", "full" or a Sampler. Got {sampling!r} instead.'
    )


def _relation(relation: str | Neighbouring) -> Neighbouring:
    try:
        return Neighbouring(relation)
    except ValueError as error:
        names = ", ".join(r.value for r in Neighbouring)
        raise ConfigurationError(
            f"relation must be one of {names}. Got {relation!r} instead."
        ) from error


def _planned_steps(epochs: float | None, steps: int | None, sampler: Sampler) -> int:
    if (epochs is None) == (steps is None):
        raise ConfigurationError(
            f"give either epochs or steps. Got epochs={epochs!r}, steps={steps!r} instead."
        )
    if steps is not None:
        if not (isinstance(steps, int) and steps > 0):
            raise ConfigurationError(
                f"steps must be a positive whole number. Got {steps!r} instead."
            )
        return steps
    assert epochs is not None
    if not (math.isfinite(epochs) and epochs > 0):
        raise ConfigurationError(f"epochs must be positive. Got {epochs!r} instead.")
    return max(1, math.ceil(epochs / sampler.rate - 1e-9))


def _noise(
    epsilon: float | None,
    noise_multiplier: float | None,
    run_event: Callable[[float], dp_event.DpEvent],
    delta: float,
    relation: Neighbouring,
) -> float:
    if epsilon is not None and not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigurationError(f"epsilon must be positive and finite. Got {epsilon!r} instead.")
    if noise_multiplier is not None:
        return noise_multiplier
    if epsilon is None:
        raise ConfigurationError("give epsilon (the target) or noise_multiplier. Got neither.")
    return calibrate.noise_multiplier(run_event, 1, epsilon, delta, relation)
