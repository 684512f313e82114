"""Figures 1, 3 and B1 to B4 of paper 4: test loss along the run, with the non-private baseline.

    figure 1    logistic, Diabetes and Adult          figure B1   ridge, the same
    figure 3    logistic, synthetic                   figure B2   ridge, the same
    figure B3   logistic, all five, with deviations   figure B4   ridge, all five, with deviations

A line is one curve; its points stand in the columns "... by epoch". The runs are those of Tables 2
and B1, which keep their answers along the way (`tables.fit`). The baseline is Algorithm 1 as
printed with the settings of CC and no noise, for it is public data. As in the tables, *published*
curves have the noise of the paper's account and *certified* ones that of epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from winsor_reproductions.aclip.printed import DATA, EPSILONS
from winsor_reproductions.aclip.tables import (
    NOTES,
    ONE_READING,
    POINTS,
    SETTINGS,
    ConvexRows,
    ConvexSetting,
    fit,
    kept_steps,
    methods_of,
    problem,
    published_run,
    relative_error,
)
from winsor_reproductions.cells import Values, Wanted, cell
from winsor_reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_reproductions.verdicts import Comparison, sentence

from winsor.grads.glm import Logistic, Squared
from winsor.linear import AveragedDescent
from winsor.linear.options import Method
from winsor.papers.aclip.algorithms import PrintedAclip

Array = NDArray[np.float64]

REAL = ("diabetes", "adult")
SYNTHETIC = tuple(name for name in DATA if name not in REAL)
BASELINE = "baseline"


def figure_1(request: Request) -> Reproduced:
    """Logistic regression on real data."""
    return _figure("Figure 1", "logistic", REAL, request)


def figure_3(request: Request) -> Reproduced:
    """Logistic regression on synthetic data."""
    return _figure("Figure 3", "logistic", SYNTHETIC, request)


def figure_b1(request: Request) -> Reproduced:
    """Ridge regression on real data."""
    return _figure("Figure B1", "ridge", REAL, request)


def figure_b2(request: Request) -> Reproduced:
    """Ridge regression on synthetic data."""
    return _figure("Figure B2", "ridge", SYNTHETIC, request)


def figure_b3(request: Request) -> Reproduced:
    """Logistic regression on everything, with deviations over repetitions."""
    return _figure("Figure B3", "logistic", DATA, request, deviations=True)


def figure_b4(request: Request) -> Reproduced:
    """Ridge regression on everything, with deviations over repetitions."""
    return _figure("Figure B4", "ridge", DATA, request, deviations=True)


def _figure(
    name: str, task: str, data: Sequence[str], request: Request, deviations: bool = False
) -> Reproduced:
    chosen = _shortened(data) if request.quick else tuple(data)
    epsilons = (EPSILONS[-1],) if request.quick else EPSILONS
    seeds = range(len(request.seeds_or(2, 20)))
    lines: list[Line] = []
    for column in chosen:
        request.say(f"{name}: {column}")
        setting = SETTINGS[column]
        if request.quick:
            setting = replace(setting, epochs=min(setting.epochs, 6))
        folder = request.folder() if column in REAL else None
        rows = problem(column, task, folder, seed=0)
        lines += _data_lines(task, column, rows, setting, epsilons, seeds, deviations)
    return Reproduced(
        f"{name} of paper 4 (trajectories, {task})",
        "test loss over that of the zero start, at the end of the run",
        tuple(lines),
        trajectory_verdict(lines),
        {"seeds": len(seeds), "epsilons": epsilons, "points": POINTS},
        (
            "The paper draws curves; the columns by epoch are their points, means over the seeds.",
            "The baseline is AClipped-dpSGD with the settings of CC and without noise.",
            NOTES[task],
            ONE_READING,
            "Quick: one epsilon, 6 epochs, one synthetic set."
            if request.quick
            else f"{len(seeds)} seeds, the runs of the tables; the paper averages 300 runs.",
        ),
    )


def _shortened(data: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in data if name in (*REAL, "laplace"))


@dataclass(frozen=True)
class Curves:
    """(seeds, points) relative test losses, at these epochs."""

    epochs: tuple[float, ...]
    losses: Array
    epsilon: float = float("nan")

    @property
    def end(self) -> Measured:
        return Measured.of(self.losses[:, -1].tolist())

    def means(self) -> str:
        return " ".join(f"{value:.4g}" for value in self.losses.mean(axis=0))

    def deviations(self) -> str:
        if len(self.losses) == 1:
            return "one seed"
        return " ".join(f"{value:.2g}" for value in self.losses.std(axis=0, ddof=1))


def private_curves(
    rows: ConvexRows,
    task: str,
    method: Method,
    epsilon: float,
    noise: float | None,
    seeds: Sequence[int],
) -> Curves:
    """One fit per seed, the same as in the tables."""
    found = [fit(rows, task, method, epsilon, noise, seed) for seed in seeds]
    losses = np.array([one.curve for one in found])
    return Curves(tuple(found[0].epochs), losses, max(one.epsilon for one in found))


def baseline_curves(
    rows: ConvexRows, task: str, setting: ConvexSetting, seeds: Sequence[int]
) -> Curves:
    """AClipped-dpSGD without noise, as printed."""
    n = len(rows.x)
    steps = int(np.ceil(setting.epochs * n / setting.batch_size - 1e-9))
    found = [cell(_baseline_cell(rows, task, setting, steps, seed)) for seed in seeds]
    epochs = tuple(step * setting.batch_size / n for step in kept_steps(steps))
    return Curves(epochs, np.array([one["curve"] for one in found]))


def _baseline_cell(
    rows: ConvexRows, task: str, setting: ConvexSetting, steps: int, seed: int
) -> Wanted:
    """One run without noise, as a cell."""
    n, loss = len(rows.x), Logistic() if task == "logistic" else Squared()

    def gradient(w: Array, picked: NDArray[np.int64]) -> Array:
        part = rows.x[picked]
        pulled: Array = loss.residual(part @ w, rows.y[picked]) @ part
        return pulled

    def work(count: int) -> Values:
        run = PrintedAclip(
            n, count, setting.batch_size, setting.rates[0], setting.clips[0], 0.0, radius=1.0
        )
        answers = run.answers(np.zeros(rows.x.shape[1]), gradient, seed=seed)
        return {"curve": [relative_error(rows, answers[at - 1], task) for at in kept_steps(count)]}

    return Wanted(
        f"{task} on {n:,} rows, without noise, {setting.epochs} passes",
        {"data": rows.name, "setting": repr(setting), "seed": seed},
        lambda: work(steps),
        {"curve": [0.5] * len(kept_steps(steps))},
        steps,
        work,
    )


def _data_lines(
    task: str,
    data: str,
    rows: ConvexRows,
    setting: ConvexSetting,
    epsilons: Sequence[float],
    seeds: range,
    deviations: bool,
) -> list[Line]:
    n = len(rows.x)
    open_curves = baseline_curves(rows, task, setting, seeds)
    lines = [_line(data, "", BASELINE, None, open_curves, deviations)]
    for epsilon in epsilons:
        for name, method in methods_of(setting).items():
            sound = private_curves(rows, task, method, epsilon, None, seeds)
            run = published_run(setting, method, epsilon, n)
            claimed = None
            if isinstance(method, AveragedDescent) and run is not None:
                noise = run.noise_multiplier
                claimed = private_curves(rows, task, method, epsilon, noise, seeds)
            line = _line(data, f"{epsilon:g}", name, sound, claimed, deviations)
            lines.append(line)
    return lines


def _line(
    data: str,
    nominal: str,
    name: str,
    sound: Curves | None,
    claimed: Curves | None,
    deviations: bool,
) -> Line:
    """A curve; the baseline has no certified one, and its curve is shown as not private."""
    label = {"data": data, "nominal": nominal, "method": name}
    shown = sound or claimed
    assert shown is not None
    extra = {"epochs": " ".join(f"{epoch:.3g}" for epoch in shown.epochs)}
    for kind, curves in (("certified", sound), ("published", claimed)):
        if curves is not None:
            word = "not private" if name == BASELINE else kind
            extra[f"{word} by epoch"] = curves.means()
            if deviations:
                extra[f"{word}, deviation by epoch"] = curves.deviations()
    if name == BASELINE:
        return Line(label, extra={**extra, "not private": str(shown.end)})
    return Line(
        label,
        published=None if claimed is None else claimed.end,
        published_certifies=None if claimed is None else claimed.epsilon,
        certified=None if sound is None else sound.end,
        certified_epsilon=None if sound is None else sound.epsilon,
        extra=extra,
    )


def trajectory_verdict(lines: Sequence[Line]) -> str:
    """At the end of the curves: is the order CC, UC, DP-SGD, DP-GD, published and certified?"""
    table: dict[tuple[str, str], dict[str, Line]] = {}
    for line in lines:
        if line.label["method"] != BASELINE:
            key = (line.label["data"], line.label["nominal"])
            table.setdefault(key, {})[line.label["method"]] = line
    found: dict[str, list[Comparison]] = {"published": [], "certified": []}
    for key, row in table.items():
        rivals = [row[name].certified for name in ("DP-SGD", "DP-GD")]
        best = min((rival for rival in rivals if rival is not None), key=lambda end: end.mean)
        for kind, pairs in found.items():
            ours = getattr(row["CC"], kind)
            assert ours is not None
            pairs.append(Comparison(" at ".join(key), ours, best, smaller_is_better=True))
    return (
        f"CC ends below DP-SGD and DP-GD, as published: {sentence(found['published'], 'curves')}; "
        f"certified: {sentence(found['certified'], 'curves')}."
    )
