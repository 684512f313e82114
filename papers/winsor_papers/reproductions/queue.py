"""The queue over all tables: what is planned, what is done, what is left and what it will cost.

Folders, under the one that results are written to:

    PAPER-TABLE.json          a finished table
    cells/PAPER-TABLE.jsonl   its finished cells (`cells.py`)
    cells/plan.json           the cells that each table will ask for, and costs that were probed

A plan is made by going through a table without doing its work. Where a table chooses its next cells
by the results of earlier ones (a rate tuned on the first seed), the choice is by stand-ins: the
number of cells and their kinds are right, the names of some are not. So what is left is counted by
kind. Cells that another table of the paper had done before the plan was made (*shared*) are not
left; they count for the table that paid for them.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from filelock import Timeout

from winsor_papers.reproductions.cells import (
    Asked,
    Book,
    Mode,
    OutOfTime,
    Wanted,
    WantsCompany,
    kept,
    read_journal,
)
from winsor_papers.reproductions.reproduction import Reproduced, Reproduction, Request

HOUR = 3600.0
MOST_TOGETHER = 32
"""Cells of a team: more would wait longer for each other to be kept than they gain."""


def cells_folder(out: Path) -> Path:
    return out / "cells"


@dataclass(frozen=True)
class Progress:
    """How far one table is."""

    paper: str
    table: str
    planned: int | None
    """None: no plan was made."""
    done: int
    spent: float
    """Processor seconds of the cells that are done."""
    left: float | None
    """Estimated processor seconds of the others; None where a kind was never measured."""
    finished: bool
    why: str = ""
    """Why there is no plan, or no estimate."""


def plan_table(
    out: Path, key: tuple[str, str], run: Reproduction, request: Request, mode: Mode = "plan"
) -> dict[str, Any]:
    """Go through a table without its work; what it asks for, or why it cannot."""
    known = {
        kind: cost for entry in read_plan(out).values() for kind, cost in entry["probed"].items()
    }
    book = Book(cells_folder(out), *key, mode=mode, commit=commit(), probed=known)
    why = ""
    with kept(book):
        try:
            run(request)
        except Exception as error:  # a stand-in may mislead a table: what was asked for is kept
            why = f"{type(error).__name__}: {error}"
    asked, own = _once(book.asked), {record["name"] for record in read_journal(book.journal)}
    shared = Counter(one.kind for one in asked if one.done and one.name not in own)
    return {
        "kinds": dict(Counter(one.kind for one in asked)),
        "shared": dict(shared),
        "probed": {one.kind: known[one.kind] for one in asked if one.kind in known},
        "why": why.splitlines()[0] if why else "",
    }


def _once(asked: Iterable[Asked]) -> list[Asked]:
    return list({found.name: found for found in asked}.values())


def read_plan(out: Path) -> dict[str, Any]:
    path = cells_folder(out) / "plan.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def write_plan(out: Path, plan: Mapping[str, Any]) -> None:
    path = cells_folder(out) / "plan.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(plan, indent=1, sort_keys=True) + "\n")
    fresh.replace(path)


def costs(out: Path) -> dict[str, float]:
    """Mean processor seconds of a cell, by kind: measured where there is one, else probed."""
    found: dict[str, float] = {}
    for entry in read_plan(out).values():
        found |= entry.get("probed", {})
    measured: dict[str, list[float]] = {}
    for path in sorted(cells_folder(out).glob("*.jsonl")):
        for record in read_journal(path):
            measured.setdefault(record["kind"], []).append(record["processor_seconds"])
    return found | {kind: fmean(values) for kind, values in measured.items()}


def progress(out: Path, keys: Iterable[tuple[str, str]]) -> list[Progress]:
    """How far every table is."""
    plan, prices = read_plan(out), costs(out)
    return [_progress(out, key, plan.get("-".join(key)), prices) for key in keys]


def _progress(
    out: Path, key: tuple[str, str], entry: Mapping[str, Any] | None, prices: Mapping[str, float]
) -> Progress:
    records = {
        record["name"]: record
        for record in read_journal(cells_folder(out) / f"{'-'.join(key)}.jsonl")
    }
    spent = sum(record["processor_seconds"] for record in records.values())
    whole = _finished(out / f"{'-'.join(key)}.json")
    if whole is not None:
        spent = max(spent, whole.get("processor_seconds", 0.0))
        return Progress(*key, len(records) or None, len(records), spent, 0.0, True)
    if entry is None or not entry["kinds"]:
        why = "not planned" if entry is None else entry["why"] or "one piece, without cells"
        return Progress(*key, None, len(records), spent, None, False, why)
    done = Counter(record["kind"] for record in records.values())
    done.update(entry.get("shared", {}))
    missing = {kind: max(0, count - done[kind]) for kind, count in entry["kinds"].items()}
    unknown = [kind for kind, count in missing.items() if count and kind not in prices]
    left = None if unknown else sum(prices[k] * count for k, count in missing.items() if count)
    why = f"no cell measured of: {unknown[0]}" if unknown else entry["why"]
    planned = len(records) + sum(missing.values())
    return Progress(*key, planned, len(records), spent, left, False, why)


def _finished(path: Path) -> dict[str, Any] | None:
    """The record of a table, if it is one at full strength."""
    if not path.is_file():
        return None
    record: dict[str, Any] = json.loads(path.read_text())
    return None if record["quick"] else record


def in_order(found: Iterable[Progress]) -> list[Progress]:
    """Unfinished tables, the cheapest first; those of unknown cost last."""
    todo = [one for one in found if not one.finished]
    return sorted(todo, key=lambda one: (one.left is None, one.left or 0.0))


def run_table(
    out: Path,
    key: tuple[str, str],
    run: Reproduction,
    request: Request,
    deadline: float,
) -> Reproduced | None:
    """A table with its cells kept; None if the time was over before it was complete."""
    book = Book(cells_folder(out), *key, commit=commit(), deadline=deadline, in_teams=True)
    while True:
        try:
            with kept(book):
                return with_seeds(run(request))
        except WantsCompany:
            _work_in_teams(book, run, request)
        except OutOfTime:
            return None


def _work_in_teams(book: Book, run: Reproduction, request: Request) -> None:
    """Work for all cells that can be had together and that the table is sure to ask for.

    The table is gone through to gather what it lacks. Where results decide what it asks for next (a
    rate is tuned first, and then has its seeds), there will be another time. What another process
    works for is left alone; it is waited for only where there is nothing else to do.
    """
    gathering = replace(book, mode="gather", asked=[], missing={}, guesses=0)
    with kept(gathering):
        run(request)
    by_key: dict[str, list[Wanted]] = {}
    for wanted in gathering.missing.values():
        if wanted.together is not None:
            by_key.setdefault(wanted.together.key, []).append(wanted)
    teams = [team for some in by_key.values() for team in _teams(some)]
    worked = [_work_for(book, team, wait=False) for team in teams]
    if teams and not any(
        worked
    ):  # another process is at all of them: the first one that is free is next
        _work_for(book, teams[0], wait=True)


def _work_for(book: Book, team: Sequence[Wanted], wait: bool) -> bool:
    """Whether there was something to do, and nobody else at it."""
    try:
        with book.taken(team, wait):
            left = [wanted for wanted in team if wanted.name not in book.known]
            if left:
                book.work_together(left)
            return bool(left)
    except Timeout:
        return False


def _teams(some: Sequence[Wanted]) -> Iterator[Sequence[Wanted]]:
    """Cells of one key, in teams of a size that suits them."""
    together = some[0].together
    assert together is not None
    most = min(MOST_TOGETHER, together.most)
    for first in range(0, len(some), most):
        yield some[first : first + most]


def with_seeds(result: Reproduced) -> Reproduced:
    """The same with a note of how often each line was repeated, and what is known by that."""
    found = [m for line in result.lines for m in (line.published, line.certified) if m is not None]
    widths = [m.half_width for m in found if m.half_width is not None]
    if not widths:
        return result
    counts = sorted({m.seeds for m in found})
    often = " or ".join(map(str, counts))
    note = f"Repetitions of a line: {often}. Widest 95 per cent interval: ± {max(widths):.2g}."
    return replace(result, notes=(*result.notes, note))


def spent_on(out: Path, key: tuple[str, str]) -> float:
    """Processor seconds of a table's own cells, in all sessions."""
    found = read_journal(cells_folder(out) / f"{'-'.join(key)}.jsonl")
    return float(sum(record["processor_seconds"] for record in found))


def commit() -> str:
    """The commit of the experiments; with changes that are not committed it ends in "+"."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", "../winsor")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + ("+" if changed else "")


def plan_all(
    out: Path,
    runs: Mapping[tuple[str, str], Reproduction],
    request: Request,
    mode: Mode = "plan",
) -> None:
    """Plan the tables that are not finished, one after the other; the plan is kept each time."""
    for key, run in runs.items():
        name = "-".join(key)
        if _finished(out / f"{name}.json") is not None:
            continue
        request.say(f"planning {name}")
        plan = read_plan(out)
        earlier = plan.get(name, {}).get("probed", {})
        entry = plan_table(out, key, run, request, mode)
        write_plan(out, {**plan, name: {**entry, "probed": earlier | entry["probed"]}})


def status_lines(found: Iterable[Progress]) -> list[tuple[str, ...]]:
    """Rows for a person: table, cells, hours spent, hours left, remark."""
    rows: list[tuple[str, ...]] = []
    for one in found:
        planned = "?" if one.planned is None else str(one.planned)
        cells = f"{one.done}/{planned}" if one.done or one.planned else "" if one.finished else "?"
        left = "done" if one.finished else "?" if one.left is None else f"{one.left / HOUR:.2f}"
        rows.append((one.paper, one.table, cells, f"{one.spent / HOUR:.3f}", left, one.why))
    return rows
