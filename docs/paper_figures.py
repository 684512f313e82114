"""The figures of papers.md, as the papers show them, from the saved tables.

Each function takes the saved tables and gives a chart, or None where its table was not made. What
comes from a smoke run says so in its title. Figures of the papers' own numbers are dashed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

from heat_map import HeatMap

from winsor.charts import Chart, Series

Record = dict[str, Any]
Records = dict[tuple[str, str], Record]


def figures(records: Records) -> dict[str, Chart | HeatMap]:
    """By the name of their file, which begins with the paper."""
    found = {name: make(records) for name, make in MAKERS.items()}
    return {name: chart for name, chart in found.items() if chart is not None}


def _value(line: Record, column: str) -> float:
    return math.nan if line[column] is None else float(line[column]["mean"])


def _points(pairs: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    return tuple(sorted(pair for pair in pairs if all(map(math.isfinite, pair))))


def _number(text: str | None) -> float:
    try:
        return float((text or "nan").replace("±", " ").split()[0])
    except ValueError:
        return math.nan


def _titled(record: Record, text: str) -> str:
    return f"{text} (smoke run)" if record["quick"] else text


def _full(records: Records, *names: tuple[str, str]) -> Record | None:
    """The first of these tables that has a full run."""
    found = (records.get(name) for name in names)
    return next((one for one in found if one is not None and not one["quick"]), None)


def _by(lines: Iterable[Record], name: str) -> dict[str, list[Record]]:
    """Lines by a column of their label, in their order."""
    groups: dict[str, list[Record]] = {}
    for line in lines:
        groups.setdefault(line["label"][name], []).append(line)
    return groups


def ratio_against_rate(records: Records) -> HeatMap | None:
    """Paper 1, figure 4: accuracy by ratio c1/c2 and rate."""
    record = records.get(("dc-dpsgd", "figure-4"))
    if record is None:
        return None
    by_ratio = _by(record["lines"], "c1/c2")
    rates = tuple(_by(record["lines"], "rate"))
    panels = {
        title: tuple(tuple(_value(line, column) for line in lines) for lines in by_ratio.values())
        for column, title in (("published", "with the published noise"), ("certified", "certified"))
    }
    return HeatMap(
        _titled(record, "Paper 1, figure 4: accuracy by ratio of bounds and rate"),
        "c1/c2", "rate", tuple(by_ratio), rates, panels,
        note="CIFAR-10, epsilon 8. The paper: best near c1 = 10 c2. It prints no numbers.",
    )  # fmt: skip


def training_curves(records: Records) -> Chart | None:
    """Paper 1, figure 3: training accuracy along the way."""
    record = _full(records, ("dc-dpsgd", "figure-3"))
    if record is None:
        return None
    series = []
    for colour, line in enumerate(record["lines"]):
        looks = ((at.split()[1], text) for at, text in line["extra"].items() if at[:3] == "at ")
        points = _points((float(part), _number(text)) for part, text in looks)
        private = line["certified"] is not None
        series.append(Series(line["label"]["method"], points, colour=colour, dashed=not private,
                             markers=private))  # fmt: skip
    return Chart(
        "training", "Paper 1, figure 3: CIFAR-10, training accuracy at epsilon 8",
        "per cent of the run", "training accuracy in per cent", tuple(series),
        note="Dashed: not certified at this epsilon. The paper prints no numbers.",
    )  # fmt: skip


def risk_over_n(records: Records) -> Chart | None:
    """Paper 2: excess risk over n at the largest dimension that was run, p = 2."""
    record = _full(records, ("sco", "rates-1000"), ("sco", "rates-100"), ("sco", "rates-10"))
    if record is None:
        return None
    sizes = record["settings"]["sizes"]
    series = []
    for line in record["lines"]:
        label = line["label"]
        if label["p"] == "2" and label["a record is"] == "added":
            risks = map(float, line["extra"]["risk by n"].split())
            points = _points(zip(map(float, sizes), risks, strict=True))
            series.append(Series(label["method"], points, colour=len(series), markers=True))
    if series and series[0].points:
        (x, y), last = series[0].points[0], series[0].points[-1][0]
        theory = ((x, y), (last, y * (last / x) ** -0.5))
        series.append(Series("slope -1/2 (theory)", theory, colour=len(series), dashed=True))
    return Chart(
        "rates", f"Paper 2: worst-case excess risk, d = {record['settings']['d']}, p = 2", "n",
        "excess risk", tuple(series), log_x=True, log_y=True,
    )  # fmt: skip


def clipping_frequency(records: Records) -> Chart | None:
    """Paper 3, figure 1: per cent of clipped gradients by epoch on MNIST, its own data set here."""
    record = _full(records, ("value", "figure-1"))
    if record is None:
        return None
    series = []
    lines = [line for line in record["lines"] if line["label"]["data"] == "MNIST"]
    for colour, (clip, mine) in enumerate(_by(lines, "C").items()):
        for line in mine:
            points, model = _by_epoch(line["extra"]["clipped by epoch"]), line["label"]["model"]
            dashed = model == "linear"
            series.append(Series(f"C = {clip}, {model}", points, colour=colour, dashed=dashed,
                                 markers=not dashed))  # fmt: skip
    return Chart(
        "clipped", "Paper 3, figure 1: clipping frequency on MNIST", "epoch",
        "per cent of gradients clipped", tuple(series), from_zero=True,
        note="Exact functions of public training rows, never released from private ones.",
    )  # fmt: skip


def _by_epoch(text: str) -> tuple[tuple[float, float], ...]:
    return _points((float(epoch), float(part)) for epoch, part in enumerate(text.split(), 1))


def accuracy_by_epoch(records: Records) -> Chart | None:
    """Paper 3, figure 3: test accuracy of the two-layer network on MNIST at C = 20."""
    record = _full(records, ("value", "figures-2-3"))
    if record is None:
        return None
    series = []
    for line in record["lines"]:
        label = line["label"]
        if (label["data"], label["model"]) == ("MNIST", "2-layer NN") and label["C"] in ("", "20"):
            colour, extra = len(series), line["extra"]
            points = _by_epoch(extra["test by epoch"])
            series.append(Series(label["method"], points, colour=colour, markers=True))
            if "published, test by epoch" in extra:
                points = _by_epoch(extra["published, test by epoch"])
                series.append(Series("VC as printed", points, colour=colour, dashed=True))
    return Chart(
        "value", "Paper 3, figure 3: MNIST, two layers, C = 20", "epoch",
        "test accuracy in per cent", tuple(series),
        note="Dashed: Algorithm 3 as printed, which certifies nothing.",
    )  # fmt: skip


def accuracy_over_epsilon(records: Records) -> Chart | None:
    """Paper 3, figure 5: test accuracy over the certified epsilon at delta 1e-5."""
    record = _full(records, ("value", "figure-5"))
    if record is None:
        return None
    series = []
    lines = [line for line in record["lines"] if float(line["label"]["delta"]) == 1e-5]
    for model, mine in _by(lines, "model").items():
        for method, same in _by(mine, "method").items():
            for column, dashed in (("certified", False), ("published", True)):
                points = _points((x["certified_epsilon"], _value(x, column)) for x in same)
                label = f"{model}, {method}" + (" as printed" if dashed else "")
                if points:
                    series.append(Series(label, points, colour=len(series), dashed=dashed,
                                         markers=not dashed))  # fmt: skip
    return Chart(
        "sweep", "Paper 3, figure 5: MNIST, accuracy over epsilon at delta 1e-5", "epsilon",
        "test accuracy in per cent", tuple(series), log_x=True,
        note="Dashed: Algorithm 3 as printed, at the epsilon that its noise is said to give.",
    )  # fmt: skip


def error_over_epsilon(records: Records) -> Chart | None:
    """Paper 4, Table 2: relative loss over epsilon on Adult, printed and ours."""
    return _error_over_epsilon(records.get(("aclip", "table-2")), "adult", "Table 2: Adult")


def synthetic_error(records: Records) -> Chart | None:
    """Paper 4, Table 2 on the rows with the heaviest tails."""
    record = _full(records, ("aclip", "table-2-synthetic"))
    return _error_over_epsilon(record, "student_t", "Table 2: Student's t")


def synthetic_ridge_error(records: Records) -> Chart | None:
    """Paper 4, Table B1 on the same rows."""
    record = _full(records, ("aclip", "table-b1-synthetic"))
    return _error_over_epsilon(record, "student_t", "Table B1: Student's t", "ridge")


def _error_over_epsilon(
    record: Record | None, data: str, title: str, task: str = "logistic"
) -> Chart | None:
    if record is None:
        return None
    series = []
    lines = [line for line in record["lines"] if line["label"]["data"] == data]
    for colour, (method, mine) in enumerate(_by(lines, "method").items()):
        ours = _points((float(x["label"]["nominal"]), _value(x, "certified")) for x in mine)
        theirs = _points((float(x["label"]["nominal"]), _number(x["printed"])) for x in mine)
        series.append(Series(f"{method}, certified", ours, colour=colour, markers=True))
        if theirs:
            series.append(Series(f"{method}, paper", theirs, colour=colour, dashed=True))
    return Chart(
        data, _titled(record, f"Paper 4, {title}, {task}"), "epsilon",
        "test loss over that of the start", tuple(series), log_x=True,
    )  # fmt: skip


def loss_over_epochs(records: Records) -> Chart | None:
    """Paper 4, figure 1: test loss along the run on Adult at the largest epsilon."""
    return _trajectories(records.get(("aclip", "figure-1")), "adult", "figure 1: Adult, logistic")


def synthetic_loss(records: Records) -> Chart | None:
    """Paper 4, figure 3, on the rows with the heaviest tails."""
    record = _full(records, ("aclip", "figure-3"))
    return _trajectories(record, "student_t", "figure 3: Student's t, logistic")


def synthetic_ridge_loss(records: Records) -> Chart | None:
    """Paper 4, figure B2, on the same rows."""
    record = _full(records, ("aclip", "figure-b2"))
    return _trajectories(record, "student_t", "figure B2: Student's t, ridge")


def deviating_loss(records: Records) -> Chart | None:
    """Paper 4, figure B3: deviations over the seeds, largest at the smallest epsilon."""
    record = _full(records, ("aclip", "figure-b3"))
    return _trajectories(record, "laplace", "figure B3: Laplace, logistic", min)


def deviating_ridge_loss(records: Records) -> Chart | None:
    """Paper 4, figure B4, on the same rows."""
    record = _full(records, ("aclip", "figure-b4"))
    return _trajectories(record, "laplace", "figure B4: Laplace, ridge", min)


def accuracy_on_features(records: Records) -> Chart | None:
    """Paper 4, figure 2 on public features: test accuracy along the run at the largest epsilon."""
    record = _full(records, ("aclip", "figure-2-features"))
    title, quantity = "figure 2 on public features: CIFAR-10", "test accuracy in per cent"
    return _trajectories(record, None, title, quantity=quantity)


def _trajectories(
    record: Record | None,
    data: str | None,
    title: str,
    which: Callable[..., str] = max,
    quantity: str = "test loss over that of the start",
) -> Chart | None:
    """What is measured along the run at the largest epsilon, or at the one that ``which`` picks;
    with a band of a deviation to each side where the table has deviations."""
    if record is None:
        return None
    lines = [line for line in record["lines"] if line["label"].get("data") == data]
    nominal = {line["label"]["nominal"] for line in lines} - {""}
    epsilon = which(nominal, key=float)
    series: list[Series] = []
    for line in lines:
        if line["label"]["nominal"] not in ("", epsilon):
            continue
        epochs = [float(epoch) for epoch in line["extra"]["epochs"].split()]
        colour, method = len({name.label.split(",")[0] for name in series}), line["label"]["method"]
        for kind in ("certified", "published", "not private"):
            text = line["extra"].get(f"{kind} by epoch")
            if text:
                means = [float(mean) for mean in text.split()]
                spread = line["extra"].get(f"{kind}, deviation by epoch", "")
                band = tuple(
                    (epoch, mean - float(off), mean + float(off))
                    for epoch, mean, off in zip(epochs, means, spread.split(), strict=False)
                )
                dashed = kind == "published"
                points = _points(zip(epochs, means, strict=True))
                series.append(Series(f"{method}, {kind}", points, () if dashed else band,
                                     colour=colour, dashed=dashed, markers=not dashed))  # fmt: skip
    shaded = any(one.band for one in series)
    return Chart(
        "trajectories", _titled(record, f"Paper 4, {title}, epsilon {epsilon}"),
        "epoch", quantity, tuple(series),
        note="Dashed: with the published noise, which certifies a larger epsilon."
        + (" Shaded: one deviation." if shaded else ""),
    )  # fmt: skip


def regression_frequency(records: Records) -> Chart | None:
    """Paper 3, figure 4: per cent of clipped gradients by epoch on synthetic rows."""
    record = records.get(("value", "figure-4"))
    if record is None:
        return None
    series = []
    for colour, (clip, lines) in enumerate(_by(record["lines"], "C").items()):
        for line in lines:
            kind, method = line["label"]["gradients"], line["label"]["method"]
            if method == "GC":
                values = map(float, line["extra"]["clipped by epoch"].split())
                points = _points((float(epoch), value) for epoch, value in enumerate(values, 1))
                label, dashed = f"C = {clip}, gradients {kind}", kind == "simulated"
                series.append(Series(label, points, colour=colour, dashed=dashed,
                                     markers=not dashed))  # fmt: skip
    return Chart(
        "regression", _titled(record, "Paper 3, figure 4: clipping frequency on synthetic rows"),
        "epoch", "per cent of gradients clipped", tuple(series), from_zero=True,
        note="Dashed: simulated gradients, as the appendix describes them. The paper prints no "
        "numbers.",
    )  # fmt: skip


def mixing_on_features(records: Records) -> Chart | None:
    """Paper 5, Table 2 on public features."""
    return _mixing_over_epsilon(
        _full(records, ("modelmix", "table-2-features")),
        "Table 2 on public features: CIFAR-10",
        "Dashed: the paper's own figures, of ResNet-20 without public features.",
    )


def mixing_on_scattering(records: Records) -> Chart | None:
    """Paper 5, Table 1: the paper's network on scattering coefficients."""
    return _mixing_over_epsilon(
        _full(records, ("modelmix", "table-1")),
        "Table 1: Fashion-MNIST, steps tuned",
        "Dashed: the paper's own figures, at its printed constants.",
    )


def mixing_as_printed(records: Records) -> Chart | None:
    """The same at the printed constants, on features that are standardised as the paper does."""
    return _mixing_over_epsilon(
        _full(records, ("modelmix", "table-1-statistics")),
        "Table 1: Fashion-MNIST, the printed constants",
        "Dashed: the paper's own figures.",
        ("as printed", "with momentum"),
    )


def _mixing_over_epsilon(
    record: Record | None, title: str, note: str, constants: tuple[str, ...] = ("tuned",)
) -> Chart | None:
    """Certified accuracy over epsilon, with steps tuned or as printed, and the paper's figures."""
    if record is None:
        return None
    series: list[Series] = []
    colours = itertools.count()
    for which in constants:
        lines = [line for line in record["lines"] if line["label"]["constants"] == which]
        kind = "certified" if len(constants) == 1 else which
        for method, mine in _by(lines, "method").items():
            at, colour = [float(line["label"]["nominal"]) for line in mine], next(colours)
            ours = _points(zip(at, (_value(line, "certified") for line in mine), strict=True))
            theirs = _points(zip(at, (_number(line["printed"]) for line in mine), strict=True))
            series.append(Series(f"{method}, {kind}", ours, colour=colour, markers=True))
            if which == constants[-1]:  # printed figures stand beside the last of ours
                series.append(Series(f"{method}, paper", theirs, colour=colour, dashed=True))
    return Chart(
        "mixing", f"Paper 5, {title}", "epsilon", "test accuracy in per cent", tuple(series),
        note=note,
    )  # fmt: skip


def epsilon_over_steps(records: Records) -> Chart | None:
    """Paper 5, figure 3: epsilon over the run at q = 0.02, p = 25 and without mixing."""
    record = records.get(("modelmix", "figure-3"))
    if record is None:
        return None
    lines = [
        line for line in record["lines"]
        if line["label"]["q"] == "0.02" and line["label"]["p"] in ("", "25")
    ]  # fmt: skip
    series = []
    for colour, (width, mine) in enumerate(_by(lines, "tau/eta").items()):
        for column, dashed in (("certified", False), ("published", True)):
            points = _points((float(x["label"]["steps"]), _value(x, column)) for x in mine)
            label = width if width == "no mixing" else f"tau/eta = {width}"
            series.append(Series(f"{label}, {column}", points, colour=colour, dashed=dashed))
    return Chart(
        "amplified", _titled(record, "Paper 5, figure 3: epsilon over the run, q = 0.02, p = 25"),
        "steps", "epsilon", tuple(series), log_y=True,
    )  # fmt: skip


def epsilon_by_width(records: Records) -> Chart | None:
    """Paper 5, section 4.3: printed and certified epsilon over the width of mixing."""
    record = records.get(("modelmix", "section-4.3"))
    if record is None:
        return None
    series = []
    for colour, (p, mine) in enumerate(_by(record["lines"], "p").items()):
        ours = _points((float(x["label"]["tau/eta"]), _value(x, "certified")) for x in mine)
        theirs = _points((float(x["label"]["tau/eta"]), _number(x["printed"])) for x in mine)
        series.append(Series(f"p = {p}, certified", ours, colour=colour, markers=True))
        series.append(Series(f"p = {p}, paper", theirs, colour=colour, dashed=True))
    return Chart(
        "widths", "Paper 5, section 4.3: epsilon over the width of mixing", "tau/eta", "epsilon",
        tuple(series), log_x=True, log_y=True,
    )  # fmt: skip


MAKERS: dict[str, Callable[[Records], Chart | HeatMap | None]] = {
    "dc-dpsgd-figure-3": training_curves,
    "dc-dpsgd-figure-4": ratio_against_rate,
    "sco-rates": risk_over_n,
    "value-figure-1": clipping_frequency,
    "value-figure-3": accuracy_by_epoch,
    "value-figure-4": regression_frequency,
    "value-figure-5": accuracy_over_epsilon,
    "aclip-table-2": error_over_epsilon,
    "aclip-figure-1": loss_over_epochs,
    "aclip-figure-2-features": accuracy_on_features,
    "aclip-table-2-synthetic": synthetic_error,
    "aclip-table-b1-synthetic": synthetic_ridge_error,
    "aclip-figure-3": synthetic_loss,
    "aclip-figure-b2": synthetic_ridge_loss,
    "aclip-figure-b3": deviating_loss,
    "aclip-figure-b4": deviating_ridge_loss,
    "modelmix-figure-3": epsilon_over_steps,
    "modelmix-section-4.3": epsilon_by_width,
    "modelmix-table-1-statistics": mixing_as_printed,
    "modelmix-table-1": mixing_on_scattering,
    "modelmix-table-2-features": mixing_on_features,
}
