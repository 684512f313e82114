"""What `winsor.fit` shows while it goes on: a bar on a terminal or in a notebook, lines in a log.

Nothing here is computed from private rows: steps, the running epsilon, metrics that passed the
door.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from winsor.training.callbacks import in_words

LOG_SECONDS = 30.0
"""A log that is silent for longer looks like a run that hangs."""
REFRESH_SECONDS = 0.2


def make_progress(wanted: bool, goal: str, begun: int, planned: int) -> Silent:
    """Make the form that fits where the output goes."""
    if not wanted:
        return Silent()
    console = Console()
    lively = console.is_terminal or console.is_jupyter
    return Bar(console, goal, begun, planned) if lively else Lines(goal, begun, planned)


class Silent:
    """Shows nothing. The base of the others."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None: ...

    def on_step(self, values: Mapping[str, float]) -> None:
        """Show the public ``values`` after a step."""

    def on_end(self, values: Mapping[str, float]) -> None:
        """Show the public ``values`` after the last step."""


class Bar(Silent):
    """One live line."""

    def __init__(self, console: Console, goal: str, begun: int, planned: int) -> None:
        self._bar = Progress(
            TextColumn("[bold]training privately"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
        )
        self._goal = f" ({goal})" if goal else ""
        self._task = self._bar.add_task("train", total=planned, completed=begun, note=goal)
        self._shown = 0.0

    def __enter__(self) -> Silent:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def on_step(self, values: Mapping[str, float]) -> None:
        """Move the bar, a few times per second at most."""
        if time.monotonic() - self._shown >= REFRESH_SECONDS:
            self._shown = time.monotonic()
            self._show(values)

    def on_end(self, values: Mapping[str, float]) -> None:
        """Move the bar to its end."""
        self._show(values)

    def _show(self, values: Mapping[str, float]) -> None:
        self.show(int(values["step"]), in_words(values).split("  ", 1)[1] + self._goal)

    def show(self, step: int, note: str) -> None:
        """Move the line to ``step``, with a note beside it."""
        self._bar.update(self._task, completed=step, note=note)


class Lines(Silent):
    """A line at the start, at the end, and in between as often as `LOG_SECONDS` says."""

    def __init__(self, goal: str, begun: int, planned: int) -> None:
        verb = f"going on after step {begun}" if begun else "training privately"
        self._print(f"{verb}: {planned} steps{', ' + goal if goal else ''}")

    def on_step(self, values: Mapping[str, float]) -> None:
        """Print a line if the log has been silent for `LOG_SECONDS`."""
        if time.monotonic() - self._printed >= LOG_SECONDS:
            self._print(in_words(values))

    def on_end(self, values: Mapping[str, float]) -> None:
        """Print the last line."""
        self._print(f"finished: {in_words(values)}")

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        print(text, flush=True)
