"""`winsor train`, `winsor compare` and `winsor tune`."""

from __future__ import annotations

import json as json_module
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from winsor.core.contract import ConfigurationError

Configuration = Annotated[
    Path | None, typer.Argument(metavar="CONFIG.toml", help="Configuration of the run.")
]
Directory = Annotated[
    Path | None, typer.Option("--run", help="Directory of the run; an existing run is resumed.")
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

    The files of the run go to runs/NAME, or to the directory given by --run. To resume after
    Ctrl-C, a kill or a full disk, call the command again with the same --run; CONFIG.toml may then
    be left out.
    """
    from winsor.app.runs.reading import allowing, load_table, read_text

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
    from winsor.app.runs.progress import make_observer

    path = Path("runs") / slug(settings.name) if run is None else run
    with allowing(allow_import), make_observer(quiet, json) as observer:
        _stopping(lambda: execute(settings, path, observer, source=source))


def compare(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.toml", help="Configuration with a [compare] table.")
    ],
    run: Directory = None,
    quiet: IsQuiet = False,
    json: AsJson = False,
    allow_import: AllowImport = False,
) -> None:
    """Train the variants of CONFIG.toml's [compare] table, each with several seeds.

    Prints the mean of each metric over the seeds with its 95 % interval, and the epsilon of all
    runs together. To resume, call the command again with the same --run.
    """
    from winsor.app.runs.reading import allowing, load_table, read_text

    _refuse_both(quiet, json)
    table = load_table(config)
    from winsor.app.runs.compare import Comparison, show

    comparison = Comparison.from_table(table, config.parent)
    path = Path("runs") / slug(comparison.name) if run is None else run
    source = read_text(config)
    with allowing(allow_import):
        summary = _stopping(lambda: comparison.execute(path, quiet, json, source))
    show(summary, quiet, json)


def slug(name: str) -> str:
    """Make a file name of any text."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"


def _refuse_both(quiet: bool, json: bool) -> None:
    if quiet and json:
        raise ConfigurationError("--quiet and --json exclude each other. Give one of them.")


def _stopping(action: Callable[[], Any]) -> Any:
    """Run; end with the exit code of the signal if one came."""
    from winsor.app.runs.execute import Interrupted

    try:
        return action()
    except Interrupted as stop:
        raise _stopped(str(stop), stop.exit_code) from None
    except KeyboardInterrupt:
        raise _stopped("stopped. Call the same command again to resume.", 130) from None


def _stopped(message: str, code: int) -> typer.Exit:
    print(f"winsor: {message}", file=sys.stderr)
    return typer.Exit(code)


if TYPE_CHECKING:
    from rich.console import Console


def tune(
    config: Configuration = None,
    run: Directory = None,
    quiet: IsQuiet = False,
    json: AsJson = False,
    allow_import: AllowImport = False,
) -> None:
    """Find good settings in the [tune.space] of CONFIG.toml within one privacy budget.

    A random number of trials is run, each with settings drawn from the space. Only the best one is
    released, which costs little more than a single trial. Nothing is shown before the end: the
    number of trials, and so the time they take, is secret. To resume, call the command again with
    the same --run; CONFIG.toml may then be left out. With release = "all" in [tune], every trial is
    shown and paid for.
    """
    import tomllib

    from winsor.app.runs.reading import allowing

    _refuse_both(quiet, json)
    source = _source(config, run)
    try:
        table = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{config or run} is not valid TOML: {error}.") from error
    from winsor.app.runs.folder import sense
    from winsor.app.tuning.configured import ConfiguredTuning
    from winsor.app.tuning.directory import TuningDirectory

    with allowing(allow_import):
        tuning = ConfiguredTuning.from_table(table)
        path = Path("runs") / slug(tuning.config.name) if run is None else run
        try:
            result = TuningDirectory(path).execute(tuning, source)
        except KeyboardInterrupt:
            raise _stopped(f"stopped. Resume with: winsor tune --run {path}", 130) from None
    if json:
        print(json_module.dumps({"event": "finish", "directory": str(path), **result}))
    elif not quiet:
        with sense(path):
            _show(result, path)


def _source(config: Path | None, run: Path | None) -> str:
    """The text of the configuration of a tuning."""
    if config is not None:
        return _absolute(config)
    if run is None:
        raise ConfigurationError("give CONFIG.toml, or --run DIR of a tuning to resume.")
    from winsor.app.tuning.directory import TuningDirectory

    return TuningDirectory(run).source()


def _absolute(config: Path) -> str:
    """The configuration with absolute paths of data, which a resumed tuning can read too."""
    import tomli_w

    from winsor.app.runs.config import is_file
    from winsor.app.runs.reading import load_table

    table = load_table(config)
    text = config.read_text(encoding="utf-8")
    data = table.get("data", {})
    changed = {
        key: str((config.parent / data[key]).resolve())
        for key in ("source", "held_out")
        if isinstance(data.get(key), str) and is_file(data[key])
    }
    if all(data.get(key) == value for key, value in changed.items()):
        return text
    return tomli_w.dumps({**table, "data": {**data, **changed}})


def _show(result: dict[str, Any], path: Path) -> None:
    from rich.console import Console

    from winsor.app.commands.output import print_pairs

    console = Console()
    pairs = {name: _text(value) for name, value in result["setting"].items()}
    pairs[f"score on {result['score_on']}"] = _text(result["score"])
    print_pairs(console, pairs)
    if result["release"] == "all":
        _show_trials(console, path)
        shares = result.get("importance", {})
        if shares:
            told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
            console.print(f"What mattered, by these scores: {told}", markup=False)
    console.print(result["guarantee"], markup=False)
    for condition in result["conditions"]:
        console.print(f"  {condition}", markup=False)
    console.print(f"Model and result: {path}", markup=False)


def _show_trials(console: Console, path: Path) -> None:
    from rich.table import Table

    rows = json_module.loads((path / "trials.json").read_text(encoding="utf-8"))
    table = Table(*rows[0], box=None)
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    console.print(table)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
