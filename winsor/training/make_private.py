"""`make_private`: from a model, an optimiser, a dataset and a budget to a private training run.

All validation happens here, before any row is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack

import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import Dataset

from winsor.core.accounting import event_to_json
from winsor.core.checks import choice, refuse_unknown, whole
from winsor.core.contract import ConfigurationError, LedgerError, Neighbouring
from winsor.core.door import Door
from winsor.core.ledger.ledger import Ledger
from winsor.core.ledger.shared import SharedLedger
from winsor.core.noise.protocol import Choice, Mechanism
from winsor.core.noise.slices import Source, noise_method
from winsor.core.randomness import new_key, subkey
from winsor.core.sampling.samplers import Sampler
from winsor.core.sampling.units import UnitRows
from winsor.gradients import make_engine, trainable_parameters
from winsor.planning.choose import dataset_size
from winsor.planning.run import PlannedRun
from winsor.rules.rule import Rule
from winsor.training.checks.arguments import refuse_wrong_kinds
from winsor.training.feeding.feed import Feed
from winsor.training.grouping import Grouping
from winsor.training.iterates import Ball, Iterates, first_counted
from winsor.training.loop import PrivateTraining
from winsor.training.planned import noise_and_budget, planned_run, slots_of
from winsor.training.ranks.agreement import agree_to_train
from winsor.training.ranks.ranks import Ranks
from winsor.training.ranks.shard_sums import ShardedUpdate, refuse_shards, with_parts
from winsor.training.ranks.sharded import Shards, inside
from winsor.training.saving.settings import settings_of_optimizer
from winsor.training.saving.state import StepBudget
from winsor.training.tamper_guard import TamperGuard
from winsor.training.update import OptimizerUpdate, OwnUpdate, Update, refuse_foreign_optimizer

Unit = Sequence[Any] | NDArray[Any] | Callable[[Any], Any]


class Options(TypedDict, total=False):
    """The rarer arguments of `make_private`."""

    sampling: str | Sampler  # "poisson" (default), "fixed", "full", "allocation", "loader"
    relation: str | Neighbouring  # "add_or_remove_one" (default) or "replace_one"
    max_physical_batch_size: int | None  # rows per forward pass; default: no limit
    ledger: str | os.PathLike[str] | None  # path of the ledger on disk; default: in memory
    seed: int | None  # reproducible, hence not secret; default: a fresh secret key
    mechanism: str | Choice | None  # "gaussian" (default), "laplace", ModelMix(...), Banded(...)
    iterate: str  # which iterate to release: "last" (default), "ema", "tail", "random", ... (KINDS)
    ball: Ball | None  # project every iterate onto this ball
    engine: str  # "auto" (default), "ghost", "func" or "loop"
    scheduler: torch.optim.lr_scheduler.LRScheduler | None  # stepped once per logical step
    collate_fn: Callable[[list[Any]], Any] | None
    num_workers: int
    allow_large_delta: bool  # accept delta >= 1/n
    resume: bool  # repeat a run whose key is in the ledger from its start, without a checkpoint
    public_buffers: Sequence[str]  # buffers that the forward pass may write: they see no row
    sampling_rate: float | None  # of Poisson batches, where the number of rows is not public
    unit: Unit | None  # who is protected: an identifier for each row, or a function of the row
    rows_per_unit: int  # of one unit in one step; default 8
    within_unit: str  # "mean" (default) or "sum" of the gradients of a unit's rows
    group_size: int  # losses per row: K augmented views of it, averaged before clipping
    fixed_shapes: bool  # physical batches of one public size, in which rows keep their slots
    after: Sequence[Any]  # what was spent on these rows before: epsilon is then of all together
    after_in_ledger: bool  # the run's own ledger and guarantee count what was spent before


class Arguments(Options, total=False):
    """Everything `make_private` takes, for functions that pass it on."""

    model: Required[nn.Module]
    optimizer: Required[torch.optim.Optimizer]
    dataset: Required[Dataset[Any]]
    rule: Required[Rule]
    batch_size: Required[int]
    delta: Required[float]
    epsilon: float | None
    noise_multiplier: float | None
    epochs: float | None
    steps: int | None


ELSEWHERE = {
    "lr_scheduler": "scheduler=",
    "lr": "optimizer=torch.optim.SGD(model.parameters(), lr=...)",
    "learning_rate": "optimizer=torch.optim.SGD(model.parameters(), lr=...)",
    "num_epochs": "epochs=",
    "max_epochs": "epochs=",
    "num_train_epochs": "epochs=",
    "max_steps": "steps=",
    "sigma": "noise_multiplier=",
    "train_dataset": "dataset=",
    "callbacks": "winsor.fit(callbacks=[...])",
    "loss": "winsor.fit(loss, ...)",
    "max_grad_norm": "rule=winsor.rules.Flat(max_grad_norm)",
    "max_norm": "rule=winsor.rules.Flat(max_norm)",
    "clipping": "rule=",
    "poisson_sampling": 'sampling="poisson"',
    "data_loader": "dataset= and batch_size=",
    "target_epsilon": "epsilon=",
    "target_delta": "delta=",
    "random_state": "seed=",
}
"""What other libraries call an argument, and what says the same here."""


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

    All arguments are checked here, and the noise is calibrated, before any batch is drawn.

    Parameters
    ----------
    model, optimizer, dataset
        As in plain PyTorch. The optimiser owns the model's trainable parameters; the dataset is
        map-style with a length.
    rule
        How gradients are bounded, for instance ``winsor.rules.Flat(1.0)``.
    batch_size
        Expected size of a logical batch; the sampling rate is ``batch_size / len(dataset)``. With
        ``unit=`` it counts units.
    delta
        Must be below ``1/len(dataset)`` unless ``allow_large_delta=True``.
    epsilon
        Target. Without ``noise_multiplier`` the noise is calibrated to spend it in the planned
        steps; with it, the run stops with `BudgetExceeded` before the step that would exceed it.
    noise_multiplier
        Noise standard deviation (Laplace: scale) over the rule's add/remove sensitivity.
    epochs, steps
        Length of the run; give one of them.
    sampling, sampling_rate, relation, mechanism
        How batches are drawn, which datasets are neighbours, and which noise is added.
    unit, rows_per_unit, within_unit, group_size
        Who is protected if it is not one row, how many rows of a unit enter a step and whether
        their gradients are averaged or summed; how many augmented views a row has.
    engine, max_physical_batch_size, collate_fn, num_workers, scheduler
        How gradients are computed, how rows are loaded, and what changes the learning rate.
    fixed_shapes
        Give every physical batch one public number of slots and every row a slot of its own. Empty
        slots hold zeros and count for nothing, whatever their losses are; ``step`` takes a loss for
        each slot. All rows must have one shape.
    iterate, ball, public_buffers
        Which iterate is released, the ball that it is projected onto, and the buffers that the
        forward pass may write.
    ledger, seed, resume, after, after_in_ledger, allow_large_delta
        Where the ledger is, what makes the noise reproducible, and what was spent before. See
        `Options` for types and defaults. An unknown name is refused.

    Returns
    -------
    PrivateTraining
        The run: loop over its ``batches()`` and pass each batch's losses to its ``step()``.

    Guarantee
    ---------
    `PrivateTraining.spent()` is an upper bound, under the stated neighbouring relation, on the
    privacy loss of all released gradients, hence of every model along the way. It lists the
    conditions that it rests on.

    Examples
    --------
    >>> import torch, winsor
    >>> from torch.utils.data import TensorDataset
    >>> model = torch.nn.Linear(3, 2)
    >>> private = winsor.make_private(
    ...     model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    ...     dataset=TensorDataset(torch.randn(500, 3), torch.zeros(500, dtype=torch.long)),
    ...     rule=winsor.rules.Flat(1.0), batch_size=50, steps=20, epsilon=2.0, delta=1e-4,
    ... )
    >>> round(private.noise_multiplier, 2)
    1.21
    """
    refuse_unknown("make_private", options, Arguments.__annotations__, ELSEWHERE)
    arguments = Arguments(
        model=model, optimizer=optimizer, dataset=dataset, rule=rule,
        batch_size=batch_size, delta=delta, epsilon=epsilon, noise_multiplier=noise_multiplier,
        epochs=epochs, steps=steps, **options,
    )  # fmt: skip
    refuse_wrong_kinds(arguments)
    model = arguments["model"] = inside(model)
    shards = Shards.of(model)
    units = _units(arguments)
    planned = planned_run(arguments, units)
    slots = slots_of(arguments, planned)
    parameters = trainable_parameters(model)
    engine = make_engine(model, parameters, options.get("engine", "auto"), rule.needs)
    mechanism, budget = noise_and_budget(planned, epsilon, noise_multiplier)
    ranks = Ranks.here(next(iter(parameters.values())).device)
    path = options.get("ledger") if ranks is None or ranks.rank == 0 else None
    key = _shared_key(planned, arguments, path, ranks)
    update = _update(parameters, arguments, planned, shards, key)
    feed = Feed(
        dataset,
        planned.sampler,
        key,
        options.get("max_physical_batch_size"),
        options.get("collate_fn"),
        options.get("num_workers", 0),
        units,
        None if ranks is None else ranks.part,
        None if slots is None else slots[0],
    )
    config = run_config(
        rule, mechanism, planned.sampler, planned.relation, planned.delta, parameters
    )
    config["unit"] = "row" if units is None else "person"
    config |= {} if units is None else {"rows_per_unit": units.rows_per_unit}
    config |= {} if slots is None else {"slots": [slots[0].batches, slots[0].size]}
    if options.get("after_in_ledger", False):
        config["before"] = [[event_to_json(event), count] for event, count in planned.before]
    source: Source | None = None
    if ranks is None:
        ledger = Ledger(config, path)
    else:
        held = settings_of_optimizer(optimizer, options.get("scheduler"))
        agree_to_train(ranks, config, parameters, dataset, key, held, units)
        ranks, source = with_parts(ranks, update, rule, mechanism)
        ledger = SharedLedger(config, path, ranks)
    door = Door(ledger, mechanism, planned.sampler, planned.relation, key, source)
    private = PrivateTraining(
        model, engine, rule, door, feed, update, budget,
        _iterates(update, budget, key, arguments), options.get("ball"),
        TamperGuard(model, options.get("public_buffers", ())),
        tuple(_conditions(planned.sampler, arguments, units)), _grouping(units, arguments),
        ranks,
    )  # fmt: skip
    if options.get("resume", False):
        private.allow_repeat()
    return private


def _shared_key(
    planned: PlannedRun,
    arguments: Arguments,
    path: str | os.PathLike[str] | None,
    ranks: Ranks | None,
) -> bytes:
    """The run's key, which all ranks have in common."""
    own = planned.mechanism
    hidden = isinstance(own, OwnUpdate) and own.hides_randomness
    seed = arguments.get("seed")
    key = _key(seed, path if hidden else None)
    if ranks is None:
        return key
    ranks.agree(seed=seed)
    return ranks.shared_key(key)


def _update(
    parameters: dict[str, nn.Parameter],
    arguments: Arguments,
    planned: PlannedRun,
    shards: Shards | None,
    key: bytes,
) -> Update:
    """What will be done with the released gradients."""
    optimizer, scheduler = arguments["optimizer"], arguments.get("scheduler")
    owned = parameters if shards is None else shards.owned_by_optimizer(parameters)
    refuse_foreign_optimizer(owned, optimizer)
    size = planned.sampler.expected_size
    if isinstance(planned.mechanism, OwnUpdate):
        refuse_shards(shards)
        return planned.mechanism.update(parameters, optimizer, scheduler, size, key)
    if shards is not None:
        return ShardedUpdate(parameters, optimizer, scheduler, size, shards)
    return OptimizerUpdate(parameters, optimizer, scheduler, size)


def _iterates(update: Update, budget: StepBudget, key: bytes, arguments: Arguments) -> Iterates:
    before = getattr(update, "before", None)  # w_-1, of an update that has one
    released = arguments.get("iterate", "last")
    first = first_counted(released, budget.planned_steps)
    return Iterates(released, subkey(key, "iterate"), first, before)


def _units(arguments: Arguments) -> UnitRows | None:
    """Return which rows belong to which person, if persons are protected and not rows."""
    dataset, given = arguments["dataset"], arguments.get("unit")
    if given is None:
        return None
    n = dataset_size(dataset)
    ids = [given(dataset[i]) for i in range(n)] if callable(given) else given
    units = UnitRows(ids, arguments.get("rows_per_unit", 8))
    if units.n_rows != n:
        raise ConfigurationError(
            f"unit must give one identifier for each of the {n} rows. Got {units.n_rows} instead."
        )
    return units


def _grouping(units: UnitRows | None, arguments: Arguments) -> Grouping | None:
    views = whole("group_size", arguments.get("group_size", 1))
    within = choice("within_unit", arguments.get("within_unit", "mean"), ("mean", "sum"))
    return None if units is None and views == 1 else Grouping(views, within == "mean")


def _conditions(sampler: Sampler, arguments: Arguments, units: UnitRows | None) -> Iterator[str]:
    """What the guarantee rests on that no program can check."""
    yield "the weights at the start do not come from these rows"
    if units is not None:
        yield (
            f"one unit with all its rows is protected; up to {units.rows_per_unit} of its rows "
            "enter a step"
        )
    if sampler.overflow:
        yield f"delta covers draws of more rows than slots: {sampler.overflow:.1e} a step"
    if sampler.public_n:
        what = "n" if units is None else "the number of units, n"
        yield f"{what} = {sampler.n} is public: it sets the sampling rate"
    if arguments.get("after") and arguments.get("after_in_ledger", False):
        yield "what was released of the same rows before the run is counted with it"
    elif arguments.get("after"):
        yield "this run alone: winsor.total adds what was spent before it on the same rows"
    if arguments.get("seed") is not None:
        yield "noise from a known seed: whoever knows the seed can subtract it"


def _key(seed: int | None, hidden_beside: str | os.PathLike[str] | None) -> bytes:
    """The run's key. A run that must hide it from checkpoints keeps it in a file of its own."""
    if seed is not None or hidden_beside is None:
        return new_key(seed)
    path = Path(hidden_beside).with_suffix(".key")
    if path.exists():
        return bytes.fromhex(path.read_text().strip())
    key = new_key()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if not isinstance(error, FileExistsError):  # that one would be another run's
            path.unlink(missing_ok=True)
        raise LedgerError(
            f"cannot write the key {path}: {error.strerror or error}. Nothing was released. Make "
            "room or give a writable path."
        ) from error
    return key


def run_config(
    rule: Rule,
    mechanism: Mechanism,
    sampler: Sampler,
    relation: Neighbouring,
    delta: float,
    parameters: Mapping[str, nn.Parameter],
) -> dict[str, Any]:
    """Return what must not change between a ledger and the run that continues it."""
    return {
        "rule": repr(rule),
        **mechanism.config(),
        "noise": noise_method(),
        **sampler.config(),
        "relation": relation.value,
        "delta": delta,
        "parameters": {name: list(p.shape) for name, p in parameters.items()},
    }
