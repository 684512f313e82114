"""From run directories to what a report shows. Reads only; the runs may still be going on."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import winsor
from winsor.app.report.statement import Statement, make_statement, who_is_protected
from winsor.app.runs.config import Config, higher_is_better
from winsor.app.runs.directory import Row, RunDirectory
from winsor.app.runs.folder import RunError, RunFolder
from winsor.app.runs.summary import Interval, compared, total
from winsor.core.contract import Neighbouring
from winsor.core.ledger.guarantee import spent_by
from winsor.core.ledger.ledger import Ledger

CURVE_POINTS = 16
CURVE_SECONDS = 20.0
SHOWN = ("time", "winsor", "python", "system", "cpus", "threads", "packages")
"""What the page shows of each session."""


@dataclass(frozen=True)
class RunRecord:
    """One run as it is on disk."""

    path: Path
    config: Config
    rows: list[Row]
    result: dict[str, Any] | None
    sessions: list[dict[str, Any]]
    ledger: Ledger
    statement: Statement
    curve: list[tuple[int, float]] = field(default_factory=list)
    """(step, certified epsilon)"""

    @property
    def label(self) -> str:
        """The name of the run."""
        return self.config.name

    @property
    def held_out(self) -> dict[str, float]:
        """The final metrics, or the latest of an unfinished run."""
        if self.result is not None:
            return dict(self.result["held_out"])
        evaluated = [row["held_out"] for row in self.rows if "held_out" in row]
        return dict(evaluated[-1]) if evaluated else {}


@dataclass(frozen=True)
class Variant:
    """The runs of one configuration over seeds."""

    label: str
    runs: list[RunRecord]
    metrics: dict[str, Interval]
    differences: dict[str, Interval]
    """From the first variant, seed by seed."""


@dataclass(frozen=True)
class Report:
    """What a page shows: runs, their variants, and what all of them spent together."""

    title: str
    runs: list[RunRecord]
    variants: list[Variant]
    together: dict[str, Any] | None
    """Epsilon of all runs as one release, if there are several and they share their data."""

    @property
    def main_metric(self) -> str:
        """The metric to look at first."""
        return self.runs[0].config.main_metric

    def ranked(self) -> list[Variant]:
        """Best first by the main metric."""
        sign = -1 if higher_is_better(self.main_metric) else 1
        known = [v for v in self.variants if self.main_metric in v.metrics]
        return sorted(known, key=lambda v: sign * v.metrics[self.main_metric].mean)


def collect(paths: Sequence[Path]) -> Report:
    """Read everything about the given runs and comparisons."""
    folders = [folder for path in paths for folder in run_folders(path)]
    runs = [read_run(folder) for folder in folders]
    variants = _variants(runs)
    return Report(_title(paths, variants), runs, variants, _together(runs))


def _title(paths: Sequence[Path], variants: list[Variant]) -> str:
    if len(paths) == 1 and (paths[0] / "compare.json").exists():
        return str(_compared(paths[0])["name"])
    return ", ".join(dict.fromkeys(variant.runs[0].label for variant in variants))


def _compared(path: Path) -> dict[str, Any]:
    try:
        found = RunFolder(path).read("compare.json")
        return {"name": found["name"], "folders": found["folders"]}
    except KeyError as error:
        raise RunError(f"cannot read {path / 'compare.json'}: {error}.") from error


def run_folders(path: Path) -> list[Path]:
    """The run itself, or the started runs of a comparison."""
    if (path / "config.json").exists():
        return [path]
    if (path / "compare.json").exists():
        found = [
            folder
            for label in _compared(path)["folders"]
            for folder in sorted((path / label).glob("seed-*"), key=_seed)
            if (folder / "ledger.jsonl").exists()
        ]
        if found:
            return found
        raise RunError(f"{path} is a comparison of which no run has started yet.")
    raise RunError(
        f"{path} must be the directory of a run or of a comparison. Got one without config.json "
        "or compare.json instead."
    )


def _seed(folder: Path) -> int:
    text = folder.name.removeprefix("seed-")
    return int(text) if text.lstrip("-").isdigit() else 0


def read_run(path: Path) -> RunRecord:
    """Read one run that has made a step."""
    directory = RunDirectory(path)
    config = directory.config()
    ledger = Ledger.read(directory.ledger)
    if len(ledger) == 0:
        raise RunError(f"{path} has not made a step yet: there is nothing to report.")
    result = directory.result()
    held_out_rows = None if result is None else result["held_out_rows"]
    versions = {
        "winsor": winsor.__version__,
        "dp-accounting": importlib.metadata.version("dp-accounting"),
    }
    statement = make_statement(config, ledger, versions, result is not None, held_out_rows)
    return RunRecord(
        path=path,
        config=config,
        rows=directory.metrics(),
        result=result,
        sessions=_sessions(directory),
        ledger=ledger,
        statement=statement,
        curve=epsilon_by_step(ledger, config),
    )


def _sessions(directory: RunDirectory) -> list[dict[str, Any]]:
    """What the run ran on, with every word that the page shows."""
    sessions = directory.environment()
    for session in sessions:
        missing = [name for name in SHOWN if name not in session]
        if missing or not isinstance(session["packages"], dict):
            raise RunError(
                f"environment.json of {directory} must say {', '.join(SHOWN)} of each session. "
                f"{', '.join(missing) or 'packages'} is missing or damaged. Restore it from a copy."
            )
    return sessions


def epsilon_by_step(ledger: Ledger, config: Config) -> list[tuple[int, float]]:
    """Certified epsilon after some of the ledger's steps, in order; ends with the last.

    Points are added from coarse to fine as long as there is time for them.
    """
    delta, relation = config.budget.delta, Neighbouring(config.budget.relation)
    total = len(ledger)
    marks = sorted({-(-total * k // CURVE_POINTS) for k in range(1, CURVE_POINTS + 1)})
    order = sorted(range(len(marks)), key=lambda i: -((i + 1) & -(i + 1)))
    found: dict[int, float] = {}
    begun = time.perf_counter()
    for i in [len(marks) - 1, *order]:
        if found and time.perf_counter() - begun > CURVE_SECONDS:
            break
        history = ledger.history_until(marks[i])
        found[marks[i]] = spent_by(history, delta, relation).epsilon
    curve = sorted(found.items())
    # Fewer steps cannot have spent more: a later bound holds for them too.
    for j in range(len(curve) - 2, -1, -1):
        curve[j] = (curve[j][0], min(curve[j][1], curve[j + 1][1]))
    start = spent_by(ledger.before, delta, relation).epsilon if ledger.before else 0.0
    return [(0, min(start, curve[0][1])), *curve]


# ----------------------------------------------------------------------------------- comparisons


def _variants(runs: list[RunRecord]) -> list[Variant]:
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        same = dataclasses.replace(run.config, seed=0).digest()
        groups.setdefault((run.label, same), []).append(run)
    labels = [label for label, _ in groups]
    first = None
    found = []
    for (label, _), members in groups.items():
        if labels.count(label) > 1:  # the same name for different settings: say which
            label = f"{label} ({members[0].path})"
        held_out = [(run.config.seed, run.held_out) for run in members]
        found.append(Variant(label, members, *compared(held_out, first)))
        first = first or held_out
    return found


def _together(runs: list[RunRecord]) -> dict[str, Any] | None:
    """Runs on one source add up, also if each split it in its own way: a row that a run did not
    train on costs nothing there, so the sum is still a bound."""
    sources = {run.config.data.source for run in runs}
    protected = {who_is_protected(run.ledger) for run in runs}
    if len(runs) < 2 or len(sources) > 1 or len(protected) > 1:
        return None
    budgets = [run.config.budget for run in runs]
    return total(
        [run.ledger for run in runs], [b.delta for b in budgets], [b.relation for b in budgets]
    )
