"""Figures 1, 3 and B1 to B4 of paper 4: test loss along the run, with the non-private baseline.

    figure 1    logistic, Diabetes and Adult          figure B1   ridge, the same
    figure 3    logistic, synthetic                   figure B2   ridge, the same
    figure B3   logistic, all five, with deviations   figure B4   ridge, all five, with deviations

A line is one curve; its points stand in the columns "... by epoch". The runs are those of Tables 2
and B1, which keep their answers along the way (`runs.py`). The baseline is Algorithm 1 as
printed with the settings of CC and no noise, for it is public data. As in the tables, *published*
curves have the noise of the paper's account and *certified* ones that of epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from winsor_papers.reproductions.aclip.fits import POINTS, Fit
from winsor_papers.reproductions.aclip.printed import DATA, EPSILONS
from winsor_papers.reproductions.aclip.runs import LOCKSTEP, Runs, runs_of
from winsor_papers.reproductions.aclip.settings import (
    NOTES,
    ONE_READING,
    REAL,
    SETTINGS,
    SYNTHETIC,
    ConvexSetting,
    methods_of,
    published_run,
)
from winsor_papers.reproductions.aclip.tables import problem
from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_papers.reproductions.verdicts import Comparison, sentence

Array = NDArray[np.float64]

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
        runs = runs_of(column, rows, task, setting, epsilons, len(seeds))
        lines += _data_lines(column, len(rows.x), setting, runs, epsilons, seeds, deviations)
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
            *([LOCKSTEP] if set(chosen) & set(SYNTHETIC) else []),
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
    epsilon: float

    @classmethod
    def of(cls, fits: Sequence[Fit]) -> Curves:
        """One fit per seed."""
        losses = np.array([one.curve for one in fits])
        return cls(tuple(fits[0].epochs), losses, max(one.epsilon for one in fits))

    @property
    def end(self) -> Measured:
        return Measured.of(self.losses[:, -1].tolist())

    def means(self) -> str:
        return " ".join(f"{value:.4g}" for value in self.losses.mean(axis=0))

    def deviations(self) -> str:
        if len(self.losses) == 1:
            return "one seed"
        return " ".join(f"{value:.2g}" for value in self.losses.std(axis=0, ddof=1))


def _data_lines(
    data: str,
    n: int,
    setting: ConvexSetting,
    runs: Runs,
    epsilons: Sequence[float],
    seeds: Sequence[int],
    deviations: bool,
) -> list[Line]:
    open_curves = Curves.of([runs.baseline(seed) for seed in seeds])
    lines = [_line(data, "", BASELINE, None, open_curves, deviations)]
    for epsilon in epsilons:
        for name, method in methods_of(setting).items():
            sound = Curves.of([runs.fit(method, epsilon, None, seed) for seed in seeds])
            run = published_run(setting, method, epsilon, n)
            claimed = None
            if run is not None:
                noise = run.noise_multiplier
                claimed = Curves.of([runs.fit(method, epsilon, noise, seed) for seed in seeds])
            lines.append(_line(data, f"{epsilon:g}", name, sound, claimed, deviations))
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
