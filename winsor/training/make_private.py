"""`make_private`: from a model, an optimiser, a dataset and a budget to a private training run.

All validation happens here, before any row is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack

import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import Dataset

from winsor.core.accounting import event_to_json
from winsor.core.checks import as_delta, as_relation, choice, refuse_unknown, whole
from winsor.core.contract import ConfigurationError, LedgerError, Neighbouring
from winsor.core.door import Door
from winsor.core.ledger.guarantee import together
from winsor.core.ledger.holders import earlier_ledgers
from winsor.core.ledger.ledger import Ledger
from winsor.core.ledger.shared import SharedLedger
from winsor.core.noise.protocol import Choice, Mechanism
from winsor.core.noise.slices import Source, noise_method
from winsor.core.randomness import new_key, subkey
from winsor.core.sampling.samplers import Poisson, Sampler
from winsor.core.sampling.units import UnitRows
from winsor.gradients import make_engine, refuse_unsupported, trainable_parameters
from winsor.planning.bands import Banded, Workload
from winsor.planning.choose import dataset_size, make_sampler, planned_steps
from winsor.rules.rule import Rule, dry_run
from winsor.training.correlated import cyclic, learning_rates, momentum
from winsor.training.feeding.feed import Feed
from winsor.training.grouping import Grouping
from winsor.training.guard import ModelGuard
from winsor.training.iterates import Ball, Iterates, first_counted
from winsor.training.loop import PrivateTraining, StepBudget
from winsor.training.planned import PlannedSteps
from winsor.training.ranks.ranks import Ranks
from winsor.training.ranks.sharded import Shards
from winsor.training.ranks.wrapped import inside
from winsor.training.right_kinds import refuse_wrong_kinds
from winsor.training.settings import settings_of_optimizer
from winsor.training.sharded import ShardedUpdate, refuse_shards, with_parts
from winsor.training.together import agree_to_train
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

    Parameters
    ----------
    model, optimizer, dataset
        As in plain PyTorch; the optimiser owns the model's trainable parameters, the dataset is
        map-style with a length.
    rule
        How gradients are bounded, for instance ``winsor.rules.Flat(1.0)``.
    batch_size
        Expected size of a logical batch; the sampling rate is ``batch_size / len(dataset)``. With
        ``unit=``, in units.
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
        See `Options`. An unknown name is refused.

    Guarantee
    ---------
    `PrivateTraining.spent()` is an upper bound, under the stated neighbouring relation, on the
    privacy loss of all released gradients, hence of every model along the way.

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
    given = {"model": model, "optimizer": optimizer, "dataset": dataset, "rule": rule}
    refuse_wrong_kinds({**given, **options})
    model = inside(model)
    shards = Shards.of(model)
    units = _units(dataset, options)
    n = dataset_size(dataset) if units is None else units.n
    delta = as_delta(delta, n, options.get("allow_large_delta", False))
    drawn = _Drawn.asked_for(n, batch_size, optimizer, (epochs, steps), (epsilon, delta), options)
    refuse_unsupported(model)
    parameters = trainable_parameters(model)
    engine = make_engine(model, parameters, options.get("engine", "auto"), rule.needs)
    planned = PlannedSteps(
        dry_run(rule, parameters, drawn.sampler.expected_size),
        drawn.asked, drawn.sampler, drawn.relation, delta,
        planned_steps(epochs, steps, drawn.sampler),
        tuple(together(earlier_ledgers(options.get("after", ()), drawn.relation))),
    )  # fmt: skip
    mechanism, budget = planned.noise_and_budget(epsilon, noise_multiplier)
    ranks = Ranks.here(next(iter(parameters.values())).device)
    path = options.get("ledger") if ranks is None or ranks.rank == 0 else None
    key = _shared_key(drawn.own_update, options, path, ranks)
    update = _update(parameters, optimizer, options.get("scheduler"), drawn, shards, key)
    feed = Feed(
        dataset,
        drawn.sampler,
        key,
        options.get("max_physical_batch_size"),
        options.get("collate_fn"),
        options.get("num_workers", 0),
        units,
        None if ranks is None else ranks.part,
    )
    config = run_config(rule, mechanism, drawn.sampler, drawn.relation, delta, parameters)
    config |= {} if units is None else {"rows_per_unit": units.rows_per_unit}
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
    door = Door(ledger, mechanism, drawn.sampler, drawn.relation, key, source)
    private = PrivateTraining(
        model, engine, rule, door, feed, update, budget,
        _iterates(update, budget, key, options), options.get("ball"),
        ModelGuard(model, options.get("public_buffers", ())),
        tuple(_conditions(drawn.sampler, options, units)), _grouping(units, options),
        ranks,
    )  # fmt: skip
    if options.get("resume", False):
        private.allow_repeat()
    return private


@dataclass(frozen=True)
class _Drawn:
    """How rows are drawn, and which noise was asked for: both may depend on each other."""

    sampler: Sampler
    asked: str | Choice
    relation: Neighbouring

    @staticmethod
    def asked_for(
        n: int,
        batch_size: int,
        optimizer: torch.optim.Optimizer,
        length: tuple[float | None, int | None],
        target: tuple[float | None, float],
        options: Options,
    ) -> _Drawn:
        """``length`` is epochs and steps as given, ``target`` epsilon and delta."""
        asked, sampling = options.get("mechanism") or "gaussian", options.get("sampling")
        if isinstance(asked, Banded):
            steps = planned_steps(*length, Poisson.of_batch_size(n, batch_size))
            rates = learning_rates(optimizer, options.get("scheduler"), steps)
            workload = Workload(steps, momentum(optimizer), rates)
            asked = asked.settled(workload, batch_size / n, *target)
            sampling = cyclic(sampling, n, batch_size, asked)
        rate = options.get("sampling_rate")
        relation = options.get("relation", Neighbouring.ADD_OR_REMOVE_ONE)
        sampler = make_sampler(sampling or "poisson", n, batch_size, rate)
        return _Drawn(sampler, asked, as_relation(relation))

    @property
    def own_update(self) -> OwnUpdate | None:
        """The mechanism, if it updates the model in its own way."""
        return self.asked if isinstance(self.asked, OwnUpdate) else None


def _shared_key(
    own: OwnUpdate | None,
    options: Options,
    path: str | os.PathLike[str] | None,
    ranks: Ranks | None,
) -> bytes:
    """The run's key, which all ranks have in common."""
    key = _key(options.get("seed"), path if own is not None and own.hides_randomness else None)
    if ranks is None:
        return key
    ranks.agree(seed=options.get("seed"))
    return ranks.shared_key(key)


def _update(
    parameters: dict[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None,
    drawn: _Drawn,
    shards: Shards | None,
    key: bytes,
) -> Update:
    """What will be done with the released gradients."""
    owned = parameters if shards is None else shards.owned_by_optimizer(parameters)
    refuse_foreign_optimizer(owned, optimizer)
    size = drawn.sampler.expected_size
    if drawn.own_update is not None:
        refuse_shards(shards)
        return drawn.own_update.update(parameters, optimizer, scheduler, size, key)
    if shards is not None:
        return ShardedUpdate(parameters, optimizer, scheduler, size, shards)
    return OptimizerUpdate(parameters, optimizer, scheduler, size)


def _iterates(update: Update, budget: StepBudget, key: bytes, options: Options) -> Iterates:
    before = getattr(update, "before", None)  # w_-1, of an update that has one
    released = options.get("iterate", "last")
    first = first_counted(released, budget.planned_steps)
    return Iterates(released, subkey(key, "iterate"), first, before)


def _units(dataset: Dataset[Any], options: Options) -> UnitRows | None:
    """Whose rows are whose, if persons are protected and not rows."""
    given = options.get("unit")
    if given is None:
        return None
    n = dataset_size(dataset)
    ids = [given(dataset[i]) for i in range(n)] if callable(given) else given
    units = UnitRows(ids, options.get("rows_per_unit", 8))
    if units.n_rows != n:
        raise ConfigurationError(
            f"unit must give one identifier for each of the {n} rows. Got {units.n_rows} instead."
        )
    return units


def _grouping(units: UnitRows | None, options: Options) -> Grouping | None:
    views = whole("group_size", options.get("group_size", 1))
    within = choice("within_unit", options.get("within_unit", "mean"), ("mean", "sum"))
    return None if units is None and views == 1 else Grouping(views, within == "mean")


def _conditions(sampler: Sampler, options: Options, units: UnitRows | None) -> Iterator[str]:
    """What the guarantee rests on that no program can check."""
    yield "the weights at the start do not come from these rows"
    if units is not None:
        yield (
            f"one unit with all its rows is protected; up to {units.rows_per_unit} of its rows "
            "enter a step"
        )
    if sampler.public_n:
        what = "n" if units is None else "the number of units, n"
        yield f"{what} = {sampler.n} is public: it sets the sampling rate"
    if options.get("after") and options.get("after_in_ledger", False):
        yield "what was released of the same rows before the run is counted with it"
    elif options.get("after"):
        yield "this run alone: winsor.total adds what was spent before it on the same rows"
    if options.get("seed") is not None:
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
    """What must not change between a ledger and the run that continues it."""
    return {
        "rule": repr(rule),
        **mechanism.config(),
        "noise": noise_method(),
        **sampler.config(),
        "relation": relation.value,
        "delta": delta,
        "parameters": {name: list(p.shape) for name, p in parameters.items()},
    }
