"""A run from its configuration to its result, resumable at any moment."""

from __future__ import annotations

import shlex
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from winsor.app.runs.config import Config, DataSettings
from winsor.app.runs.data import Data, load_data
from winsor.app.runs.directory import Row, RunDirectory, RunError, describe_session, sense
from winsor.app.runs.features import with_features
from winsor.app.runs.models import build_model
from winsor.app.runs.monitoring import Off, make_monitor
from winsor.app.runs.optimisers import build_optimizer, build_schedule
from winsor.app.runs.parts import ball_of, build_mechanism, build_rule, check
from winsor.app.runs.prepare import noise_seed, note_prepared, prepared
from winsor.app.runs.private_held_out import check_rows, measured
from winsor.app.runs.restoring import refuse_other_kinds
from winsor.app.runs.sealing import bind_config
from winsor.app.runs.stopping import Interrupted, StopRequest
from winsor.app.runs.tasks import Metrics, Progress, Task, evaluate, fitting, make_task, probe
from winsor.app.runs.verifying import refuse_disagreements
from winsor.core.contract import (
    BudgetExceeded,
    CalibrationError,
    ConfigurationError,
    LossError,
    Neighbouring,
    UnsupportedModel,
)
from winsor.planning.choose import make_sampler, planned_steps
from winsor.training.callbacks import public_numbers
from winsor.training.loop import PrivateTraining
from winsor.training.make_private import make_private
from winsor.training.saving import everything, restore
from winsor.training.spending import Spending

CHECKPOINT_FORMAT = 2
MISTAKES = (ConfigurationError, CalibrationError, UnsupportedModel, LossError)
"""What a user mends in the configuration, and then calls the same command again."""


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
        return self.private.budget.planned_steps


class Observer(Protocol):
    """Watches a run. It is shown nothing exact about private rows unless debug was asked for."""

    def started(self, run: Assembled, directory: RunDirectory) -> None: ...
    def stepped(self, run: Assembled) -> None: ...
    def recorded(self, run: Assembled, row: Row) -> None: ...
    def finished(self, result: dict[str, Any]) -> None: ...


def execute(
    config: Config,
    path: Path | str,
    observer: Observer,
    *,
    source: str | None = None,
    load: Callable[[DataSettings], Data] = load_data,
) -> dict[str, Any]:
    """Run, or resume, or just give the result if the run is finished.

    ``source`` is the text of the configuration, to be kept; ``load`` reads the data, and is called
    only if there is something left to do.
    """
    directory = RunDirectory(path)
    all_ours = directory.empty
    data: Data | None = None
    if not directory.exists:
        check(config)
        data = load(config.data)  # a mistake in it shows before anything is written
    directory.create(config, source)
    result = directory.result()
    if result is not None:
        refuse_disagreements(directory.path, leftovers=False)  # before anything is believed
        if not config.record.keep_checkpoint:
            directory.destroy_key()  # the run may have been killed between the result and this
        observer.finished(result)
        return result
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    try:
        return _run(assemble(config, directory, data or load(config.data)), directory, observer)
    except MISTAKES:
        if all_ours:
            directory.withdraw()
        raise


def _run(run: Assembled, directory: RunDirectory, observer: Observer) -> dict[str, Any]:
    try:
        return Execution(run, directory, observer).go()
    finally:
        run.private.detach()
        directory.close()


def assemble(config: Config, directory: RunDirectory, data: Data) -> Assembled:
    """Build model, optimiser and private training; only `prepare` has looked at values of rows."""
    check_rows(config, data)
    begun = prepared(config, with_features(config.features, data), directory)
    data, earlier = begun.data, begun.spent
    progress = Progress()
    task = make_task(config, progress, begun.profile)
    model = build_model(config.model, data, config.seed)
    probe(task, model, data, language=config.data.task == "language")
    ball = ball_of(config, model)
    optimizer = build_optimizer(config.optimizer, model)
    training, budget = config.training, config.budget
    n = data.protected
    batch_size = n if training.batch_size is None else training.batch_size
    # groups for correlated noise are made once its bands are chosen; a step draws as many rows
    by_length = "poisson" if training.sampling == "cyclic" else training.sampling
    sampler = make_sampler(by_length, n, batch_size)
    planned = planned_steps(training.epochs, training.steps, sampler)
    scheduler = build_schedule(config.schedule, optimizer, planned)
    monitor = make_monitor(build_rule(config.rule, model, config), config.record)
    private = make_private(
        model=model,
        optimizer=optimizer,
        dataset=data.train,
        rule=monitor.rule,
        batch_size=batch_size,
        delta=budget.delta,
        epsilon=budget.epsilon,
        noise_multiplier=budget.noise_multiplier,
        steps=planned,
        sampling=training.sampling,
        relation=budget.relation,
        max_physical_batch_size=training.max_physical_batch_size,
        ledger=directory.ledger,
        seed=noise_seed(config),
        mechanism=build_mechanism(config.mechanism),
        iterate=training.iterate,
        ball=ball,
        engine=training.engine,
        scheduler=scheduler,
        num_workers=training.num_workers,
        allow_large_delta=budget.allow_large_delta,
        unit=data.unit,
        rows_per_unit=training.rows_per_unit,
        within_unit=training.within_unit,
        after=earlier,
        after_in_ledger=bool(earlier),
    )
    progress.run = private
    calibrated = budget.epsilon is not None and budget.noise_multiplier is None
    relation = Neighbouring(budget.relation)
    block = private.sampler.block
    spending = Spending(private.ledger, relation, private.budget, calibrated, block=block)
    return Assembled(config, data, task, model, optimizer, scheduler, private, spending, monitor)


class Execution:
    """The loop of one run: step, record, evaluate, checkpoint, until done or told to stop."""

    def __init__(self, run: Assembled, directory: RunDirectory, observer: Observer) -> None:
        self.run = run
        self.directory = directory
        self.observer = observer
        evaluations = run.config.record.evaluations or affordable_evaluations(run)
        self._rows = marks(run.planned, max(run.config.record.rows, evaluations))
        self._evaluations = marks(run.planned, evaluations)
        self._latest: tuple[int, Metrics] = (-1, {})
        self._seconds_before = 0.0
        self._begun = time.perf_counter()

    def go(self) -> dict[str, Any]:
        private = self.run.private
        with sense(self.directory.path / "checkpoint.pt"):
            self._resume()
        bind_config(private.ledger, self.directory.path)
        note_prepared(private.ledger, self.directory.path)
        self.directory.note_environment(describe_session())
        self._begun = self._saved = time.perf_counter()
        self.observer.started(self.run, self.directory)
        stopped = "planned steps done"
        with StopRequest() as stop:
            if private.steps_done < self.run.planned:
                try:
                    self._loop(stop)
                except BudgetExceeded:
                    stopped = "budget spent"
        return self._finish(stopped)

    # ------------------------------------------------------------------------------ the loop

    def _loop(self, stop: StopRequest) -> None:
        run, private = self.run, self.run.private
        private.check(run.task.losses)
        done = private.steps_done
        for batch in private.batches():
            losses = fitting(lambda batch=batch: run.task.losses(run.model, batch))  # type: ignore[misc]
            run.monitor.saw(losses)
            if private.step(losses):
                self._after_step(done)
                done = private.steps_done
            if stop.number is not None:  # in the middle of a logical batch too: it may be long
                self._checkpoint()
                command = f"winsor train --run {shlex.quote(str(self.directory))}"
                raise Interrupted(command, done, stop.number)
        self._after_step(done)  # steps of empty batches at the very end

    def _after_step(self, before: int) -> None:
        """Record what became due since ``before``. An empty batch passes a step by in silence."""
        now = self.run.private.steps_done
        if passed(self._rows, before, now):
            self._record(evaluated=passed(self._evaluations, before, now))
        self.run.monitor.forget()
        self.observer.stepped(self.run)
        if time.perf_counter() - self._saved > self.run.config.record.checkpoint_seconds:
            self._checkpoint()

    def _record(self, evaluated: bool) -> None:
        run = self.run
        step = run.private.steps_done
        seconds = self._seconds_before + time.perf_counter() - self._begun
        row: Row = {
            "step": step,
            "epoch": step * run.private.sampler.rate,
            "seconds": seconds,
            "lr": float(run.optimizer.param_groups[0]["lr"]),
            "rule": public_numbers(run.private.rule_state),
        }
        if evaluated and run.data.held_out is not None and not self._held_out_is_private:
            row["held_out"] = evaluate(run.task, run.model, run.data.held_out)
            self._latest = (step, row["held_out"])
        noted = run.monitor.values(run.private.rule_state)
        if noted:
            row[run.monitor.section] = noted
        self.directory.add_metrics(row)
        self.observer.recorded(run, row)

    # ------------------------------------------------------------------- checkpoint and resume

    def _checkpoint(self) -> None:
        run = self.run
        self.directory.save_checkpoint(
            {
                "format": CHECKPOINT_FORMAT,
                "data": run.data.digest,
                "seconds": self._seconds_before + time.perf_counter() - self._begun,
                **everything(run.private, {}),
            }
        )
        self._saved = time.perf_counter()

    def _resume(self) -> None:
        """Continue from the checkpoint, or write the first one before anything is released."""
        run = self.run
        state = self.directory.load_checkpoint()
        if state is None:
            self._refuse_lost_checkpoint()
            self.directory.keep_metrics_until(-1)
            self._checkpoint()
            return
        if state.get("format") != CHECKPOINT_FORMAT:
            raise RunError(
                f"checkpoint.pt of {self.directory} must have format {CHECKPOINT_FORMAT}. Got "
                f"{state.get('format')!r} instead: it was written by another version. Resume with "
                "that version, or start a new run with another --run directory."
            )
        if state["data"] != run.data.digest:
            raise RunError(
                f"the data of {run.config.data.source!r} must be those that the run "
                f"{self.directory} was started with. They have changed. Restore them, or start a "
                "new run with another --run directory."
            )
        refuse_other_kinds(state, run.optimizer, run.scheduler, run.private.rule_state)
        restore(run.private, state, {}, repeat=True)
        self._seconds_before = state["seconds"]
        self.directory.keep_metrics_until(run.private.steps_done)

    def _refuse_lost_checkpoint(self) -> None:
        spent = len(self.run.private.ledger)
        if spent:
            raise RunError(
                f"{self.directory} has spent {spent} steps, but its checkpoint is gone, so it "
                "cannot be resumed. Restore checkpoint.pt, or start a new run with another --run "
                "directory; what was spent stays spent."
            )

    # -------------------------------------------------------------------------------- the end

    def _finish(self, stopped: str) -> dict[str, Any]:
        run = self.run
        if run.config.training.iterate != "last":
            run.private.load_released_iterate()
            self._latest = (-1, {})  # it was of another model
        spent = run.private.spent()
        result = {
            "name": run.config.name,
            "seed": run.config.seed,
            "stopped": stopped,
            "steps": run.private.steps_done,
            **run.data.count,
            "held_out_rows": run.data.held_out_size,
            "parameters": sum(p.numel() for p in run.model.parameters() if p.requires_grad),
            "noise_multiplier": run.private.noise_multiplier,
            "epsilon": spent.epsilon,
            "delta": spent.delta,
            "relation": spent.relation.value,
            "accountant": spent.accountant,
            "guarantee": str(spent),
            "main_metric": run.task.main,
            **self._final_metrics(),
            "seconds": self._seconds_before + time.perf_counter() - self._begun,
        }
        keep = run.config.record.keep_checkpoint
        if keep:
            self._checkpoint()
        result = self.directory.finish(result, run.model.state_dict(), keep, run.private.ledger)
        self.observer.finished(result)
        return result

    @property
    def _held_out_is_private(self) -> bool:
        return self.run.config.record.held_out_epsilon is not None

    def _final_metrics(self) -> dict[str, Any]:
        """The held-out metrics, and whose guarantee they have if their rows are private."""
        run = self.run
        if run.data.held_out is None or not self._held_out_is_private:
            return {"held_out": self._exact_metrics()}
        found, guarantee = measured(run.config, run.model, run.data.held_out, self.directory)
        return {"held_out": found, "held_out_guarantee": guarantee}

    def _exact_metrics(self) -> Metrics:
        run = self.run
        step, metrics = self._latest
        if run.data.held_out is None or step == run.private.steps_done:
            return metrics
        return evaluate(run.task, run.model, run.data.held_out)


def affordable_evaluations(run: Assembled, most: int = 20, share: float = 0.1) -> int:
    """So many that they see at most ``share`` of the rows that training does; at least one."""
    trained = run.planned * run.private.sampler.expected_size
    return int(max(1, min(most, share * trained // max(1, run.data.held_out_size))))


def marks(planned: int, count: int) -> list[int]:
    """At most ``count`` evenly spaced steps, the last of them ``planned``."""
    count = min(planned, count)
    return sorted({-(-planned * k // count) for k in range(1, count + 1)})


def passed(points: list[int], before: int, now: int) -> bool:
    """Whether one of the points lies in (before, now]."""
    return bisect_right(points, now) > bisect_right(points, before)
