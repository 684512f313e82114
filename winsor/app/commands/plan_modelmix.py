"""`winsor plan --mechanism modelmix`: what mixing iterates buys and costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from winsor.app.commands.output import Json, print_json
from winsor.app.commands.plan import AllowLargeDelta
from winsor.core.checks import whole, written_whole

if TYPE_CHECKING:
    from winsor.contrib.modelmix.planning import MixingAnswer


def plan(
    n: Annotated[float, typer.Option("--n", help="Records in the dataset.")],
    batch_size: Annotated[float, typer.Option(help="Expected size of a batch.")],
    delta: Annotated[float, typer.Option(help="Target delta.")],
    steps: Annotated[float | None, typer.Option(help="Number of steps.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Gaussian noise, to compute epsilon.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Target, to compute the Gaussian noise that remains.")
    ] = None,
    max_grad_norm: Annotated[float, typer.Option(help="Clipping bound of one record.")] = 1.0,
    tau_over_lr: Annotated[
        list[float] | None,
        typer.Option(help="Mixing threshold over learning rate; may be repeated."),
    ] = None,
    p: Annotated[
        list[float] | None, typer.Option(help="Coordinate bound of rules.LInf; may be repeated.")
    ] = None,
    allow_large_delta: AllowLargeDelta = False,
    json: Json = False,
    mechanism: Annotated[str, typer.Option(hidden=True)] = "modelmix",
) -> None:
    """What mixing iterates buys and costs, over thresholds tau and coordinate bounds p.

    Give --noise-multiplier to see epsilon, or --epsilon to see how much Gaussian noise remains.
    """
    from winsor.contrib.modelmix.planning import MixingQuestion, solve
    from winsor.contrib.modelmix.tradeoff import DEFAULT_P

    question = MixingQuestion(
        n=whole("n", written_whole("n", n)),
        batch_size=batch_size,
        delta=delta,
        steps=written_whole("steps", steps),
        epochs=epochs,
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        max_grad_norm=max_grad_norm,
        tau_over_lr=tuple(tau_over_lr or ()),
        p=tuple(p or DEFAULT_P),
        allow_large_delta=allow_large_delta,
    )
    answer = solve(question)
    if json:
        print_json(answer.to_json())
    else:
        _show(answer)


def _show(answer: MixingAnswer) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"Without mixing: epsilon {answer.plain_epsilon:.4g} at delta {answer.delta:g}, noise "
        f"multiplier {answer.plain_noise_multiplier:.4g}, deviation {answer.plain_sd:.4g} per "
        f"coordinate; {answer.steps} steps at rate {answer.sampling_rate:.4g}."
    )
    table = Table(
        "tau/lr", "p", "epsilon", "multiplier", "Gaussian", "mixing", "total", "x plain",
        "if Gaussian", box=None,
    )  # fmt: skip
    for row in answer.rows:
        table.add_row(
            f"{row.tau_over_lr:.4g}",
            f"{row.p:g}",
            f"{row.epsilon:.4g}",
            f"{row.noise_multiplier:.4g}",
            f"{row.gaussian_sd:.4g}",
            f"{row.mixing_sd:.4g}",
            f"{row.total_sd:.4g}",
            f"{row.total_sd / answer.plain_sd:.2f}",
            f"{row.epsilon_as_gaussian:.4g}",
        )
    console.print(table)
    console.print(
        "Gaussian, mixing and total are standard deviations of a coordinate of the averaged "
        "gradient. The last column is the epsilon of plain DP-SGD with Gaussian noise of the total "
        "deviation: where it is smaller, mixing must earn the difference in the optimisation."
    )
