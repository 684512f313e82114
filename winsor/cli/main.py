"""The command line. Each command is loaded when it is called, and no other.

To add a command, write a function with typer annotations in the module where it belongs and add one
line to `COMMANDS`. Errors that winsor raises on purpose end in one line on stderr and exit code 2.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from winsor.contract import ConfigurationError, Neighbouring, WinsorError

if TYPE_CHECKING:
    from winsor.planning.plan import Plan

COMMANDS = {  # name: (where its function or typer app is, its line in `winsor --help`)
    "plan": (
        "winsor.cli.main:plan",
        "Compute the missing one of epsilon, delta, noise, steps, batch.",
    ),
    "audit": ("winsor.cli.audit:app", "Try to break every claim, certified or published."),
    "train": ("winsor.cli.train:train", "Train a private model from a TOML file; resumable."),
    "compare": ("winsor.cli.train:compare", "Train variants over seeds, with intervals."),
    "reproduce": (
        "winsor.cli.reproduce:reproduce",
        "Make a paper's table again: published and certified side by side.",
    ),
    "report": ("winsor.cli.report:report", "One HTML page about runs, and JSON beside it."),
    "tails": ("winsor.cli.tails:tails", "Fit the tail of a file of norms; thresholds."),
}

MECHANISMS = {"modelmix": "winsor.contrib.modelmix.planning:plan"}
"""`winsor plan --mechanism NAME`, where a mechanism has questions and options of its own."""

PLAN_FROM_DATA = "winsor.advise.public_rows:plan"
"""`winsor plan --data FILE` proposes a whole run from public rows."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``winsor`` and ``python -m winsor``."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    called = next((word for word in arguments if not word.startswith("-")), None)
    try:
        app = _app(called, _planner(arguments))
        result = app(arguments, prog_name="winsor", standalone_mode=False)
        code = result if isinstance(result, int) else 0
    except WinsorError as error:
        code = _complain(str(error))
    except typer.Abort:
        code = 1
    except Exception as error:
        # Usage errors; their class has moved between versions of typer.
        if not hasattr(error, "format_message"):
            raise
        code = _complain(error.format_message())
    sys.exit(code)


def _complain(message: str) -> int:
    print("winsor: error: " + " ".join(message.split()), file=sys.stderr)
    return 2


def _planner(arguments: Sequence[str]) -> str | None:
    """The planner that ``--data`` or ``--mechanism`` asks for; each has options of its own."""
    if _value(arguments, "--data") is not None:
        return PLAN_FROM_DATA
    return MECHANISMS.get(_value(arguments, "--mechanism") or "")


def _value(arguments: Sequence[str], option: str) -> str | None:
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    spaced = [value for word, value in pairs if word == option]
    joined = [word.partition("=")[2] for word in arguments if word.startswith(f"{option}=")]
    return next(iter([*spaced, *joined]), None)


def _app(called: str | None, planner: str | None = None) -> typer.Typer:
    """The application with the called command loaded, and the others as lines of help."""
    app = typer.Typer(
        help="Private learning with heavy tails: every printed epsilon is certified.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for name, (home, summary) in COMMANDS.items():
        if name != called:
            app.command(name, help=summary)(_not_loaded)
            continue
        target = _load(planner or home if name == "plan" else home)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name, help=summary)
        else:
            app.command(name)(target)
    return app


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
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Private learning with heavy tails: every printed epsilon is certified."""


# --------------------------------------------------------------------------------------------- plan


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
    json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Give all but one of epsilon, delta, noise multiplier, steps or epochs, batch size and n.

    The missing one is computed with the accountant that certifies the run, for a rule that clips
    each record's contribution. With --sampling full, n and batch size are not needed. With --data
    FILE of public rows a whole run is proposed instead: see winsor plan --data FILE --help.
    """
    from winsor.planning.plan import Question, solve

    if mechanism != "gaussian":
        names = ", ".join(["gaussian", *MECHANISMS])
        raise ConfigurationError(f"mechanism must be one of {names}. Got {mechanism!r} instead.")
    question = Question(
        n=_whole("n", n),
        batch_size=batch_size,
        steps=_whole("steps", steps),
        epochs=epochs,
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        delta=delta,
        relation=_relation(relation),
        sampling=sampling,
    )
    answer = solve(question, points)
    if json:
        import json as encoder

        print(encoder.dumps(answer.to_json()))
    else:
        _show_plan(answer)


def _whole(name: str, value: float | None) -> int | None:
    """Whole numbers may be written as 60000 or 6e4."""
    if value is None:
        return None
    if not value.is_integer():
        raise ConfigurationError(f"{name} must be a whole number. Got {value!r} instead.")
    return int(value)


def _relation(name: str) -> Neighbouring:
    try:
        return Neighbouring(name.replace("-", "_"))
    except ValueError:
        names = " or ".join(relation.value for relation in Neighbouring)
        raise ConfigurationError(f"relation must be {names}. Got {name!r} instead.") from None


def _show_plan(plan: Plan) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    summary = Table(box=None, show_header=False)
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
    for name, value in rows.items():
        computed = name.replace(" ", "_") == plan.solved_for
        summary.add_row(f"[bold]{name}[/]" if computed else name, value, "computed" * computed)
    console.print(summary)
    if plan.curve:
        curve = Table("epoch", "steps", "epsilon", title="epsilon along the run", box=None)
        for point in plan.curve:
            curve.add_row(f"{point['epoch']:.4g}", f"{point['steps']}", f"{point['epsilon']:.4g}")
        console.print(curve)
    for note in plan.notes:
        console.print(f"Note: {note}")
