"""`winsor plan`: the missing number of a private run.

Three other planners answer under the same name, with questions and options of their own:
`winsor plan --mechanism modelmix`, `winsor plan --data FILE` and `winsor plan --draw`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from winsor.app.commands.output import Json, print_json, print_pairs
from winsor.core.checks import as_relation, choice, written_whole
from winsor.core.contract import ConfigurationError

if TYPE_CHECKING:
    from winsor_papers.theory import Promise

    from winsor.planning.plan import Plan, Question
    from winsor.tuning.plan import TuningComparison

MECHANISMS = {
    "gaussian": "winsor.app.commands.plan:plan",
    "modelmix": "winsor.app.commands.plan_modelmix:plan",
}
FROM_DATA = "winsor.app.commands.plan_public_rows:plan"
DRAWING = "winsor.app.commands.plan_drawing:plan"

AllowLargeDelta = Annotated[
    bool, typer.Option("--allow-large-delta", help="Accept a delta of 1/n or more.")
]


def planner(arguments: Sequence[str]) -> str:
    """Where the planner is that these arguments ask for."""
    if _value(arguments, "--data") is not None:
        return FROM_DATA
    if "--draw" in arguments:
        return DRAWING
    return MECHANISMS.get(_value(arguments, "--mechanism") or "", MECHANISMS["gaussian"])


def _value(arguments: Sequence[str], option: str) -> str | None:
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        name, _, joined = word.partition("=")
        if name == option:
            return joined if "=" in word else following
    return None


def plan(
    n: Annotated[float | None, typer.Option("--n", help="Records in the dataset.")] = None,
    batch_size: Annotated[float | None, typer.Option(help="Expected size of a batch.")] = None,
    steps: Annotated[float | None, typer.Option(help="Number of steps.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise deviation over the add/remove sensitivity.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Target epsilon.")] = None,
    delta: Annotated[float | None, typer.Option(help="Target delta.")] = None,
    relation: Annotated[
        str, typer.Option(help="add_or_remove_one or replace_one.")
    ] = "add_or_remove_one",
    sampling: Annotated[str, typer.Option(help="poisson, fixed or full.")] = "poisson",
    points: Annotated[int, typer.Option(help="Points of the curve of epsilon.")] = 10,
    mechanism: Annotated[
        str, typer.Option(help="gaussian, or modelmix (see --mechanism modelmix --help).")
    ] = "gaussian",
    allow_large_delta: AllowLargeDelta = False,
    d: Annotated[
        float | None,
        typer.Option("--d", help="Parameters of the model: adds what theorems promise."),
    ] = None,
    theta: Annotated[float, typer.Option(help="Sub-Weibull tail index, with --d.")] = 0.5,
    moments: Annotated[float, typer.Option(help="Moments of gradients, with --d.")] = 2.0,
    tune: Annotated[
        float | None,
        typer.Option(help="Mean number of trials: adds what tuning inside the budget costs."),
    ] = None,
    tune_eta: Annotated[
        float,
        typer.Option(help="Shape of the law of that number, with --tune; larger is narrower."),
    ] = 0.0,
    score_noise_multiplier: Annotated[
        float | None,
        typer.Option(help="Noise of a score on private rows, with --tune; public rows are free."),
    ] = None,
    json: Json = False,
) -> None:
    """Give all but one of epsilon, delta, noise multiplier, steps or epochs, batch size and n.

    The missing one is computed with the accountant that certifies the run, for a rule that clips
    each record's contribution. With --sampling full, n and batch size are not needed. With --data
    FILE of public rows a whole run is proposed instead: see winsor plan --data FILE --help. With
    --draw the ways of drawing are compared: see winsor plan --draw --help. With --d the rates of
    the five papers are added, with what they assume.
    """
    from winsor.planning.plan import Question, solve

    choice("mechanism", mechanism, MECHANISMS)
    question = Question(
        n=written_whole("n", n),
        batch_size=batch_size,
        steps=written_whole("steps", steps),
        epochs=epochs,
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        delta=delta,
        relation=as_relation(relation.replace("-", "_")),
        sampling=sampling,
        allow_large_delta=allow_large_delta,
    )
    tuning = _tuning(question, tune, tune_eta, score_noise_multiplier)
    answer = solve(question, points)
    promised = [] if d is None else rates(answer, d, theta, moments)
    if json:
        extra: dict[str, Any] = {}
        if promised:
            extra["rates"] = {one.name: _plain(one) for one in promised}
        if tuning is not None:
            extra["tuning"] = tuning.to_json()
        print_json({**answer.to_json(), **extra})
        return
    _show(answer)
    if tuning is not None:
        _show_tuning(tuning)
    if promised:
        from rich.console import Console
        from winsor_papers.promises import print_promises

        print_promises(Console(), promised)


def _tuning(
    question: Question, trials: float | None, eta: float, score: float | None
) -> TuningComparison | None:
    """What tuning costs, if it was asked for."""
    from winsor.tuning.plan import compare

    if trials is None:
        for name, given in {"--score-noise-multiplier": score, "--tune-eta": eta or None}.items():
            if given is not None:
                raise ConfigurationError(f"{name} must be given with --tune. Got it alone instead.")
        return None
    return compare(question, [trials], eta, score_noise_multiplier=score)


def rates(plan: Plan, d: float, theta: float, moments: float) -> list[Promise]:
    """The rates of the theorems at the numbers of a plan."""
    from winsor_papers.theory import Circumstances, promises

    if plan.n is None:
        raise ConfigurationError("n must be given with --d. Got none. Rates are rates in n.")
    batch = plan.n if plan.batch_size is None else plan.batch_size
    facts = Circumstances(
        n=plan.n,
        d=d,
        epsilon=plan.epsilon,
        delta=plan.delta,
        steps=plan.steps,
        batch_size=batch,
        theta=theta,
        p=moments,
    )
    return promises(facts)


def _plain(promise: Promise) -> dict[str, Any]:
    return promise.bound.to_json() if promise.bound else {"refused": promise.refusal}


def _show(plan: Plan) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    rows = {
        "epsilon": f"{plan.epsilon:.6g}",
        "delta": f"{plan.delta:.6g}",
        "noise multiplier": f"{plan.noise_multiplier:.6g}",
        "sampling rate": f"{plan.sampling_rate:.6g} ({plan.sampling})",
        "steps": f"{plan.steps} ({plan.epochs:.4g} epochs)",
        "batch size": "all" if plan.batch_size is None else f"{plan.batch_size:g}",
        "n": "not needed" if plan.n is None else str(plan.n),
        "relation": plan.relation.value,
        "accountant": plan.accountant,
    }
    print_pairs(console, rows, mark=plan.solved_for.replace("_", " "))
    if plan.curve:
        curve = Table("epoch", "steps", "epsilon", title="epsilon along the run", box=None)
        for point in plan.curve:
            curve.add_row(f"{point['epoch']:.4g}", f"{point['steps']}", f"{point['epsilon']:.4g}")
        console.print(curve)
    for note in plan.notes:
        console.print(f"Note: {note}")


def _show_tuning(tuning: TuningComparison) -> None:
    from rich.console import Console

    console = Console()
    for option in tuning.options:
        composed = option.composed_multiplier
        rows = {
            "mean number of trials": f"{option.trials:g} (one time in a hundred above "
            f"{option.most_trials}, one in {1 / option.only_one:.0f} only one)",
            "settings that beat the winner": f"{option.rank:.0%} on average, if scores are right",
            "noise multiplier of a trial": f"{option.noise_multiplier:.6g} (untuned "
            f"{tuning.untuned:.6g})",
            "as if the rows were": f"{option.rows_left:.0f}",
            "epsilon of a trial alone": f"{option.trial_epsilon:.4g}",
            "noise if all were released": "none is enough"
            if composed is None
            else f"{composed:.6g}",
        }
        console.print("tuning inside the same budget")
        print_pairs(console, rows)
    console.print(tuning.advice, markup=False)
