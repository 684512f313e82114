"""`winsor tune`: settings found inside one privacy budget."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from winsor.app.commands.train import AllowImport, AsJson, Configuration, Directory, IsQuiet, slug
from winsor.core.contract import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console


def tune(
    config: Configuration = None,
    run: Directory = None,
    quiet: IsQuiet = False,
    json: AsJson = False,
    allow_import: AllowImport = False,
) -> None:
    """Tune the settings of CONFIG.toml's [tune.space] within its budget, or resume a tuning.

    A random number of trials is run, each at settings drawn from the space; the best leaves, at
    little more than the price of one. Until the end nothing is shown about them, not even their
    number: it is secret, and so is the time the tuning takes. Call it again with the same --run to
    resume; CONFIG.toml may then be left out. With release = "all" every trial is shown and paid
    for.
    """
    import tomllib

    from winsor.app.runs.importing import allowing

    if quiet and json:
        raise ConfigurationError("--quiet and --json exclude each other. Give one of them.")
    source, folder = _source(config, run)
    try:
        table = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{config or run} is not valid TOML: {error}.") from error
    from winsor.app.tuning.configured import ConfiguredTuning
    from winsor.app.tuning.directory import TuningDirectory

    with allowing(allow_import):
        tuning = ConfiguredTuning.from_table(table, folder)
        path = Path("runs") / slug(tuning.config.name) if run is None else run
        try:
            result = TuningDirectory(path).execute(tuning, source)
        except KeyboardInterrupt:
            print(f"winsor: stopped. Resume with: winsor tune --run {path}", file=sys.stderr)
            raise typer.Exit(130) from None
    if json:
        print(json_module.dumps({"event": "finish", "directory": str(path), **result}))
    elif not quiet:
        _show(result, path)


def _source(config: Path | None, run: Path | None) -> tuple[str, Path | None]:
    """The text of the configuration, and the folder that its paths are relative to."""
    if config is not None:
        from winsor.app.runs.toml_file import load_table

        load_table(config)  # refuses what cannot be read
        return _absolute(config), None
    if run is None:
        raise ConfigurationError("give CONFIG.toml, or --run DIR of a tuning to resume.")
    from winsor.app.tuning.directory import TuningDirectory

    return TuningDirectory(run).source(), None


def _absolute(config: Path) -> str:
    """The configuration with paths of data that mean the same from anywhere, for resuming."""
    import tomli_w

    from winsor.app.runs.config import is_file
    from winsor.app.runs.toml_file import load_table

    text, table = config.read_text(encoding="utf-8"), load_table(config)
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
