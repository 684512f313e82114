"""The command line. Each command is loaded when it is called, and no other.

To add a command, write a function with typer annotations in a module of this folder and add one
line to `COMMANDS`; other distributions bring commands of their own (`plugins.py`). Errors that
winsor raises on purpose end in one line on stderr and exit code 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated

import typer

from winsor.app.commands.output import help_if_bare, new_app
from winsor.core.contract import WinsorError
from winsor.planning.optional import needing_torch

COMMANDS = {  # name: (where its function or typer app is, its line in `winsor --help`)
    "plan": (
        "winsor.app.commands.plan:app",
        "Compute the missing one of epsilon, delta, noise and steps.",
    ),
    "audit": ("winsor.app.commands.audit:app", "Try to break every claim, certified or published."),
    "train": (
        "winsor.app.commands.train:train",
        "Train a private model from a TOML file, or resume a run.",
    ),
    "compare": ("winsor.app.commands.train:compare", "Train variants with several seeds each."),
    "tune": ("winsor.app.commands.train:tune", "Find settings within one privacy budget."),
    "report": (
        "winsor.app.commands.report:report",
        "Write one HTML page about runs, and the same as JSON.",
    ),
    "verify": ("winsor.app.commands.verify:verify", "Check that the files of a run agree."),
    "sign": ("winsor.app.commands.verify:sign", "Sign a finished run with an Ed25519 key."),
    "tails": (
        "winsor.app.commands.tails:tails",
        "Fit the tail of a file of norms, with thresholds.",
    ),
    "statistic": (
        "winsor.app.commands.statistic:statistic",
        "Release a statistic that a file of one's own defines.",
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``winsor`` and ``python -m winsor``."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with needing_torch(_called_in(arguments)):
            result = _app(arguments)(arguments, prog_name="winsor", standalone_mode=False)
        code = result if isinstance(result, int) else 0
        sys.stdout.flush()
    except WinsorError as error:
        code = _complain(str(error))
    except OSError as error:
        code = _complain_of_files(error)
    except typer.Abort:
        code = 1
    except ModuleNotFoundError as error:
        if (error.name or "winsor").startswith("winsor."):
            raise  # a mistake of ours
        code = _complain(
            f"{_called_in(arguments)} needs the package {error.name}. It is not installed."
        )
    except Exception as error:
        # Usage errors; their class has moved between versions of typer.
        if not hasattr(error, "format_message"):
            raise
        problem = error.format_message().strip() or "something is missing"
        stop = "" if problem.endswith((".", "?", "!")) else "."
        code = _complain(f"{problem}{stop} {_help_for(arguments)}")
    sys.exit(code)


def _complain(message: str) -> int:
    print("winsor: error: " + " ".join(message.split()), file=sys.stderr)
    return 2


def _complain_of_files(error: OSError) -> int:
    """Report a full disk or a closed pipe; what could not be printed is not tried again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # whoever read has read enough
        return 1
    where = f"{error.filename}: " if error.filename else ""
    return _complain(
        f"cannot read or write {where or 'the output: '}{error.strerror or error}. Make room, or "
        "choose another place."
    )


def _help_for(arguments: Sequence[str]) -> str:
    return f"See `{_called_in(arguments)} -h`."


def _called_in(arguments: Sequence[str]) -> str:
    from winsor.app.commands import plugins

    known = {*COMMANDS, *plugins.plugged(plugins.COMMANDS)}
    called = next((word for word in arguments if word in known), None)
    return f"winsor {called}" if called else "winsor"


def _app(arguments: Sequence[str]) -> typer.Typer:
    """Build the application: the called command is loaded, the others are lines of help."""
    called = next((word for word in arguments if not word.startswith("-")), None)
    app = new_app("Private learning with heavy tails: every printed epsilon is certified.")
    app.callback(invoke_without_command=True)(_options)
    for name, (home, summary) in COMMANDS.items():
        if name != called:
            app.command(name, help=summary)(_not_loaded)
            continue
        target = _load(home)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name, help=summary)
        else:
            app.command(name)(target)
    if called not in COMMANDS:
        _plug_in(app, called)
    return app


def _plug_in(app: typer.Typer, called: str | None) -> None:
    """Add the command that another distribution brings, or the names of all of them."""
    from winsor.app.commands import plugins

    target = None if called is None else plugins.command(called)
    if target is None:
        for name, summary in plugins.summaries().items():
            app.command(name, help=summary)(_not_loaded)
    elif isinstance(target, typer.Typer):
        app.add_typer(target, name=called)
    else:
        app.command(called)(target)


def _load(home: str) -> typer.Typer | Callable[..., None]:
    module, attribute = home.split(":")
    target: typer.Typer | Callable[..., None] = getattr(import_module(module), attribute)
    return target


def _not_loaded() -> None:
    raise AssertionError("only the called command runs")


def _print_version(wanted: bool) -> None:
    if wanted:
        from winsor import __version__

        print(f"winsor {__version__}")
        raise typer.Exit


def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options of winsor itself, before the name of a command."""
    help_if_bare(context)
