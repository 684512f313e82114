"""From a configuration to a run: checked without data, then built with them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from winsor.app.runs.config import Config
from winsor.app.runs.data import Data, load_data
from winsor.app.runs.directory import RunDirectory
from winsor.app.runs.models import build_model, check_model
from winsor.app.runs.parts import (
    Off,
    build_mechanism,
    build_optimizer,
    build_rule,
    build_schedule,
    check_drawing,
    check_optimizer,
    check_schedule,
    make_monitor,
)
from winsor.app.runs.tasks import Progress, Task, check_held_out, check_rows, make_task, probe
from winsor.core.contract import Neighbouring
from winsor.planning.choose import make_sampler, planned_steps
from winsor.training.iterates import Ball
from winsor.training.loop import PrivateTraining
from winsor.training.make_private import Arguments, make_private
from winsor.training.spending import Spending


@dataclass
class Assembled:
    """Everything a run consists of, built from its configuration."""

    config: Config
    data: Data
    task: Task
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    private: PrivateTraining
    spending: Spending
    monitor: Off

    @property
    def planned(self) -> int:
        """The number of steps that the noise was chosen for."""
        return self.private.budget.planned_steps


def check(config: Config) -> None:
    """Build everything that needs no data, so that mistakes show before anything is written."""
    build_rule(config.rule)
    check_drawing(config)
    check_optimizer(config.optimizer)
    check_schedule(config.schedule)
    check_model(config.model, config.data)
    if config.transforms:
        from winsor.app.runs.prepare import build_features, check_prepare

        build_features(config.features)
        check_prepare(config)
    make_task(config)
    check_held_out(config)


def assemble(config: Config, directory: RunDirectory, data: Data) -> Assembled:
    """Build model, optimiser and private training; only `prepare` has looked at values of rows."""
    check_rows(config, data)
    earlier: list[Any] = []
    profile = None
    if config.transforms:
        from winsor.app.runs.prepare import prepared, with_features

        begun = prepared(config, with_features(config.features, data), directory)
        data, earlier, profile = begun.data, begun.spent, begun.profile
    progress = Progress()
    task = make_task(config, progress, profile)
    model = build_model(config.model, data, config.seed)
    probe(task, model, data, language=config.data.task == "language")
    ball = ball_of(config, model)
    optimizer = build_optimizer(config.optimizer, model)
    training, budget = config.training, config.budget
    n = data.protected
    batch_size = n if training.batch_size is None else training.batch_size
    # groups for correlated noise are made once its bands are chosen; a step draws as many rows
    by_length = "poisson" if training.sampling == "cyclic" else training.sampling
    planned = planned_steps(training.epochs, training.steps, make_sampler(by_length, n, batch_size))
    scheduler = build_schedule(config.schedule, optimizer, planned)
    monitor = make_monitor(build_rule(config.rule, model, config), config.record)
    arguments = {
        **settings_of_make_private(config),
        "batch_size": batch_size,
        "epochs": None,
        "steps": planned,
    }
    private = make_private(
        model=model,
        optimizer=optimizer,
        dataset=data.train,
        rule=monitor.rule,
        ledger=directory.ledger,
        seed=config.noise_seed(),
        mechanism=build_mechanism(config.mechanism),
        ball=ball,
        scheduler=scheduler,
        unit=data.unit,
        after=earlier,
        after_in_ledger=bool(earlier),
        **arguments,
    )
    progress.run = private
    calibrated = budget.epsilon is not None and budget.noise_multiplier is None
    relation = Neighbouring(budget.relation)
    block = private.sampler.block
    spending = Spending(private.ledger, relation, private.budget, calibrated, block=block)
    return Assembled(config, data, task, model, optimizer, scheduler, private, spending, monitor)


def settings_of_make_private(config: Config) -> dict[str, Any]:
    """The settings that `make_private` takes under the same name, from [budget] and [training]."""
    given = {**vars(config.budget), **vars(config.training)}
    return {name: value for name, value in given.items() if name in Arguments.__annotations__}


def ball_of(config: Config, model: nn.Module) -> Ball | None:
    """The ball that the iterates must stay in; the start, which is one of them, is moved there."""
    radius, centre = config.training.ball_radius, config.training.ball_centre
    if radius is None:
        return None
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    ball = Ball(radius, trained if centre == "start" else None)
    ball.project_(trained)
    return ball


def build_untrained(path: Path | str) -> tuple[PrivateTraining, Any]:
    """Build the run of a `winsor train` directory anew, untrained, for a one-run audit.

    Its files must agree; then only the configuration is read, and the data from where it says.
    Nothing is written there: the new run keeps its ledger in a temporary folder. Returns the
    training and its loss.
    """
    directory = RunDirectory(path)
    directory.refuse_disagreements(leftovers=False)
    config = directory.config()
    data = load_data(config.data)
    with tempfile.TemporaryDirectory() as elsewhere:
        run = assemble(config, RunDirectory(elsewhere), data)
    return run.private, run.task.losses
