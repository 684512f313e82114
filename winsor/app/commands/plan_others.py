"""The other questions of `winsor plan`: ways of drawing, mixing iterates, a run to propose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from winsor.app.commands.output import Json, print_json
from winsor.app.commands.plan_parts import (
    AllowLargeDelta,
    BatchSize,
    Delta,
    Epochs,
    Epsilon,
    N,
    Rows,
    Steps,
    print_answer,
    print_one,
)
from winsor.core.checks import whole, written_whole
from winsor.tuning.public_rows import MODELS

if TYPE_CHECKING:
    from winsor.contrib.modelmix.planning import MixingAnswer
    from winsor.planning.drawing import Way
    from winsor.planning.plan import Question
    from winsor.tuning.public_rows import Proposal


def draw(
    n: N,
    batch_size: BatchSize,
    epochs: Annotated[float, typer.Option(help="Passes over the data.")],
    epsilon: Epsilon,
    delta: Delta,
    draw: Annotated[bool, typer.Option("--draw", hidden=True)] = True,
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
    from winsor.planning.drawing import advice, by_epochs, chart, compare
    from winsor.planning.plan import Question

    question = Question(
        n=written_whole("n", n),
        batch_size=whole("batch_size", written_whole("batch_size", batch_size)),
        epochs=epochs,
        epsilon=epsilon,
        delta=delta,
        allow_large_delta=allow_large_delta,
    )
    found = compare(question, momentum, optimised)
    if plot is not None:
        from winsor.charts import save

        save(chart(question, by_epochs(question, momentum, optimised), momentum), plot)
    if json:
        print_json({"ways": [way.to_json() for way in found], "advice": advice(found)})
    else:
        picture = [] if plot is None else [f"Picture: {plot}"]
        print_answer(_of_ways(question, found), advice(found), *picture)


def _of_ways(question: Question, ways: list[Way]) -> Rows:
    title = f"epsilon {question.epsilon:g}, delta {question.delta:g}, {question.epochs:g} epochs"
    headings = ("way", "steps>", "noise>", "in the weights>", "bands>", "in make_private")
    rows = []
    for way in ways:
        numbers = (f"{way.noise_multiplier:.4g}", f"{way.error:.3f}", f"{way.bands}")
        rows.append((way.name, f"{way.steps}", *numbers, way.call))
    return Rows(headings, rows, title)


def mix(
    n: N,
    batch_size: BatchSize,
    delta: Delta,
    steps: Steps = None,
    epochs: Epochs = None,
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
    """Show what mixing iterates buys and costs, over thresholds tau and coordinate bounds p.

    Give --noise-multiplier to see epsilon, or --epsilon to see how much Gaussian noise remains.
    """
    from winsor.contrib.modelmix.planning import DEFAULT_P, solve
    from winsor.planning.plan import Question

    question = Question(
        n=written_whole("n", n),
        batch_size=batch_size,
        delta=delta,
        steps=written_whole("steps", steps),
        epochs=epochs,
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        allow_large_delta=allow_large_delta,
    )
    answer = solve(
        question, max_grad_norm=max_grad_norm, tau_over_lr=tau_over_lr or (), p=p or DEFAULT_P
    )
    print_one(answer, json, *_of_mixing(answer))


def _of_mixing(answer: MixingAnswer) -> list[Any]:
    headings = (
        "tau/lr", "p", "epsilon", "multiplier", "Gaussian", "mixing", "total", "x plain",
        "if Gaussian",
    )  # fmt: skip
    rows = [
        (
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
        for row in answer.rows
    ]
    return [
        f"Without mixing: epsilon {answer.plain_epsilon:.4g} at delta {answer.delta:g}, noise "
        f"multiplier {answer.plain_noise_multiplier:.4g}, deviation {answer.plain_sd:.4g} per "
        f"coordinate; {answer.steps} steps at rate {answer.sampling_rate:.4g}.",
        Rows(headings, rows),
        "Gaussian, mixing and total are standard deviations of a coordinate of the averaged "
        "gradient. The last column is the epsilon of plain DP-SGD with Gaussian noise of the total "
        "deviation: where it is smaller, mixing must earn the difference in the optimisation.",
    ]


def propose(
    data: Annotated[Path, typer.Option(help="PUBLIC or synthetic rows: .npz with x and y.")],
    n: Annotated[float, typer.Option("--n", help="Rows of the private dataset.")],
    epsilon: Epsilon,
    delta: Annotated[float | None, typer.Option(help="Default: 1/(10 n).")] = None,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = "linear",
    batch_size: Annotated[int | None, typer.Option(help="Default: 2 sqrt(n).")] = None,
    steps: Annotated[int | None, typer.Option(help="Default: that of the recipe.")] = None,
    dry_steps: Annotated[int, typer.Option(help="Steps of each dry run.")] = 60,
    seed: Annotated[int, typer.Option(help="Of the dry runs.")] = 0,
    allow_large_delta: AllowLargeDelta = False,
    json: Json = False,
) -> None:
    """Propose rule, threshold, batch size, learning rate and steps from public stand-in rows.

    The file holds x (one row per record) and y: whole numbers for classes, other numbers for
    regression with Huber's loss in the units of y. Images in bytes are scaled to [-1, 1].
    """
    from winsor.planning.plan import Question
    from winsor.tuning.public_rows import propose as proposed
    from winsor.tuning.public_rows import read_public

    question = Question(
        n=whole("n", written_whole("n", n), least=2),
        epsilon=epsilon,
        delta=delta,
        batch_size=batch_size,
        steps=steps,
        allow_large_delta=allow_large_delta,
    )
    found = proposed(read_public(data), question, model=model, dry_steps=dry_steps, seed=seed)
    print_one(found, json, *_of_proposal(found))


def _of_proposal(proposal: Proposal) -> list[Any]:
    found, run = proposal.found, proposal.run
    best = found.best
    numbers = {
        "rule": best.describe(),
        "threshold": f"{best.threshold:.4g}",
        "batch size": f"{run.batch_size} of {run.n}",
        "learning rate": f"{best.learning_rate:.4g}, momentum {best.momentum:g}, falling to zero",
        "steps": f"{run.steps}",
        "noise multiplier": f"{best.noise_multiplier:.4g}",
        "budget": f"epsilon {run.epsilon:g}, delta {run.delta:.3g}",
        "tail of the public norms": str(found.tail.verdict),
    }
    ranking = [
        (f"{place}", f"{c.loss:.4g}", c.describe(), f"{c.learning_rate:.4g}")
        for place, c in enumerate(found.candidates[:6], start=1)
    ]
    doubt = "No candidate learned: give more --dry-steps or more public rows."
    return [
        numbers,
        Rows(("", "loss", "rule", "learning rate"), ranking, "dry runs on public rows"),
        f"untrained loss {found.untrained_loss:.4g}",
        *[doubt] * (best.loss >= found.untrained_loss),
    ]
