"""What a person, a log or a program sees of a run while it goes on.

Nothing here is computed from private rows: epsilon, held-out metrics, expected throughput. Exact
training values appear only if the configuration asked for them, under the words NOT PRIVATE.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from winsor.app.runs.directory import Row, RunDirectory
from winsor.app.runs.execute import Assembled
from winsor.app.runs.intervals import rounded_up

REFRESH_SECONDS = 0.5
LOG_SECONDS = 30.0
"""A log that is silent for longer looks like a run that hangs."""


def make_observer(quiet: bool, as_json: bool, label: str = "") -> Quiet:
    """The observer for the mode and for where the output goes."""
    if as_json:
        return JsonLines(label)
    if quiet:
        return Quiet()
    return Bar(label) if sys.stdout.isatty() else Lines(label)


class Quiet:
    """Shows nothing, and knows the speed. The base of the others."""

    def __init__(self) -> None:
        self._last = 0.0
        self._first_step = 0
        self._begun = time.perf_counter()

    def started(self, run: Assembled, directory: RunDirectory) -> None:
        self._first_step = run.private.steps_done
        self._begun = time.perf_counter()

    def stepped(self, run: Assembled) -> None:
        now = time.perf_counter()
        if now - self._last >= REFRESH_SECONDS:
            self._last = now
            self.refresh(run)

    def recorded(self, run: Assembled, row: Row) -> None: ...

    def refresh(self, run: Assembled) -> None: ...

    def finished(self, result: dict[str, Any]) -> None: ...

    def rows_per_second(self, run: Assembled) -> float:
        """By the expected size of batches; the realised one is private."""
        steps = run.private.steps_done - self._first_step
        elapsed = max(1e-9, time.perf_counter() - self._begun)
        return float(steps * run.private.sampler.expected_size / elapsed)

    def seconds_left(self, run: Assembled) -> float | None:
        steps = run.private.steps_done - self._first_step
        if steps == 0:
            return None
        pace = (time.perf_counter() - self._begun) / steps
        return pace * (run.planned - run.private.steps_done)

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *_: object) -> None: ...


def shown_epsilon(run: Assembled) -> str:
    return f"ε ≤ {rounded_up(run.spending.at_most())}"


def shown_metrics(values: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


def shown_row(row: Row) -> str:
    """Held-out metrics, and training values with their warning."""
    parts = []
    if "held_out" in row:
        parts.append(f"held-out {shown_metrics(row['held_out'])}")
    if "training_loss" in row.get("not_private", {}):
        parts.append(f"NOT PRIVATE: training loss {row['not_private']['training_loss']:.4g}")
    return "  ".join(parts)


def shown_result(result: dict[str, Any]) -> str:
    metrics = shown_metrics(result["held_out"]) or "no held-out rows"
    theirs = f" ({result['held_out_guarantee']})" if "held_out_guarantee" in result else ""
    return f"{result['guarantee']}; held-out {metrics}{theirs}; {result['seconds']:.1f} s"


class Lines(Quiet):
    """For logs: a line at every evaluation, and when there was none for `LOG_SECONDS`."""

    def __init__(self, label: str = "") -> None:
        super().__init__()
        self._label = f"{label}: " if label else ""
        self._printed = time.perf_counter()

    def started(self, run: Assembled, directory: RunDirectory) -> None:
        super().started(run, directory)
        done = run.private.steps_done
        verb = f"resuming after step {done}" if done else "starting"
        self._print(
            f"{verb}: {run.planned} steps on {_counted(run)}, noise multiplier "
            f"{run.private.noise_multiplier:.4g}, in {directory}"
        )

    def recorded(self, run: Assembled, row: Row) -> None:
        if "held_out" in row:
            self._print_progress(run, f"{shown_row(row)}  ")

    def refresh(self, run: Assembled) -> None:
        if time.perf_counter() - self._printed >= LOG_SECONDS:
            self._print_progress(run, "")

    def _print_progress(self, run: Assembled, metrics: str) -> None:
        left = self.seconds_left(run)
        remaining = "" if left is None else f"  {left:.0f} s left"
        self._print(
            f"step {run.private.steps_done}/{run.planned}  {shown_epsilon(run)}  {metrics}"
            f"{self.rows_per_second(run):.0f} rows/s{remaining}"
        )

    def _print(self, text: str) -> None:
        self._printed = time.perf_counter()
        print(f"{self._label}{text}", flush=True)

    def finished(self, result: dict[str, Any]) -> None:
        self._print(f"finished: {shown_result(result)}")


class JsonLines(Quiet):
    """One JSON object per line, for programs."""

    def __init__(self, label: str = "") -> None:
        super().__init__()
        self._label = label

    def started(self, run: Assembled, directory: RunDirectory) -> None:
        super().started(run, directory)
        self._print(
            "start",
            directory=str(directory),
            step=run.private.steps_done,
            planned=run.planned,
            **run.data.count,
            noise_multiplier=run.private.noise_multiplier,
            delta=run.private.delta,
        )

    def recorded(self, run: Assembled, row: Row) -> None:
        self._print(
            "record",
            **row,
            epsilon_at_most=run.spending.at_most(),
            rows_per_second=self.rows_per_second(run),
            seconds_left=self.seconds_left(run),
        )

    def finished(self, result: dict[str, Any]) -> None:
        self._print("finish", **result)

    def _print(self, event: str, **values: Any) -> None:
        label = {"run": self._label} if self._label else {}
        print(json.dumps({"event": event, **label, **values}), flush=True)


class Bar(Quiet):
    """A live line for terminals."""

    def __init__(self, label: str = "") -> None:
        super().__init__()
        self._label = label
        self._console = Console()
        self._latest = ""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            refresh_per_second=1 / REFRESH_SECONDS,
        )
        self._task: TaskID | None = None

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, run: Assembled, directory: RunDirectory) -> None:
        super().started(run, directory)
        self._console.print(
            Text(
                f"{_counted(run)}, noise multiplier {run.private.noise_multiplier:.4g}, "
                f"in {directory}"
            )
        )
        name = self._label or run.config.name
        self._task = self._bar.add_task(
            _plain(name), total=run.planned, completed=run.private.steps_done, note=""
        )
        self._bar.start()

    def recorded(self, run: Assembled, row: Row) -> None:
        self._latest = shown_row(row) or self._latest

    def refresh(self, run: Assembled) -> None:
        note = f"{shown_epsilon(run)}  {self._latest}  {self.rows_per_second(run):.0f} rows/s"
        assert self._task is not None
        self._bar.update(self._task, completed=run.private.steps_done, note=_plain(note))

    def finished(self, result: dict[str, Any]) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=result["steps"])
        self._bar.stop()
        self._console.print(Text(shown_result(result)))


def _counted(run: Assembled) -> str:
    return " ".join(f"{count} {what}" for what, count in run.data.count.items())


def _plain(text: str) -> str:
    """Square brackets of a name are no markup."""
    return text.replace("[", "\\[")
