"""Progress of a run, for a person, a log or a program.

Nothing here is computed from private rows: epsilon, held-out metrics, expected throughput. Exact
training values appear only if the configuration asked for them, under the words NOT PRIVATE.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from rich.console import Console
from rich.text import Text

from winsor.app.runs.assemble import Assembled
from winsor.app.runs.directory import Row, RunDirectory
from winsor.app.runs.summary import rounded_up
from winsor.training.progress import LOG_SECONDS, Silent
from winsor.training.progress import Bar as LiveLine

REFRESH_SECONDS = 0.5


def make_observer(quiet: bool, as_json: bool, label: str = "") -> Quiet:
    """Make the observer for the mode and for where the output goes."""
    if as_json:
        return JsonLines(label)
    if quiet:
        return Quiet()
    return Bar(label) if sys.stdout.isatty() else Lines(label)


class Quiet(Silent):
    """Shows nothing, and knows the speed. The base of the others."""

    def __init__(self) -> None:
        self._last = 0.0
        self._first_step = 0
        self._begun = time.perf_counter()

    def __enter__(self) -> Quiet:
        return self

    def started(self, run: Assembled, directory: RunDirectory) -> None:
        """Note when and where the run begins."""
        self._first_step = run.private.steps_done
        self._begun = time.perf_counter()

    def stepped(self, run: Assembled) -> None:
        """Refresh what is shown, if it is time."""
        now = time.perf_counter()
        if now - self._last >= REFRESH_SECONDS:
            self._last = now
            self.refresh(run)

    def recorded(self, run: Assembled, row: Row) -> None:
        """Show a recorded row."""

    def refresh(self, run: Assembled) -> None:
        """Show where the run is; called every `REFRESH_SECONDS` at most."""

    def finished(self, result: dict[str, Any]) -> None:
        """Show the result."""

    def rows_per_second(self, run: Assembled) -> float:
        """Rows per second, by the expected size of batches: the realised one is private."""
        steps = run.private.steps_done - self._first_step
        elapsed = max(1e-9, time.perf_counter() - self._begun)
        return float(steps * run.private.sampler.expected_size / elapsed)

    def seconds_left(self, run: Assembled) -> float | None:
        """How long the rest takes at the pace so far; None before the first step."""
        steps = run.private.steps_done - self._first_step
        if steps == 0:
            return None
        pace = (time.perf_counter() - self._begun) / steps
        return pace * (run.planned - run.private.steps_done)


def shown_epsilon(run: Assembled) -> str:
    """A bound on the epsilon spent so far, rounded up."""
    return f"ε ≤ {rounded_up(run.spending.at_most())}"


def shown_metrics(values: dict[str, float]) -> str:
    """Names and values in one line."""
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
    """The guarantee, the held-out metrics and the time, in one line."""
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
        """Print the first line."""
        super().started(run, directory)
        done = run.private.steps_done
        verb = f"resuming after step {done}" if done else "starting"
        self._print(
            f"{verb}: {run.planned} steps on {_counted(run)}, noise multiplier "
            f"{run.private.noise_multiplier:.4g}, in {directory}"
        )

    def recorded(self, run: Assembled, row: Row) -> None:
        """Print a line with held-out metrics."""
        if "held_out" in row:
            self._print_progress(run, f"{shown_row(row)}  ")

    def refresh(self, run: Assembled) -> None:
        """Print a line if the log has been silent for long."""
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
        """Print the last line."""
        self._print(f"finished: {shown_result(result)}")


class JsonLines(Quiet):
    """One JSON object per line, for programs."""

    def __init__(self, label: str = "") -> None:
        super().__init__()
        self._label = label

    def started(self, run: Assembled, directory: RunDirectory) -> None:
        """Print what is trained, and where."""
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
        """Print a recorded row."""
        self._print(
            "record",
            **row,
            epsilon_at_most=run.spending.at_most(),
            rows_per_second=self.rows_per_second(run),
            seconds_left=self.seconds_left(run),
        )

    def finished(self, result: dict[str, Any]) -> None:
        """Print the result."""
        self._print("finish", **result)

    def _print(self, event: str, **values: Any) -> None:
        label = {"run": self._label} if self._label else {}
        print(json.dumps({"event": event, **label, **values}), flush=True)


class Bar(Quiet):
    """The live line of `winsor.fit` on a terminal, with what this run shows."""

    def __init__(self, label: str = "") -> None:
        super().__init__()
        self._label = label
        self._console = Console()
        self._latest = ""
        self._line: LiveLine | None = None

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line.__exit__()

    def started(self, run: Assembled, directory: RunDirectory) -> None:
        """Say what is trained, and begin the line."""
        super().started(run, directory)
        multiplier = f"noise multiplier {run.private.noise_multiplier:.4g}"
        self._say(f"{_counted(run)}, {multiplier}, in {directory}")
        self._label = self._label or run.config.name
        self._line = LiveLine(self._console, self._label, run.private.steps_done, run.planned)
        self._line.__enter__()

    def recorded(self, run: Assembled, row: Row) -> None:
        """Keep the metrics for the line."""
        self._latest = shown_row(row) or self._latest

    def refresh(self, run: Assembled) -> None:
        """Move the line."""
        shown = (self._label, shown_epsilon(run), self._latest)
        note = f"{'  '.join(shown)}  {self.rows_per_second(run):.0f} rows/s"
        if self._line is not None:
            self._line.show(run.private.steps_done, note)

    def finished(self, result: dict[str, Any]) -> None:
        """End the line, and say what came out."""
        if self._line is not None:
            self._line.show(result["steps"], self._label)
            self._line.__exit__()
        self._say(shown_result(result))

    def _say(self, text: str) -> None:
        self._console.print(Text(text))  # square brackets of a name are no markup


def _counted(run: Assembled) -> str:
    return " ".join(f"{count} {what}" for what, count in run.data.count.items())
