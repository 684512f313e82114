"""`winsor plan --draw`: the ways of drawing for one budget, in one table, with a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winsor.app.commands.output import Json, print_json
from winsor.app.commands.plan import AllowLargeDelta
from winsor.core.checks import whole, written_whole

if TYPE_CHECKING:
    from winsor.planning.drawing import Wanted, Way


def plan(
    n: Annotated[float, typer.Option("--n", help="Records (or units) in the dataset.")],
    batch_size: Annotated[float, typer.Option(help="Expected size of a batch.")],
    epochs: Annotated[float, typer.Option(help="Passes over the data.")],
    epsilon: Annotated[float, typer.Option(help="Target epsilon.")],
    delta: Annotated[float, typer.Option(help="Target delta.")],
    draw: Annotated[bool, typer.Option("--draw", help="Compare the ways of drawing.")] = True,
    momentum: Annotated[float, typer.Option(help="Of the optimiser.")] = 0.0,
    optimised: Annotated[
        bool, typer.Option("--optimised", help="Fit the coefficients of correlated noise.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write error against epochs to this .svg or .html file.")
    ] = None,
    allow_large_delta: AllowLargeDelta = False,
    json: Json = False,
) -> None:
    """Compare Poisson, allocation, a plain loader and cyclic sampling with correlated noise.

    For each: the noise multiplier that spends the budget under add/remove, and how much noise ends
    up in the weights against Poisson sampling. --plot repeats this for 1 to 40 epochs, which takes
    about a minute.
    """
    from winsor.planning.drawing import Wanted, advice, by_epochs, chart, compare

    del draw  # it brought us here
    wanted = Wanted(
        n=whole("n", written_whole("n", n)),
        batch_size=whole("batch_size", written_whole("batch_size", batch_size)),
        epochs=epochs,
        epsilon=epsilon,
        delta=delta,
        momentum=momentum,
        optimised=optimised,
        allow_large_delta=allow_large_delta,
    )
    found = compare(wanted)
    if plot is not None:
        from winsor.charts import save

        save(chart(wanted, by_epochs(wanted)), plot)
    if json:
        print_json({"ways": [way.to_json() for way in found], "advice": advice(found)})
    else:
        _show(wanted, found, advice(found), plot)


def _show(wanted: Wanted, ways: list[Way], said: str, plot: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(
        title=f"epsilon {wanted.epsilon:g}, delta {wanted.delta:g}, {wanted.epochs:g} epochs",
        box=None,
    )
    table.add_column("way")
    for heading in ("steps", "noise", "in the weights", "bands"):
        table.add_column(heading, justify="right")
    table.add_column("in make_private", no_wrap=True)
    for way in ways:
        numbers = (f"{way.noise_multiplier:.4g}", f"{way.error:.3f}", f"{way.bands}")
        table.add_row(way.name, f"{way.steps}", *numbers, way.call)
    console.print(table)
    console.print(said)
    if plot is not None:
        console.print(f"Picture: {plot}", markup=False)
