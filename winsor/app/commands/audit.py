"""`winsor audit mechanisms | published | mutants | run | replay`: try to break claims.

Exit code 1 if a certified claim is violated: that is a bug, in winsor or in the machine it runs on.
Published claims that fail are reported, with exit code 0: that is what the audit is for.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from winsor.app.commands import plugins
from winsor.app.commands.output import Json, new_app, print_json
from winsor.audit.suite import Audit, Row, run_or_explain
from winsor.core.contract import ConfigurationError

app = new_app("Try to break every claim, certified or published.")

Quick = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="A quarter of the runs or fewer. All audits of `mechanisms` together still take "
        "minutes of processor time, which the cores share; the table ends with how much it was.",
    ),
]
FewCanaries = Annotated[bool, typer.Option("--quick", help="At most 300 canaries.")]
Only = Annotated[str, typer.Option(help="Only audits whose name contains this text.")]


@app.command()
def mechanisms(quick: Quick = False, json: Json = False, only: Only = "") -> None:
    """Every rule, sampler, mechanism and mean of winsor against its certified curve."""
    rows = _run_all(plugins.self_test("mechanisms")(), quick, json, only)
    failed = sum(row.violated or bool(row.error) for row in rows)
    _say("Certified claims", rows, json, ("not violated", "VIOLATED"), {"violated": failed})
    _end(failed > 0)


@app.command()
def published(quick: Quick = False, json: Json = False, only: Only = "") -> None:
    """Claims of the papers, each against the attack that its argument overlooks."""
    point = plugins.plugged(plugins.AUDITS).get("published")
    if point is None:
        raise ConfigurationError(plugins.missing("winsor audit published", "winsor-papers"))
    rows = _run_all(point.load()(), quick, json, only)
    _say("Published claims", rows, json, ("not violated by this attack", "VIOLATED"))
    _end(any(row.error for row in rows))


@app.command("mutants")
def flag_mutants(quick: Quick = False, json: Json = False, only: Only = "") -> None:
    """Deliberately wrong mechanisms: the audit must flag every one (exit code 1 if it does not)."""
    rows = _run_all(plugins.self_test("mutants")(), quick, json, only)
    missed = sum(not row.violated for row in rows)
    _say("Mutants", rows, json, ("MISSED", "flagged"), {"missed": missed})
    _end(missed > 0)


@app.command("run")
def one_run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="The directory of a run of `winsor train`, or module:function that takes no "
            "argument and returns (PrivateTraining, loss), not trained yet. Default: an example.",
        ),
    ] = "winsor.audit.example:example",
    canaries: Annotated[int, typer.Option(help="Number of planted records.")] = 1000,
    guesses: Annotated[int | None, typer.Option(help="Guesses; default a fifth of them.")] = None,
    access: Annotated[str, typer.Option(help="gradients (all releases) or model (final).")] = (
        "gradients"
    ),
    seed: Annotated[int | None, typer.Option(help="For repeatable audits.")] = None,
    quick: FewCanaries = False,
    json: Json = False,
) -> None:
    """Train a twin of RUN once with canaries, and bound epsilon from below by guessing who was in.

    RUN itself is left as it is. The twin sees the private rows: the report is for the data holder.
    """
    _quieten()
    private, loss = _built(target)
    from winsor.audit.one_run import audit_training

    with _progress(json) as bar:
        task = bar.add_task("training with canaries", total=private.budget.planned_steps)
        report = audit_training(
            private,
            loss,
            canaries=min(canaries, 300) if quick else canaries,
            guesses=guesses,
            access=access,
            seed=seed,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if json:
        print_json(report.as_dict())
    else:
        Console().print(str(report))
    _end(report.violated)


@app.command("replay")
def replay_script(
    target: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT.py:FUNCTION",
            help="A file (or module) and a function in it that takes no argument and returns "
            "(train, dataset): train(dataset) or train(dataset, folder) does the whole training.",
        ),
    ],
    rows: Annotated[
        str, typer.Option(help="Rows to exchange, such as 3,17. Default: one of the first batch.")
    ] = "",
    slack: Annotated[float, typer.Option(help="How far a shift may exceed its claim.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Names the coins of all runs.")] = 0,
    opacus: Annotated[bool, typer.Option("--opacus", help="The training uses Opacus.")] = False,
    json: Json = False,
) -> None:
    """Run a training on neighbouring datasets under the same coins, and compare every step.

    The report speaks of private rows: it is for the data holder.
    """
    from winsor.app.runs.reading import call_imported, import_object
    from winsor.audit.replaying.opacus import opacus_adapter
    from winsor.audit.replaying.session import replay

    _quieten()
    built = call_imported(import_object(_as_module(target), "SCRIPT.py:FUNCTION"), {}, target)
    if not (isinstance(built, tuple) and len(built) == 2 and callable(built[0])):
        raise ConfigurationError(
            f"{target} must return (train, dataset). Got {type(built).__name__} instead."
        )
    chosen = _row_numbers(rows)
    adapters = [opacus_adapter()] if opacus else []
    report = replay(*built, rows=chosen, slack=slack, seed=seed, adapters=adapters)
    if json:
        print_json(report.as_dict())
    else:
        Console().print(str(report), markup=False, highlight=False, soft_wrap=True)
    _end(not report.passed)


def _row_numbers(text: str) -> list[int] | None:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdigit() for part in parts):
        raise ConfigurationError(f"--rows must be numbers such as 3,17. Got {text!r} instead.")
    return [int(part) for part in parts] or None


def _as_module(target: str) -> str:
    """ "folder/script.py:function" -> "script:function", with its folder on the path."""
    file, colon, function = target.rpartition(":")
    if not (colon and file.endswith(".py")):
        return target
    if not Path(file).is_file():
        raise ConfigurationError(
            f"SCRIPT.py:FUNCTION must name a file. Got {file!r} instead, which is none."
        )
    sys.path.insert(0, str(Path(file).resolve().parent))
    return f"{Path(file).stem}:{function}"


def _built(target: str) -> tuple[Any, Any]:
    from winsor.app.runs.reading import import_object, is_import_path

    if Path(target).is_dir():
        from winsor.app.runs.assemble import build_untrained
        from winsor.app.runs.reading import allowing

        with allowing(False):  # a directory may come from a stranger: it names no code to be run
            return build_untrained(target)
    if not is_import_path(target):
        raise ConfigurationError(
            f"RUN must be the directory of a run, or module:function. Got {target!r} instead."
        )
    build = import_object(target, "RUN")
    built = build()
    if not (isinstance(built, tuple) and len(built) == 2):
        raise ConfigurationError(
            f"{target} must return (PrivateTraining, loss). Got {type(built).__name__} instead."
        )
    return built


# ------------------------------------------------------------------------------------- output


def _run_all(audits: Sequence[Audit], quick: bool, quiet: bool, only: str) -> list[Row]:
    chosen = [audit for audit in audits if only.lower() in audit.name.lower()]
    if not chosen:
        names = "; ".join(audit.name for audit in audits)
        raise ConfigurationError(f"--only must be part of an audit's name ({names}). Got {only!r}.")
    _quieten()
    rows: dict[str, Row] = {}
    with _progress(quiet) as bar:
        task = bar.add_task("", total=len(chosen))
        for row in _rows(chosen, quick):
            rows[row.name] = row
            bar.update(task, description=row.name, advance=1)
    return [rows[audit.name] for audit in chosen]


def _rows(audits: Sequence[Audit], quick: bool) -> Iterator[Row]:
    """Rows as they come, from one process per core: audits share nothing."""
    workers = min(os.cpu_count() or 1, len(audits) // 4)
    if workers < 2:
        yield from (run_or_explain(audit, quick) for audit in audits)
        return
    # Spawned, because forked threads of torch hang; slow audits first, so that none is left over.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_one_thread) as pool:
        order = sorted(audits, key=lambda audit: audit.runs_for(quick))
        futures = [pool.submit(run_or_explain, audit, quick) for audit in order]
        yield from (future.result() for future in as_completed(futures))


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
    _quieten()


def _quieten() -> None:
    """dp_accounting logs orders that do not converge; they are left out of the minimum anyway."""
    logging.getLogger("absl").setLevel(logging.ERROR)


def _progress(quiet: bool) -> Progress:
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    return Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True)


def _end(failed: bool) -> None:
    if failed:
        raise typer.Exit(1)


def _say(
    title: str,
    rows: Sequence[Row],
    json: bool,
    verdicts: tuple[str, str],
    counts: Mapping[str, int] | None = None,
) -> None:
    """The rows as JSON or as a table; ``verdicts``: not violated, violated."""
    if json:
        print_json({"audits": [row.as_dict() for row in rows], **(counts or {})})
        return
    passed, failed = verdicts
    table = Table(title=title, caption=_caption(rows))
    table.add_column("mechanism", overflow="fold", ratio=4)
    table.add_column("adversary", overflow="fold", ratio=3)
    for name in ("claimed", "at least", "runs"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold", min_width=12)
    for row in rows:
        bad = bool(row.error) or row.violated == (failed == "VIOLATED")
        verdict = row.verdict if row.error else failed if row.violated else passed
        table.add_row(
            row.name,
            row.adversary,
            f"{row.claimed_epsilon:.3g}",
            f"{row.lower_bound:.3g}",
            f"{row.runs:,}",
            f"[{'red' if bad else 'green'}]{verdict}",
        )
    Console().print(table)


def _caption(rows: Sequence[Row]) -> str:
    deltas = sorted({row.delta for row in rows})
    where = ", ".join(f"{delta:g}" for delta in deltas)
    seconds = sum(row.seconds for row in rows)
    return (
        f'epsilon at delta {where}; "at least" holds with confidence 99.99 %; a verdict looks at '
        f"the whole curve; {seconds:.0f} s of processor time"
    )
