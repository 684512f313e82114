"""`winsor report RUN...`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from winsor.core.contract import ConfigurationError


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Directories of runs or comparisons.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Page to write; default: report.html in a single RUN."),
    ] = None,
    pdf: Annotated[
        bool, typer.Option("--pdf", help="Also print the page as PDF, with an installed Chromium.")
    ] = False,
) -> None:
    """Write one self-contained HTML page about runs or comparisons, and the same as JSON."""
    for run in runs:
        if not run.is_dir():
            raise ConfigurationError(
                f"{run} must be the directory of a run or of a comparison. Got none instead."
            )
        if (run / "tune.json").exists():
            raise ConfigurationError(
                f"{run} must be the directory of a run or of a comparison. Got that of a tuning "
                "instead, which has no steps to draw: its result.json has the setting, the score "
                "and the guarantee; winsor verify checks it."
            )
    from winsor.app.runs.verifying import folder_of

    for folder in map(folder_of, runs):
        if folder.exists:
            folder.refuse_disagreements(leftovers=False)  # before anything is believed
    from winsor.app.report.collect import collect
    from winsor.app.report.opening import headline
    from winsor.app.report.page import render, to_json
    from winsor.app.runs.folder import replace_file, sense, writing

    page = output or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    if page.suffix != ".html":
        raise ConfigurationError(f"--output must end in .html. Got {str(page)!r} instead.")
    with sense(", ".join(map(str, runs))):  # an unfinished run's files are not sealed yet
        report = collect(runs)
        html, plain = render(report).encode(), json.dumps(to_json(report)) + "\n"
    with writing(page):
        page.parent.mkdir(parents=True, exist_ok=True)
    replace_file(page, html)
    replace_file(page.with_suffix(".json"), plain.encode())
    print(headline(report).promise)
    print(f"Written: {page} and {page.with_suffix('.json').name}")
    if pdf:
        from winsor.app.report.pdf import print_to_pdf

        with writing(page.with_suffix(".pdf")):
            print_to_pdf(page, page.with_suffix(".pdf"))
        print(f"Written: {page.with_suffix('.pdf')}")
