"""`winsor train` and `winsor compare`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from winsor.core.contract import ConfigurationError

Configuration = Annotated[
    Path | None, typer.Argument(metavar="CONFIG.toml", help="The configuration of the run.")
]
Directory = Annotated[
    Path | None, typer.Option("--run", help="The run's directory; an existing one is resumed.")
]
IsQuiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
AllowImport = Annotated[
    bool,
    typer.Option("--allow-import", help="Run code that the configuration names (module:name)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def train(
    config: Configuration = None,
    run: Directory = None,
    quiet: IsQuiet = False,
    json: AsJson = False,
    allow_import: AllowImport = False,
) -> None:
    """Train one private model as CONFIG.toml says, or resume a run.

    The run's directory is runs/NAME unless --run says otherwise. Call it again with the same --run
    to resume after Ctrl-C, a kill or a full disk; CONFIG.toml may then be left out.
    """
    from winsor.app.runs.importing import allowing
    from winsor.app.runs.toml_file import load_table, read_text

    _refuse_both(quiet, json)
    table = None if config is None else load_table(config)
    if config is None or table is None:
        if run is None:
            raise ConfigurationError("give CONFIG.toml, or --run DIR of a run to resume.")
        from winsor.app.runs.directory import RunDirectory

        settings, source = RunDirectory(run).config(), None
    else:
        from winsor.app.runs.config import from_table

        settings, source = from_table(table, config.parent), read_text(config)
    from winsor.app.runs.execute import execute  # torch, once the configuration is known to be good
    from winsor.app.runs.no_compiler import leave_out_compiler
    from winsor.app.runs.progress import make_observer

    leave_out_compiler()
    path = Path("runs") / slug(settings.name) if run is None else run
    with allowing(allow_import), make_observer(quiet, json) as observer:
        _stopping(lambda: execute(settings, path, observer, source=source))


def compare(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="With a [compare] table.")],
    run: Directory = None,
    quiet: IsQuiet = False,
    json: AsJson = False,
    allow_import: AllowImport = False,
) -> None:
    """Train the variants of CONFIG.toml's [compare] table over its seeds, one after the other.

    Prints the mean of each metric with a 95 % interval over seeds. Call it again to resume.
    """
    from winsor.app.runs.importing import allowing
    from winsor.app.runs.toml_file import load_table, read_text

    _refuse_both(quiet, json)
    table = load_table(config)
    from winsor.app.runs.compare import Comparison, show
    from winsor.app.runs.no_compiler import leave_out_compiler

    leave_out_compiler()

    comparison = Comparison.from_table(table, config.parent)
    path = Path("runs") / slug(comparison.name) if run is None else run
    source = read_text(config)
    with allowing(allow_import):
        summary = _stopping(lambda: comparison.execute(path, quiet, json, source))
    show(summary, quiet, json)


def slug(name: str) -> str:
    """A file name from any text."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"


def _refuse_both(quiet: bool, json: bool) -> None:
    if quiet and json:
        raise ConfigurationError("--quiet and --json exclude each other. Give one of them.")


def _stopping(action: Any) -> Any:
    """Run; end with the exit code of the signal if one came."""
    from winsor.app.runs.stopping import Interrupted

    try:
        return action()
    except Interrupted as stop:
        print(f"winsor: {stop}", file=sys.stderr)
        raise typer.Exit(stop.exit_code) from None
    except KeyboardInterrupt:
        print("winsor: stopped. Call the same command again to go on.", file=sys.stderr)
        raise typer.Exit(130) from None
