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
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from winsor.cli.output import Json, print_json
from winsor.contract import ConfigurationError

if TYPE_CHECKING:
    from winsor_reproductions.reproduction import Line, Reproduced, Reproduction, Request

EXPERIMENTS = "winsor_reproductions"
"""A package of its own: the folder reproductions/ of the repository, not part of winsor's wheel."""


def reproduce(
    paper: Annotated[str, typer.Argument(help="A name that `winsor reproduce list` shows; all.")],
    table: Annotated[str | None, typer.Argument(help="One table; all of them if left out.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Minutes instead of hours.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with the datasets.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for one JSON file per table.")] = None,
    json: Json = False,
) -> None:
    """Make a paper's table again: its figures, ours as published, ours certified, and a verdict."""
    if paper == "list":
        _list(json)
        return
    wanted = _wanted(paper, table)
    make_request = _experiments("reproduction").Request
    if data is not None and not data.is_dir():
        raise ConfigurationError(
            f"data must name a folder with the datasets. Got {str(data)!r} instead."
        )
    if out is not None:
        _make_folder(out)
    console = Console(stderr=True, quiet=json)
    request = make_request(
        quick, data, seeds, say=lambda message: console.print(f"  {escape(message)}")
    )
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
        print_json(records)


def _experiments(module: str) -> Any:
    """A module of the experiments, which must be installed beside winsor."""
    if find_spec(EXPERIMENTS) is None:
        raise ConfigurationError(
            "winsor reproduce must find the experiments of the papers. Got a winsor without them "
            "instead. They are not in the wheel: clone the repository and run "
            "`pip install -e reproductions` in it."
        )
    return import_module(f"{EXPERIMENTS}.{module}")


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
    from winsor.runs.directory import describe_session

    record = {
        "paper": key[0],
        "table": key[1],
        "quick": request.quick,
        "seconds": seconds[0],
        "processor_seconds": seconds[1],
        "environment": describe_session(),
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
