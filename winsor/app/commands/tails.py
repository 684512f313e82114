"""`winsor tails FILE|RUN`: the fit, the advice and the plots of a file of norms; or of a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from winsor.app.commands import plugins
from winsor.app.commands.output import Json, print_json, print_pairs
from winsor.core.checks import choice
from winsor.core.contract import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

    from winsor.tails.fitting import TailFit
    from winsor.tails.guide import Advice
    from winsor.tails.points import Floats


def tails(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE|RUN", help="Norms (.npy, .npz, .csv, .txt), or a run."),
    ],
    key: Annotated[str | None, typer.Option(help="Array of an .npz, column of a .csv.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Rows of the private dataset.")] = None,
    d: Annotated[int | None, typer.Option("--d", help="Parameters of the model.")] = None,
    epsilon: Annotated[float, typer.Option(help="Target epsilon, for the advice.")] = 3.0,
    delta: Annotated[float | None, typer.Option(help="Default: 1/(10 n).")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps, if they are fixed.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Expected batch size.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for the plots (html and svg).")] = None,
    json: Json = False,
) -> None:
    """Fit the tail of a file of gradient norms and say what the theorems advise.

    Exact norms of private rows are private: use public or synthetic rows. With --n and --d the
    thresholds of the papers are computed for that dataset and model. For the folder of a run, what
    its monitor saw is shown instead.
    """
    if (file / "config.json").is_file():
        from winsor.app.commands.tails_run import show_run

        show_run(file, plots, json)
        return
    from winsor.tails.fitting import fit
    from winsor.tails.guide import Setting, advise

    norms = read_norms(file, key)
    fitted = fit(norms)
    advice = []
    if n is not None and d is not None:
        setting = Setting(
            n=n,
            d=d,
            epsilon=epsilon,
            delta=1 / (10 * max(n, 1)) if delta is None else delta,
            steps=steps,
            batch_size=batch_size,
        )
        advice = advise(fitted, setting)
    if plots is not None:
        _save_plots(plots, norms, fitted, advice, d)
    if json:
        print_json(to_json(fitted, advice))
    else:
        _show(file, fitted, advice, plots)


# -------------------------------------------------------------------------------------- reading


def read_norms(path: Path, key: str | None = None) -> Floats:
    """Read norms from .npy, .npz, .csv (one column, by name or the only one) or a line each."""
    return read_numbers(path, key).ravel()


def read_numbers(path: Path, key: str | None = None) -> Floats:
    """Read an array from a file of any of these forms."""
    import numpy as np

    if not path.exists():
        raise ConfigurationError(f"FILE must exist. Got {str(path)!r} instead.")
    if path.is_dir():
        raise ConfigurationError(
            f"FILE must be a file of norms, or the folder of a run. Got {str(path)!r} instead."
        )
    try:
        return np.asarray(_load(path, key), dtype=np.float64)
    except ConfigurationError:
        raise
    except Exception as error:  # readers of other people's files raise whatever they like
        # NumPy's own words about .npy files recommend loading pickles
        detail = "" if path.suffix in (".npy", ".npz") else f" {error}."
        raise ConfigurationError(
            f"{path.name} must be a readable file of plain numbers. Got something else.{detail}"
        ) from error


def _load(path: Path, key: str | None) -> Any:
    import numpy as np

    from winsor.app.runs.files import check_array, check_arrays

    match path.suffix:
        case ".npy":
            check_array(path)
            return np.load(path, allow_pickle=False)
        case ".npz":
            with np.load(path, allow_pickle=False) as archive:
                name = _choose(key, list(archive.files), "arrays")
                check_arrays(path, [name])
                return archive[name]
        case ".csv":
            return _column(path, key)
        case ".txt" | ".dat":
            return np.loadtxt(path)
    raise ConfigurationError(
        f"FILE must end in .npy, .npz, .csv or .txt. Got {path.name!r} instead."
    )


def _column(path: Path, key: str | None) -> Any:
    import numpy as np

    with path.open() as file:
        header = [cell.strip().strip('"') for cell in file.readline().split(",")]
    try:
        [float(cell) for cell in header]
        named = False
    except ValueError:
        named = True
    if not named:
        if len(header) > 1:
            raise ConfigurationError(
                f"a .csv with several columns must name them in its first line. Got {len(header)} "
                "unnamed columns instead."
            )
        return np.loadtxt(path, delimiter=",")
    index = header.index(_choose(key, header, "columns"))
    return np.loadtxt(path, delimiter=",", skiprows=1, usecols=index)


def _choose(key: str | None, names: list[str], kind: str) -> str:
    if key is None:
        for wanted in ("norms", "norm"):
            if wanted in names:
                return wanted
        if len(names) == 1:
            return names[0]
        raise ConfigurationError(
            f"--key must choose one of several {kind}: {', '.join(names)}. Got none."
        )
    return choice("--key", key, names)


# -------------------------------------------------------------------------------------- showing


def to_json(fitted: TailFit, advice: list[Advice]) -> dict[str, Any]:
    """Return the fit and the advice as plain values."""
    from dataclasses import asdict

    indices = {
        index.name: {"gamma": index.gamma, "interval": list(index.interval), "k": index.k}
        for index in (fitted.hill, fitted.moments, fitted.pickands)
    }
    return {
        "n": fitted.n,
        "theta": asdict(fitted.theta),
        "K": asdict(fitted.K),
        "K_bound": fitted.K_bound,
        "theta_regression": asdict(fitted.theta_regression),
        "bend": fitted.bend,
        "bend_statistic": fitted.bend_statistic,
        "fraction": fitted.fraction,
        "describes": fitted.describes,
        "verdict": fitted.verdict.tail.value,
        "probabilities": {k.value: v for k, v in fitted.verdict.probabilities.items()},
        "indices": indices,
        "safe_moment": fitted.safe_moment,
        "confidence": fitted.confidence,
        "advice": [asdict(entry) for entry in advice],
    }


def _show(file: Path, fitted: TailFit, advice: list[Advice], plots: Path | None) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    console.print(
        f"[bold]{escape(file.name)}[/bold]: {fitted.n:,} norms, tail [bold]{fitted.verdict}"
    )
    print_pairs(console, _rows(fitted))
    if not fitted.describes:
        console.print("No curve describes this tail well: trust the plots more than the numbers.")
    if not advice:
        console.print("Give --n and --d for the thresholds that the theorems advise.")
    for entry in advice:
        flag = "" if entry.holds else "  [yellow](the fit contradicts an assumption)[/yellow]"
        values = ", ".join(f"{name} = {value:.4g}" for name, value in entry.values.items())
        console.print(f"\n[bold]{entry.title}[/bold]{flag}\n  {values}\n  [dim]{entry.source}")
        # The guide stores a warning about these very numbers among the assumptions.
        doubts = [text for text in entry.assumptions if " here: " in text]
        print_warnings(console, doubts)
        print_assumptions(console, [text for text in entry.assumptions if text not in doubts])
    plugins.point_to_promises()
    if plots is not None:
        console.print(f"\nplots in {plots}")


def print_assumptions(console: Console, assumed: Iterable[str], who: str = "") -> None:
    """Print on one line what must hold and was not checked."""
    text = "; ".join(assumed)
    if text:
        print_line(console, f"  {who}assumes: {text}", "dim")


def print_warnings(console: Console, warnings: Iterable[str]) -> None:
    """Print one line per warning."""
    for warning in warnings:
        print_line(console, f"    warning: {warning}", "yellow")


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print a long line as one line, so that it can be searched and copied."""
    from rich.text import Text

    console.print(Text(text, style), soft_wrap=True)


def _rows(fitted: TailFit) -> dict[str, str]:
    shares = ", ".join(f"{k.value} {v:.0%}" for k, v in fitted.verdict.probabilities.items())
    bend = "straight" if not fitted.is_bent else f"bends towards a power law (xi {fitted.bend:.3g})"
    hill = fitted.hill
    return {
        "theta at the edge": str(fitted.theta),
        "K": str(fitted.K),
        "theta by regression": str(fitted.theta_regression),
        "upper part fitted": f"{fitted.fraction:.3g}, {bend}",
        "probabilities": shares,
        "Hill": f"gamma {hill.gamma:.3g} [{hill.interval[0]:.3g}, {hill.interval[1]:.3g}]",
        "moments, Pickands": f"{fitted.moments.gamma:.3g}, {fitted.pickands.gamma:.3g}",
        "safe moment": f"p = {fitted.safe_moment:g}",
    }


def _save_plots(
    folder: Path, norms: Floats, fitted: TailFit, advice: list[Advice], d: int | None
) -> None:
    from winsor.charts import save_all
    from winsor.tails import charts

    marks = {}
    for entry in advice:
        for name in ("max_grad_norm", "R", "lambda"):
            if name in entry.values and entry.values[name] <= 3 * fitted.quantile_values[-1]:
                marks[entry.title.split(" (")[0]] = entry.values[name]
    drawn = {
        "norms": charts.norm_histogram(norms, marks),
        "tail": charts.tail_chart(fitted, marks),
        "stability": charts.stability_chart(fitted),
    }
    if advice and d is not None:
        run = advice[0].values
        trade = charts.bias_noise_trade(
            norms, d=d, noise_multiplier=run["noise_multiplier"], batch_size=run["batch_size"]
        )
        drawn["trade"] = charts.trade_chart(trade, marks)
    save_all(drawn, folder)
