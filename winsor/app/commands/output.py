"""Output of the commands: how help looks, the switch --json, and tables of names and values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def new_app(summary: str) -> typer.Typer:
    """Make an application without markup in its help, where "[compare]" is a table's name."""
    app = typer.Typer(
        help=summary,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(help_if_bare)
    return app


def help_if_bare(context: typer.Context) -> None:
    """Print the help of a command that was called without its sub-command."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def print_json(data: Any) -> None:
    """Print one line of JSON."""
    print(json.dumps(data))


def print_pairs(console: Console, pairs: Mapping[str, str], mark: str | None = None) -> None:
    """Print one line for each name and value; the one called ``mark`` was computed."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in pairs.items():
        style, remark = ("bold", "computed") if name == mark else ("", "")
        table.add_row(Text(name, style), Text(value), remark)
    console.print(table)
