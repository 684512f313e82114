"""A run from its configuration to its result, resumable at any moment."""

from __future__ import annotations

import math
import shlex
import signal
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor

from winsor.app.runs.assemble import Assembled, assemble, check
from winsor.app.runs.config import Config, DataSettings
from winsor.app.runs.data import Data, load_data
from winsor.app.runs.directory import Row, RunDirectory, describe_session
from winsor.app.runs.folder import RunError, sense
from winsor.app.runs.tasks import Metrics, evaluate, fitting, measured
from winsor.core.contract import (
    BudgetExceeded,
    CalibrationError,
    ConfigurationError,
    LossError,
    UnsupportedModel,
    WinsorError,
)
from winsor.training.callbacks import public_numbers
from winsor.training.saving.file import restore

CHECKPOINT_FORMAT = 2
BESIDE = ("format", "data", "seconds")
"""What a checkpoint holds beside the training, which seals what is its own."""
MISTAKES = (ConfigurationError, CalibrationError, UnsupportedModel, LossError)
"""What a user mends in the configuration, and then calls the same command again."""


class Observer(Protocol):
    """Watches a run. It is shown nothing exact about private rows unless debug was asked for."""

    def started(self, run: Assembled, directory: RunDirectory) -> None:
        """The run begins, or goes on after a checkpoint."""

    def stepped(self, run: Assembled) -> None:
        """A logical step is done."""

    def recorded(self, run: Assembled, row: Row) -> None:
        """A line was written to metrics.jsonl."""

    def finished(self, result: dict[str, Any]) -> None:
        """The result was written."""


def execute(
    config: Config,
    path: Path | str,
    observer: Observer,
    *,
    source: str | None = None,
    load: Callable[[DataSettings], Data] = load_data,
) -> dict[str, Any]:
    """Run, or resume, or just return the result if the run is finished.

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
    if directory.finished:
        directory.refuse_disagreements(leftovers=False)  # before anything is believed
        result = dict(directory.read(directory.result_name))
        if not config.record.keep_checkpoint:
            directory.destroy_key()  # the run may have been killed between the result and this
        with sense(directory.path / directory.result_name):
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
        """Run, or resume, to the end; the result."""
        private = self.run.private
        self.directory.bind(private.ledger)
        with sense(self.directory.path / "checkpoint.pt"):
            self._resume()
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
                **run.private.sealed(),
            }
        )
        self._saved = time.perf_counter()

    def _resume(self) -> None:
        """Continue from the checkpoint, or write the first one before anything is released."""
        run = self.run
        state = self.directory.load_checkpoint()
        if state is None:
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
        refuse_unfit_state(state, run.optimizer, run.scheduler, run.private.rule_state)
        self._seconds_before = state["seconds"]
        own = {name: value for name, value in state.items() if name not in BESIDE}
        restore(run.private, own, {}, repeat=True)
        self.directory.keep_metrics_until(run.private.steps_done)

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
            "main_metric": run.config.main_metric,
            **self._final_metrics(),
            "seconds": self._seconds_before + time.perf_counter() - self._begun,
        }
        keep = run.config.record.keep_checkpoint
        if keep:
            self._checkpoint()
        result = self.directory.finish(result, run.model.state_dict(), keep)
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
    """How many evaluations see at most ``share`` of the rows that training does; at least one."""
    trained = run.planned * run.private.sampler.expected_size
    return int(max(1, min(most, share * trained // max(1, run.data.held_out_size))))


def marks(planned: int, count: int) -> list[int]:
    """Choose at most ``count`` evenly spaced steps, the last of them ``planned``."""
    count = min(planned, count)
    return sorted({-(-planned * k // count) for k in range(1, count + 1)})


def passed(points: list[int], before: int, now: int) -> bool:
    """Return whether one of the points lies in (before, now]."""
    return bisect_right(points, now) > bisect_right(points, before)


# --------------------------------------------------------------------------------------- stopping


class Interrupted(WinsorError):
    """A signal stopped the run; it can be resumed."""

    def __init__(self, command: str, step: int, number: int) -> None:
        super().__init__(f"stopped after step {step}. Resume with: {command}")
        self.step, self.number = step, number
        self.exit_code = 128 + number

    def instead(self, command: str) -> Interrupted:
        """The same interruption with another command to resume."""
        return Interrupted(command, self.step, self.number)


class StopRequest:
    """Ctrl-C and SIGTERM as a request to stop after the next physical batch. Twice: at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._restore()  # a second signal is not kept waiting

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


# -------------------------------------------------------------------------------------- resuming


def refuse_unfit_state(
    saved: Mapping[str, Any],
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    rule_state: Mapping[str, Any],
) -> None:
    """Raise, with the path of the value, if a saved state could not be used by these.

    Torch loads any values into an optimiser or a schedule and fails at the next step. Their kinds
    are known here, so they are compared before anything is loaded.
    """
    here = optimizer.state_dict()
    _compare(saved["optimizer"]["param_groups"], here["param_groups"], "optimizer.param_groups")
    _compare(saved["scheduler"], scheduler.state_dict(), "scheduler")
    for name, value in rule_state.items():
        found = saved["private"]["rule"]
        if name not in found:
            raise _damaged(f"rule.{name}", _kind(value), None)
        if _kind(value) == "a number" != _kind(found[name]):
            raise _damaged(f"rule.{name}", "a number", found[name])
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, values in saved["optimizer"]["state"].items():
        if not (isinstance(place, int) and 0 <= place < len(parameters)):
            raise _damaged(f"optimizer.state[{place!r}]", "a parameter's number", place)
        for name, value in values.items():
            _refuse_unfit(value, parameters[place], f"optimizer.state[{place}].{name}")


def _refuse_unfit(value: Any, parameter: Tensor, path: str) -> None:
    """The memory of an optimiser: a number, or a tensor like the parameter."""
    if isinstance(value, Tensor):
        if value.shape not in (parameter.shape, torch.Size(())) or not value.is_floating_point():
            raise _damaged(path, f"a tensor of shape {tuple(parameter.shape)}", tuple(value.shape))
    elif value is not None and _kind(value) != "a number":
        raise _damaged(path, "a number or a tensor", value)


def _compare(saved: Any, here: Any, path: str) -> None:
    if isinstance(here, Mapping):
        if not isinstance(saved, Mapping) or saved.keys() != here.keys():
            raise _damaged(path, f"a table of {', '.join(map(str, here))}", saved)
        for name in here:
            _compare(saved[name], here[name], f"{path}.{name}")
    elif isinstance(here, list | tuple):
        if not isinstance(saved, list | tuple) or len(saved) != len(here):
            raise _damaged(path, f"a list of {len(here)} values", saved)
        for place, (one, two) in enumerate(zip(saved, here, strict=True)):
            _compare(one, two, f"{path}[{place}]")
    elif _kind(saved) != _kind(here):
        raise _damaged(path, _kind(here), saved)


def _kind(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "a number" if math.isfinite(value) else "infinite"
    return "nothing" if value is None else type(value).__name__


def _damaged(path: str, wanted: str, value: Any) -> RunError:
    return RunError(
        f"checkpoint.pt is damaged: {path} must be {wanted}. Got {value!r:.100} instead. Restore "
        "it from a copy."
    )
