"""What the subcommands of `winsor plan` share: options, the default, how answers look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from winsor.app.commands.output import print_json, print_pairs

N = Annotated[float, typer.Option("--n", help="Records (or units) in the dataset.")]
BatchSize = Annotated[float, typer.Option(help="Expected size of a batch.")]
Steps = Annotated[float | None, typer.Option(help="Number of steps.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the data.")]
Epsilon = Annotated[float, typer.Option(help="Target epsilon.")]
Delta = Annotated[float, typer.Option(help="Target delta.")]
AllowLargeDelta = Annotated[
    bool, typer.Option("--allow-large-delta", help="Accept a delta of 1/n or more.")
]

FORMER = {"--data": "propose", "--draw": "draw", "--mechanism=modelmix": "mix"}
"""Options of `winsor plan` in version 0.2 and the subcommands that they are now."""


class WithDefault(TyperGroup):
    """A group that takes its arguments for those of `run` where no subcommand is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Name the subcommand before the arguments are parsed."""
        if not args or args[0] not in self.commands:
            text = " ".join(args).replace("--mechanism modelmix", "--mechanism=modelmix")
            options = {option for word in text.split() for option in (word, word.split("=")[0])}
            args = [next((FORMER[o] for o in FORMER if o in options), "run"), *args]
        return super().parse_args(ctx, args)


@dataclass(frozen=True)
class Rows:
    """A table of an answer. A heading that ends in > is of numbers, aligned on the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str | None = None


def print_answer(*parts: str | Mapping[str, str] | Rows, mark: str | None = None) -> None:
    """Print sentences, names with values, and tables; the value named ``mark`` was computed."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for part in parts:
        if isinstance(part, str):
            console.print(part, markup=False)
        elif isinstance(part, Rows):
            table = Table(title=part.title, box=None)
            for heading in part.headings:
                right = heading.endswith(">")
                table.add_column(heading.rstrip(">"), justify="right" if right else "left")
            for row in part.rows:
                table.add_row(*map(Text, row))
            console.print(table)
        else:
            print_pairs(console, part, mark)


def print_one(answer: Any, json: bool, *parts: str | Mapping[str, str] | Rows) -> None:
    """Print an answer's own JSON for machines, or the parts that show it to people."""
    if json:
        print_json(answer.to_json())
    else:
        print_answer(*parts)
