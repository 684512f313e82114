"""`winsor statistic NAME FILE`: release a statistic of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def statistic(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Class of the statistic.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Rows: an (n, columns) .npy file.")],
    epsilon: Annotated[float, typer.Option(help="Budget.")],
) -> None:
    """Release a statistic of the rows of FILE, found in WINSOR_STATISTICS or installed."""
    from winsor.app.commands.tails import read_numbers
    from winsor.tables.statistics import by_name, release

    chosen = by_name(name)
    found = release(chosen, read_numbers(file), epsilon=epsilon)
    print(f"{chosen!r}: {found.value} (noise {found.noise_std:.4g})\n{found.guarantee}")
