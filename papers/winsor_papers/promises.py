"""`winsor promises`: what the theorems of the five papers promise, for a plan or for a tail.

The numbers of a run are those of `winsor plan`; with a file of gradient norms they are those of
`winsor tails`. The rates are orders with constant 1, each in its own paper's unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from winsor.app.commands.output import Json, print_json
from winsor.app.commands.tails import print_assumptions, print_line, print_warnings, read_norms
from winsor.core.checks import as_relation, written_whole
from winsor.core.contract import ConfigurationError
from winsor_papers.theory.what_is_promised import Circumstances
from winsor_papers.theory.what_is_promised import promises as rates

if TYPE_CHECKING:
    from rich.console import Console

    from winsor.planning.plan import Question
    from winsor_papers.theory.what_is_promised import Promise

HEADING = "what the theorems promise (orders with constant 1, each in its own unit)"


def promises(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Norms (.npy, .npz, .csv, .txt), as winsor tails."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Array of an .npz, column of a .csv.")] = None,
    n: Annotated[float | None, typer.Option("--n", help="Records in the dataset.")] = None,
    d: Annotated[float | None, typer.Option("--d", help="Parameters of the model.")] = None,
    batch_size: Annotated[float | None, typer.Option(help="Expected size of a batch.")] = None,
    steps: Annotated[float | None, typer.Option(help="Number of steps.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise deviation over the add/remove sensitivity.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Target epsilon; 3 with FILE unless given.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Target delta; 1/(10 n) with FILE unless given.")
    ] = None,
    relation: Annotated[
        str, typer.Option(help="add_or_remove_one or replace_one.")
    ] = "add_or_remove_one",
    sampling: Annotated[str, typer.Option(help="poisson, fixed or full.")] = "poisson",
    theta: Annotated[float | None, typer.Option(help="Sub-Weibull tail index. [0.5]")] = None,
    moments: Annotated[float | None, typer.Option(help="Moments of gradients. [2]")] = None,
    allow_large_delta: Annotated[
        bool, typer.Option("--allow-large-delta", help="Accept a delta of 1/n or more.")
    ] = False,
    json: Json = False,
) -> None:
    """Rates that the papers' theorems promise.

    Each rate is printed with its warnings, and at the end what every paper assumes.

    Without FILE, give --d and the numbers of winsor plan: one of them may be left out, and is
    computed. With FILE, a file of gradient norms, the tail is fitted as by winsor tails, and --n
    and --d are enough.
    """
    if file is None:
        if key is not None:
            raise ConfigurationError("--key must be given with FILE. Got it alone instead.")
        from winsor.planning.plan import Question

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
        found = rates(of_plan(question, d, 0.5 if theta is None else theta,
                              2.0 if moments is None else moments))  # fmt: skip
    else:
        _only_with_a_plan(
            epochs=epochs, noise_multiplier=noise_multiplier, theta=theta, moments=moments
        )
        found = rates(of_norms(file, key, n, d, 3.0 if epsilon is None else epsilon, delta, steps,
                               batch_size))  # fmt: skip
    if json:
        print_json({"rates": {promise.name: _plain(promise) for promise in found}})
        return
    from rich.console import Console

    print_promises(Console(), found)


def of_plan(question: Question, d: float | None, theta: float, moments: float) -> Circumstances:
    """Return the facts of a planned run; the accountant computes the number that is missing."""
    from winsor.planning.plan import solve

    plan = solve(question, 1)
    if plan.n is None:
        raise ConfigurationError("n must be given. Got none. Rates are rates in n.")
    return Circumstances(
        n=plan.n,
        d=_given("d", d),
        epsilon=plan.epsilon,
        delta=plan.delta,
        steps=plan.steps,
        batch_size=plan.n if plan.batch_size is None else plan.batch_size,
        theta=theta,
        p=moments,
    )


def of_norms(
    file: Path,
    key: str | None,
    n: float | None,
    d: float | None,
    epsilon: float,
    delta: float | None,
    steps: float | None,
    batch_size: float | None,
) -> Circumstances:
    """Return the facts of a run on gradients whose norms have the tail fitted to ``file``."""
    from winsor.tails.fitting import fit
    from winsor.tails.guide import Setting, sampling_noise_scale

    fitted = fit(read_norms(file, key))
    rows = _given("n", n)
    setting = Setting(
        n=written_whole("n", rows) or 0,
        d=written_whole("d", _given("d", d)) or 0,
        epsilon=epsilon,
        delta=1 / (10 * max(rows, 1)) if delta is None else delta,
        steps=written_whole("steps", steps),
        batch_size=written_whole("batch_size", batch_size),
    )
    return Circumstances(
        n=setting.n,
        d=setting.d,
        epsilon=setting.epsilon,
        delta=setting.delta,
        steps=setting.steps,
        batch_size=setting.batch_size,
        # A tail that may be sub-Gaussian counts as such: constants jump just above 1/2.
        theta=0.5 if fitted.theta.low <= 0.5 else fitted.theta.value,
        p=float(min(fitted.safe_moment, 8.0)),
        kappa=sampling_noise_scale(fitted),
        failure=setting.failure,
    )


def _given(name: str, value: float | None) -> float:
    if value is None:
        raise ConfigurationError(f"{name} must be given. Got none. Rates are rates in {name}.")
    return value


def _only_with_a_plan(**options: float | None) -> None:
    for name, value in options.items():
        if value is not None:
            option = "--" + name.replace("_", "-")
            raise ConfigurationError(f"{option} must be left out with FILE. Got {value} instead.")


def _plain(promise: Promise) -> dict[str, Any]:
    return promise.bound.to_json() if promise.bound else {"refused": promise.refusal}


def print_promises(console: Console, found: Sequence[Promise]) -> None:
    """Print one line per rate, its warnings under it, and the assumptions of each paper last."""
    print_line(console, f"\n{HEADING}", "bold")
    assumed: dict[str, dict[str, None]] = {}
    for promise in found:
        if promise.bound is None:
            text = f"  {promise.name}: does not apply. {promise.refusal}"
            print_line(console, text, "yellow")
            continue
        bound = promise.bound
        source = bound.source.split(", an order")[0]
        print_line(console, f"  {promise.name}: {bound.value:.4g}  ({source})")
        print_warnings(console, bound.warnings)
        assumed.setdefault(source.split(",")[0], {}).update(dict.fromkeys(bound.assumed))
    for paper, conditions in assumed.items():
        print_assumptions(console, conditions, f"{paper} ")
