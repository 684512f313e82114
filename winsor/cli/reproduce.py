"""`winsor reproduce PAPER [TABLE]`: the papers' tables again, published and certified side by side.

``winsor reproduce all --quick`` makes every table of every paper; ``winsor reproduce list`` names
them. Each finished table is written to ``--out`` as JSON at once; docs/papers.md is made from those
files by ``python docs/paper_page.py``. Numbers that are not finite are written as text: "inf" is
the epsilon of a run without any guarantee.
"""

from __future__ import annotations

import json as encoder
import math
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from winsor_reproductions.catalogue import PAPERS, find
from winsor_reproductions.reproduction import Line, Reproduced, Reproduction, Request

from winsor.contract import ConfigurationError
from winsor.runs.environment import describe


def reproduce(
    paper: Annotated[str, typer.Argument(help=f"One of {', '.join(PAPERS)}; all; or list.")],
    table: Annotated[str | None, typer.Argument(help="One table; all of them if left out.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Minutes instead of hours.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with the datasets.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for one JSON file per table.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Make a paper's table again: its figures, ours as published, ours certified, and a verdict."""
    if paper == "list":
        _list(json)
        return
    wanted = _wanted(paper, table)
    if data is not None and not data.is_dir():
        raise ConfigurationError(
            f"data must name a folder with the datasets. Got {str(data)!r} instead."
        )
    if out is not None:
        _make_folder(out)
    console = Console(stderr=True, quiet=json)
    request = Request(quick, data, seeds, say=lambda message: console.print(f"  {escape(message)}"))
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
            show(result, record["seconds"])
    if json:
        print(encoder.dumps(records))


def _wanted(paper: str, table: str | None) -> list[tuple[str, str, Reproduction]]:
    """(paper, table, reproduction), in the order of the catalogue."""
    if paper == "all":
        if table is not None:
            raise ConfigurationError(
                f"table must be left out with all papers. Got {table!r} instead."
            )
        return [(key, name, run) for key in PAPERS for name, run in find(key).items()]
    return [(paper, name, run) for name, run in find(paper, table).items()]


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
    if json:
        print(encoder.dumps({name: list(paper.tables) for name, paper in PAPERS.items()}))
        return
    for name, paper in PAPERS.items():
        print(f"{name:10} {paper.title}\n{'':10} tables: {', '.join(paper.tables)}")


def _record(
    key: tuple[str, str], result: Reproduced, request: Request, seconds: tuple[float, float]
) -> dict[str, Any]:
    record = {
        "paper": key[0],
        "table": key[1],
        "quick": request.quick,
        "seconds": seconds[0],
        "processor_seconds": seconds[1],
        "environment": describe(),
        **result.to_json(),
    }
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
    try:
        path.write_text(encoder.dumps(record, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ConfigurationError(
            f"out must be a folder that can be written to. Got {str(path.parent)!r} instead: "
            f"{error.strerror or error}."
        ) from error


def show(result: Reproduced, seconds: float) -> None:
    """The table, its notes and its verdict, for a person."""
    headers, rows = columns(result.lines)
    table = Table(*headers, title=f"{result.title}: {result.quantity}", title_justify="left")
    for row in rows:
        table.add_row(*map(escape, row))
    console = Console()
    console.print(table)
    for note in result.notes:
        console.print(f"Note: {escape(note)}")
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
