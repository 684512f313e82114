"""`winsor plan`: four questions about a run that has not started.

run       the missing one of epsilon, delta, noise, length, batch size and n; the default
draw      the ways of drawing for one budget, side by side
mix       what mixing iterates (ModelMix) buys and costs
propose   a whole run, proposed from public stand-in rows
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from winsor.app.commands import plugins
from winsor.app.commands.output import Json, new_app, print_json
from winsor.app.commands.plan_others import draw, mix, propose
from winsor.app.commands.plan_parts import (
    AllowLargeDelta,
    Epochs,
    Rows,
    Steps,
    WithDefault,
    print_answer,
)
from winsor.core.checks import as_relation, choice, written_whole
from winsor.core.contract import ConfigurationError

if TYPE_CHECKING:
    from winsor.planning.plan import Plan, Question
    from winsor.tuning.price import TuningComparison

app = new_app("Compute the missing one of epsilon, delta, noise, steps.")
app.info.cls = WithDefault
for command in (draw, mix, propose):
    app.command()(command)


@app.command()
def run(
    n: Annotated[float | None, typer.Option("--n", help="Records in the dataset.")] = None,
    batch_size: Annotated[float | None, typer.Option(help="Expected size of a batch.")] = None,
    steps: Steps = None,
    epochs: Epochs = None,
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
        str, typer.Option(help="gaussian; for modelmix see winsor plan mix --help.")
    ] = "gaussian",
    allow_large_delta: AllowLargeDelta = False,
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
    each record's contribution. With --sampling full, n and batch size are not needed. Other
    questions have subcommands: winsor plan draw compares the ways of drawing, winsor plan mix shows
    what mixing iterates buys, and winsor plan propose proposes a whole run from public rows.
    """
    from winsor.planning.plan import Question, solve

    if choice("mechanism", mechanism, ("gaussian", "modelmix")) == "modelmix":
        raise ConfigurationError(
            "mechanism must be gaussian in winsor plan run. Got 'modelmix' instead. Call winsor "
            "plan mix."
        )
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
    if json:
        extra = {} if tuning is None else {"tuning": tuning.to_json()}
        print_json({**answer.to_json(), **extra})
        return
    print_answer(*_of_run(answer), mark=answer.solved_for.replace("_", " "))
    if tuning is not None:
        print_answer(*_of_tuning(tuning))
    plugins.point_to_promises()


def _tuning(
    question: Question, trials: float | None, eta: float, score: float | None
) -> TuningComparison | None:
    """What tuning costs, if it was asked for."""
    if trials is None:
        for name, given in {"--score-noise-multiplier": score, "--tune-eta": eta or None}.items():
            if given is not None:
                raise ConfigurationError(f"{name} must be given with --tune. Got it alone instead.")
        return None
    from winsor.tuning.price import compare

    return compare(question, [trials], eta, score_noise_multiplier=score)


def _of_run(plan: Plan) -> list[Any]:
    numbers = {
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
    curve = [
        (f"{point['epoch']:.4g}", f"{point['steps']}", f"{point['epsilon']:.4g}")
        for point in plan.curve
    ]
    table = Rows(("epoch", "steps", "epsilon"), curve, "epsilon along the run")
    return [numbers, *[table] * bool(curve), *(f"Note: {note}" for note in plan.notes)]


def _of_tuning(tuning: TuningComparison) -> list[Any]:
    (option,) = tuning.options
    composed = option.composed_multiplier
    numbers = {
        "mean number of trials": f"{option.trials:g} (one time in a hundred above "
        f"{option.most_trials}, one in {1 / option.only_one:.0f} only one)",
        "settings that beat the winner": f"{option.rank:.0%} on average, if scores are right",
        "noise multiplier of a trial": f"{option.noise_multiplier:.6g} (untuned "
        f"{tuning.untuned:.6g})",
        "as if the rows were": f"{option.rows_left:.0f}",
        "epsilon of a trial alone": f"{option.trial_epsilon:.4g}",
        "noise if all were released": "none is enough" if composed is None else f"{composed:.6g}",
    }
    return ["tuning inside the same budget", numbers, tuning.advice]
