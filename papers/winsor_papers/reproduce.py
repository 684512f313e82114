"""`winsor reproduce PAPER [TABLE]`: the papers' tables again, published and certified side by side.

``winsor reproduce all --full --resume`` works through every table of every paper, the cheapest
first, keeps each finished cell, and goes on where it was stopped
(`papers/winsor_papers/reproductions/queue.py`); ``winsor reproduce status`` says what is done and
what is left, ``list`` names the tables. ``--quick`` makes a *smoke* run: it shows that a table can
be made, and has no verdict. Each finished table is written to ``--out`` as JSON at once;
docs/papers.md is made from those files by ``python docs/paper_page.py``. Numbers that are not
finite are written as text: "inf" is the epsilon of a run without any guarantee.
"""

from __future__ import annotations

import json as encoder
import math
import tempfile
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from winsor.app.commands.output import Json, print_json
from winsor.core.contract import ConfigurationError

if TYPE_CHECKING:
    from winsor_papers.reproductions.reproduction import Line, Reproduced, Reproduction, Request

SMOKE = "it shows that the table can be made; too small for a verdict."

RESULTS = Path("benchmarks/results/reproduce")
"""Where the queue keeps tables and cells unless told otherwise: in a checkout of the repository."""


def reproduce(
    paper: Annotated[
        str,
        typer.Argument(help="A name that `winsor reproduce list` shows; all; or list, status."),
    ],
    table: Annotated[str | None, typer.Argument(help="One table; all of them if left out.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="A smoke run in minutes, without a verdict.")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with the datasets.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for one JSON file per table.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep every finished cell; go on where it stopped.")
    ] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="With --resume: begin no cell after that time.")
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="With status: begin unknown cells to cost them.")
    ] = False,
    json: Json = False,
) -> None:
    """A paper's table, published and certified.

    Prints the paper's figures, ours as published, ours certified, and a verdict.
    """
    if paper == "list":
        _list(json)
        return
    if data is not None and not data.is_dir():
        raise ConfigurationError(
            f"data must name a folder with the datasets. Got {str(data)!r} instead."
        )
    console = Console(stderr=True, quiet=json)
    # of status the second word is a paper
    wanted = _wanted(table or "all", None) if paper == "status" else _wanted(paper, table)
    request = _experiments("reproduction").Request(
        quick, data, seeds, say=lambda message: console.print(f"  {escape(message)}")
    )
    if paper == "status" or resume:
        runs = {(key, name): run for key, name, run in wanted}
        _queue(paper, runs, request, out or RESULTS, minutes, probe, json)
        return
    if out is not None:
        _make_folder(out)
    records = []
    for key, name, run in wanted:
        console.print(f"[bold]{key} {name}[/]")
        wall, processor = time.perf_counter(), time.process_time()
        result = run(request)
        seconds = (time.perf_counter() - wall, time.process_time() - processor)
        record = _record((key, name), result, request, seconds)
        records.append(record)
        if out is not None:
            _save(record, out / f"{key}-{name}.json")
        if not json:
            show(result, record["seconds"], quick)
    if json:
        print_json(records)


def _queue(
    paper: str,
    runs: Mapping[tuple[str, str], Reproduction],
    request: Request,
    out: Path,
    minutes: float | None,
    probe: bool,
    json: bool,
) -> None:
    """Status, or the tables one after the other with their cells kept."""
    if request.quick:
        raise ConfigurationError(
            "quick must be left out with --resume and status: smoke runs have no cells to keep. "
            "Got --quick instead."
        )
    queue = _experiments("queue")
    console = Console(stderr=True, quiet=json)
    if paper == "status":
        if request.data is not None:
            queue.plan_all(out, runs, request, "probe" if probe else "plan")
        _show_status(queue, queue.progress(out, runs), json)
        return
    _make_folder(out)
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    for key in [(one.paper, one.table) for one in queue.in_order(queue.progress(out, runs))]:
        console.print(f"[bold]{' '.join(key)}[/]")
        wall, processor = time.perf_counter(), time.process_time()
        try:
            result = queue.run_table(out, key, runs[key], request, deadline)
        except ConfigurationError as error:  # data or packages that are not there: the next one
            console.print(f"  left out: {escape(str(error))}")
            continue
        if result is None:
            console.print("  stopped: the time is over; finished cells are kept")
            break
        seconds = (time.perf_counter() - wall, time.process_time() - processor)
        record = _record(key, result, request, seconds)
        record["processor_seconds"] = max(seconds[1], queue.spent_on(out, key))
        _save(record, out / f"{'-'.join(key)}.json")
        if not json:
            show(result, seconds[0])
    _show_status(queue, queue.progress(out, runs), json)


def _show_status(queue: Any, found: Any, json: bool) -> None:
    if json:
        print_json([vars(one) for one in found])
        return
    table = Table("paper", "table", "cells", "hours spent", "hours left", "remark")
    for row in queue.status_lines(found):
        table.add_row(*map(escape, row))
    console = Console()
    console.print(table)
    known = [one.left for one in found if one.left is not None]
    unknown = sum(one.left is None for one in found)
    console.print(
        f"{sum(one.finished for one in found)} of {len(found)} tables are done. Processor hours: "
        f"{sum(one.spent for one in found) / 3600:.2f} spent, {sum(known) / 3600:.2f} left by the "
        f"cells measured so far, and {unknown} tables of unknown cost."
    )


def _experiments(module: str) -> Any:
    """Import a module of the experiments; most load torch, so none is imported at the top."""
    return import_module(f"winsor_papers.reproductions.{module}")


def _wanted(paper: str, table: str | None) -> list[tuple[str, str, Reproduction]]:
    """(paper, table, reproduction), in the order of the catalogue."""
    if paper == "all" and table is not None:
        raise ConfigurationError(f"table must be left out with all papers. Got {table!r} instead.")
    catalogue = _experiments("catalogue")
    papers = catalogue.PAPERS if paper == "all" else [paper]
    return [(key, name, run) for key in papers for name, run in catalogue.find(key, table).items()]


def _make_folder(path: Path) -> None:
    """Before the work, not after it: a folder that cannot be written should cost no hours."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"out must be a folder that can be written to. Got {str(path)!r} instead: "
            f"{error.strerror or error}."
        ) from error


def _list(json: bool) -> None:
    papers = _experiments("catalogue").PAPERS
    if json:
        print_json({name: list(paper.tables) for name, paper in papers.items()})
        return
    for name, paper in papers.items():
        print(f"{name:10} {paper.title}\n{'':10} tables: {', '.join(paper.tables)}")


def _record(
    key: tuple[str, str], result: Reproduced, request: Request, seconds: tuple[float, float]
) -> dict[str, Any]:
    from winsor.app.runs.directory import describe_session

    record = {
        "paper": key[0],
        "table": key[1],
        "quick": request.quick,
        "seconds": seconds[0],
        "processor_seconds": seconds[1],
        "environment": describe_session(),
        **result.to_json(),
    }
    if request.quick:
        record["verdict"] = SMOKE
    finite: dict[str, Any] = _finite(record)
    return finite


def _finite(value: Any) -> Any:
    """JSON has no infinity: such numbers become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value


def _save(record: dict[str, Any], path: Path) -> None:
    fresh = path.with_suffix(".tmp")
    try:
        fresh.write_text(encoder.dumps(record, indent=1, ensure_ascii=False) + "\n")
        fresh.replace(path)
    except OSError as error:
        raise ConfigurationError(
            f"out must be a folder that can be written to. Got {str(path.parent)!r} instead: "
            f"{error.strerror or error}."
        ) from error


def show(result: Reproduced, seconds: float, quick: bool = False) -> None:
    """The table, its notes and its verdict, for a person; a smoke run has no verdict."""
    headers, rows = columns(result.lines)
    table = Table(*headers, title=f"{result.title}: {result.quantity}", title_justify="left")
    for row in rows:
        table.add_row(*map(escape, row))
    console = Console()
    console.print(table)
    for note in result.notes:
        console.print(f"Note: {escape(note)}")
    if quick:
        console.print(f"[bold]Smoke run:[/] {SMOKE} ({seconds:.0f} s)")
    else:
        console.print(f"[bold]Verdict:[/] {escape(result.verdict)} ({seconds:.0f} s)")


def columns(lines: tuple[Line, ...]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells, without the columns that no line fills."""
    labels = list(dict.fromkeys(name for line in lines for name in line.label))
    extras = list(dict.fromkeys(name for line in lines for name in line.extra))
    cells: list[dict[str, str]] = [
        {
            **line.label,
            "paper": line.printed or "",
            "published": "" if line.published is None else str(line.published),
            "it certifies": _epsilon(line.published_certifies),
            "certified": "" if line.certified is None else str(line.certified),
            "epsilon": _epsilon(line.certified_epsilon),
            **line.extra,
        }
        for line in lines
    ]
    middle = ["paper", "published", "it certifies", "certified", "epsilon"]
    filled = [name for name in middle if any(row[name] for row in cells)]
    headers = [*labels, *filled, *extras]
    return headers, [[row.get(name, "") for name in headers] for row in cells]


def _epsilon(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
