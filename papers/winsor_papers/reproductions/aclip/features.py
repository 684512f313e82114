"""Table 3 and figure 2 of paper 4 on public features: a linear layer in place of ResNet-18.

Batches of 500, 150 epochs, epsilons, delta and statistic (the mean over the last five epochs) are
the paper's; the model is not, so that nothing here can contradict it. Nor are the constants: rows
have length 1 and no gradient is longer than 2, so that the printed lambda = 30 would clip nothing
and its noise have a deviation of 30 or 60 times s on every coordinate. Here every method has the
bound 0.1 and a step of its own: four are tried at epsilon 4, four times as long each, with a seed
that is not reported.

Published and certified noise have steps of their own; runs with the former are made for CC, the
paper's best. It gives no radius for the ball of CC. Ours is about as far as UC goes at its best
step: a much smaller one keeps the noise and loses what was learnt, a larger one changes nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from winsor.rules.averaged import Averaged
from winsor.rules.flat import Flat
from winsor.rules.rule import Rule
from winsor_papers.reproductions.aclip.figure2 import PRINTED_BASELINE, curve_verdict
from winsor_papers.reproductions.aclip.table3 import LAST, METHODS, PRINTED, Trained
from winsor_papers.reproductions.dc_dpsgd import tasks as dc_tasks
from winsor_papers.reproductions.dc_dpsgd.descent import DescentTask
from winsor_papers.reproductions.head_runs import (
    HeadOutcomes,
    HeadRecipe,
    Looks,
    Step,
    best_step,
    edge_note,
    head_runs,
    head_task,
    plain_curves,
)
from winsor_papers.reproductions.reproduction import Line, Reproduced, Request
from winsor_papers.reproductions.verdicts import Comparison, sentence
from winsor_papers.sampled import sampled_noise


@dataclass(frozen=True)
class OnFeatures:
    """The paper's length, and constants that suit a linear layer."""

    epsilons: tuple[float, ...] = (2.0, 4.0, 6.0)
    batch_size: int = 500
    epochs: int = 150
    bound: float = 0.1
    averaged_rates: tuple[float, ...] = (0.001, 0.004, 0.016, 0.064)
    plain_rates: tuple[float, ...] = (16.0, 64.0, 256.0, 1024.0)
    tuned_at: float = 4.0
    """The epsilon at which every method's step is tuned."""
    radius: float = 30.0
    points: int = 30
    """Of a curve in figure 2."""

    @property
    def looks(self) -> Looks:
        return Looks(self.epochs, LAST)

    def rates(self, method: str) -> tuple[float, ...]:
        return self.plain_rates if method == "DP-SGD" else self.averaged_rates

    def recipe(self, method: str, noise: float) -> HeadRecipe:
        rule: Rule = Flat(self.bound) if method == "DP-SGD" else Averaged(self.bound)
        return HeadRecipe(rule, noise, radius=self.radius if method == "CC" else None)


QUICK = OnFeatures(
    epsilons=(2.0, 6.0), epochs=2, points=2, tuned_at=6.0,
    averaged_rates=(0.004, 0.064), plain_rates=(16.0, 64.0),
)  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """One method with one noise, over seeds, and the step that it took."""

    runs: HeadOutcomes
    step: Step


@dataclass(frozen=True)
class Row:
    """One line before it is written; only CC has both readings."""

    epsilon: float
    method: str
    certified: Reading
    published: Reading | None


def table_3_features(request: Request) -> Reproduced:
    """The table."""
    setting = QUICK if request.quick else OnFeatures()
    task = head_task(request, setting.batch_size, setting.epochs)
    return table_3_features_of(task, setting, request)


def figure_2_features(request: Request) -> Reproduced:
    """The curves, from the same runs."""
    setting = QUICK if request.quick else OnFeatures()
    task = head_task(request, setting.batch_size, setting.epochs)
    return figure_2_features_of(task, setting, request)


def rows_of(task: DescentTask, setting: OnFeatures, seeds: Sequence[int]) -> list[Row]:
    """Every method at every epsilon."""
    found = []
    for epsilon in setting.epsilons:
        for method in METHODS:
            certified = _reading(task, setting, (method, epsilon, 1.0), seeds)
            published = None
            if method == "CC":  # noise for lambda, but two clipped means can be 2 lambda apart
                published = _reading(task, setting, (method, epsilon, 0.5), seeds)
            found.append(Row(epsilon, method, certified, published))
    return found


def _reading(
    task: DescentTask,
    setting: OnFeatures,
    which: tuple[str, float, float],
    seeds: Sequence[int],
) -> Reading:
    """``which`` is the method, its epsilon and the part of the certified noise."""
    method, epsilon, part = which
    rate = task.batch_size / len(task.train[1])

    def recipe(at: float) -> HeadRecipe:
        noise = part * sampled_noise(rate, task.steps, at, task.delta)
        return setting.recipe(method, noise)

    trial = recipe(setting.tuned_at)
    step = best_step(task, trial, setting.rates(method), setting.looks)
    return Reading(head_runs(step.task, recipe(epsilon), seeds, setting.looks), step)


# ----------------------------------------------------------------------------------------- table 3


def table_3_features_of(task: DescentTask, setting: OnFeatures, request: Request) -> Reproduced:
    rows = rows_of(task, setting, request.seeds_or(2, 5))
    lines = tuple(_table_line(row) for row in rows)
    return Reproduced(
        "Table 3 of paper 4 on public features (CIFAR-10)",
        "test accuracy in per cent (chance: 10)",
        lines,
        table_3_features_verdict(lines),
        asdict(setting),
        (
            _about(task, setting),
            dc_tasks.cifar_note(request),
            f"Steps: every method tried as many at epsilon {setting.tuned_at:g}, each once "
            "with a seed that is not reported, judged by test accuracy, outside epsilon; "
            '"steps tried" is its tuning curve.',
            "Published noise is for sensitivity lambda; two clipped means can be 2 lambda apart.",
            'Accuracies are means over the last five epochs of every run; the column "last epochs" '
            "has their deviation over epochs and runs, the paper's ±.",
            "Only the direction is judged: the printed margins are those of a network without "
            "public features.",
            edge_note(_at_the_edge(rows)),
        ),
    )


def _table_line(row: Row) -> Line:
    certified, published = row.certified, row.published
    extra = {
        "last epochs": _trained(certified.runs).deviation,
        "step": f"{certified.step.rate:g}",
        "steps tried": certified.step.tried,
    }
    if published is not None:
        extra["step, published"] = f"{published.step.rate:g}"
        extra["steps tried, published"] = published.step.tried
    return Line(
        {"nominal": f"{row.epsilon:g}", "method": row.method},
        _printed(row.epsilon, row.method),
        None if published is None else published.runs.measured,
        certified.runs.measured,
        certified.runs.epsilon,
        None if published is None else published.runs.epsilon,
        {name: text for name, text in extra.items() if text},
    )


def _printed(epsilon: float, method: str) -> str:
    return dict(zip(METHODS, PRINTED[epsilon][0], strict=True))[method]


def _trained(runs: HeadOutcomes) -> Trained:
    return Trained(runs.measured, runs.epsilon, 0.0, runs.curves)


def _about(task: DescentTask, setting: OnFeatures) -> str:
    return (
        f"{len(task.train[1]):,} rows, {task.steps:,} steps of {task.batch_size}, a linear layer "
        f"on features; the paper: ResNet-18 on 50,000 images, 15,000 steps of 500. Every method "
        f"has the bound {setting.bound:g}, the paper 30, which would clip nothing here. The ball "
        f"of CC has the radius {setting.radius:g}."
    )


def _at_the_edge(rows: Sequence[Row]) -> list[str]:
    """Readings whose best step is the first or the last of those tried."""
    found = [
        f"{row.method} ({kind})"
        for row in rows
        for kind, reading in (("certified", row.certified), ("published", row.published))
        if reading is not None and not reading.step.inside
    ]
    return list(dict.fromkeys(found))


def table_3_features_verdict(lines: Sequence[Line]) -> str:
    """CC against DP-SGD with both kinds of noise, and against UC: which is ahead, for the printed
    margins are those of a network."""
    table: dict[str, dict[str, Line]] = {}
    for line in lines:
        table.setdefault(line.label["nominal"], {})[line.label["method"]] = line
    leak = max(
        line.published_certifies / float(line.label["nominal"])
        for line in lines
        if line.published_certifies is not None
    )

    def told(rival: str, kind: str) -> str:
        found = []
        for nominal, row in table.items():
            ours, theirs = getattr(row["CC"], kind), row[rival].certified
            assert ours is not None and theirs is not None
            found.append(Comparison(nominal, ours, theirs))
        return sentence(found, "epsilons", " points")

    return (
        f"CC ahead of DP-SGD, each with a step of its own, certified: "
        f"{told('DP-SGD', 'certified')}; as published: {told('DP-SGD', 'published')}. CC ahead of "
        f"UC, certified: {told('UC', 'certified')}. Published noise certifies up to {leak:.2g} "
        "times its epsilon."
    )


# ---------------------------------------------------------------------------------------- figure 2


def figure_2_features_of(task: DescentTask, setting: OnFeatures, request: Request) -> Reproduced:
    seeds = request.seeds_or(2, 5)
    rows = rows_of(task, setting, seeds)
    baseline = plain_curves(task, seeds, setting.looks)
    lines = [_baseline_line(baseline, setting), *(_curve_line(row, setting) for row in rows)]
    return Reproduced(
        "Figure 2 of paper 4 on public features (test accuracy along the run, CIFAR-10)",
        "test accuracy in per cent over the last five epochs (chance: 10)",
        tuple(lines),
        curve_verdict(lines, "On features, each with a step of its own,"),
        asdict(setting),
        (
            _about(task, setting),
            dc_tasks.cifar_note(request),
            "The paper draws curves; the columns by epoch are their points, means over the seeds. "
            "The runs are those of table-3-features; the baseline has no privacy.",
        ),
    )


def _curve_line(row: Row, setting: OnFeatures) -> Line:
    certified, published = row.certified.runs, row.published
    extra = {"certified by epoch": thinned(certified.curves, setting.points)}
    if published is not None:
        extra["published by epoch"] = thinned(published.runs.curves, setting.points)
    return Line(
        {"nominal": f"{row.epsilon:g}", "method": row.method},
        _printed(row.epsilon, row.method),
        None if published is None else published.runs.measured,
        certified.measured,
        certified.epsilon,
        None if published is None else published.runs.epsilon,
        {"epochs": _epochs(certified.curves, setting.points), **extra},
    )


def _baseline_line(found: HeadOutcomes, setting: OnFeatures) -> Line:
    return Line(
        {"nominal": "", "method": "baseline"},
        PRINTED_BASELINE,
        extra={
            "epochs": _epochs(found.curves, setting.points),
            "not private by epoch": thinned(found.curves, setting.points),
            "not private": str(found.measured),
        },
    )


def thinned(curves: Sequence[Sequence[float]], points: int) -> str:
    """The mean curve at so many equal distances, its end included.

    >>> thinned([[1, 2, 3, 4], [3, 4, 5, 6]], 2)
    '3 5'
    """
    every = max(1, len(curves[0]) // points)
    means = [statistics.fmean(values) for values in zip(*curves, strict=True)]
    return " ".join(f"{value:.4g}" for value in means[every - 1 :: every])


def _epochs(curves: Sequence[Sequence[float]], points: int) -> str:
    count = len(curves[0])
    every = max(1, count // points)
    return " ".join(str(epoch) for epoch in range(every, count + 1, every))
