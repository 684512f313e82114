"""One rule against tuned flat clipping: one adaptive search for both, named before it is scored.

    .venv/bin/python benchmarks/edge_search.py --bed injury --method flat compensated    # tune
    .venv/bin/python benchmarks/edge_search.py --bed injury --fresh     # flat and `CHAMPION`, once

The second round of `edge.py`, on the same beds, epsilon and ledger. Every method has `TRIALS`
trials: the same `STARTS`, then moves from the best point so far, one axis after the other. Methods
with a knob may spend moves on it; flat clipping spends them on threshold and step length. A trial
is scored by its mean over the tuning seeds, on validation rows. The best trial runs on the
selection seeds, on validation rows; on those the champion was chosen. `CHAMPION` and `FRESH` were
committed before any fresh seed was scored; --fresh scores flat and the champion on test rows.

Finished cells are kept in benchmarks/results/edge_search_BED.json and not repeated.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from edge import Cells, cell
from edge_beds import Bed, beds
from edge_methods import Choice, between, discriminative, quantile

from winsor import rules
from winsor.rules.geometric import Geometric
from winsor.rules.rule import Rule
from winsor.training.kalman import KalmanSGD

TUNING, SELECTION, FRESH = (101, 102, 103), (104, 105, 106, 107), tuple(range(11, 27))
"""Seeds. Nothing was ever scored on those of `FRESH` before `CHAMPION` was committed."""
CHAMPION: str | None = "compensated"
STARTS = ((0.5, 0.5), (0.75, 0.25), (0.25, 0.75), (0.625, 0.875), (0.9375, 0.9375))
"""Of `edge_methods.POINTS`: the first four, and the corner that heavy tails favour."""
TRIALS, STEP = 12, 0.125
MOMENTUM = 0.8
"""For all alike: on tuning and selection seeds flat clipping was better with it than with 0.9."""

KIND = "edge_search"
Optimizer = Callable[[Any, float], torch.optim.Optimizer]


def momentum(params: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=lr * (1 - MOMENTUM), momentum=MOMENTUM)


@dataclass(frozen=True)
class Point:
    """Threshold and step length in the unit square of a bed (or beyond), and a place of a knob."""

    threshold: float
    length: float
    knob: int = 0

    def moved(self, axis: str, by: float) -> Point:
        return Point(**{**self.__dict__, axis: getattr(self, axis) + by})


@dataclass(frozen=True)
class Searched:
    """``rule(threshold, knob)``; the knob goes up and down its ladder from ``start``."""

    name: str
    rule: Callable[[float, float], Rule]
    ladder: tuple[float, ...] = (0.0,)
    start: int = 0
    optimizer: Optimizer = field(default=momentum)

    def choice(self, bed: Bed, point: Point) -> Choice:
        threshold = between(bed.thresholds, point.threshold)
        rate = between(bed.lengths, point.length) / threshold
        return Choice(self.rule(threshold, self.ladder[point.knob]), rate, self.optimizer)

    def axes(self) -> tuple[str, ...]:
        return ("knob", "threshold", "length") if len(self.ladder) > 1 else ("threshold", "length")


METHODS = {
    method.name: method
    for method in (
        Searched("flat", lambda c, _: rules.Flat(c)),
        Searched("compensated", rules.Compensated, (5 / 3,)),
        Searched("power", rules.Power, (0.5, 1.0, 1.5, 2.5), 2),
        Searched("quantile", quantile, (0.7, 0.9, 0.97), 1),
        Searched("dc quantile", discriminative, (0.5, 0.8, 0.95), 1),
        Searched("geometric", lambda c, k: Geometric(c, power=k), (0.5, 1.0, 2.0), 1),
        Searched("kalman", lambda c, _: rules.Flat(c), optimizer=KalmanSGD),
    )
}


def search(method: Searched, score: Callable[[Point], float]) -> dict[Point, float]:
    """The trials, in order. A way that helps is gone on with, and its way back is not tried; when a
    round over all axes has not helped, steps are halved (a knob has whole steps)."""
    tried = {at: score(at) for at in (Point(u, v, method.start) for u, v in STARTS)}
    best, step = max(tried, key=tried.__getitem__), STEP

    def goes_on(axis: str, by: float) -> bool:
        """Whether one more step that way was tried and helped."""
        nonlocal best
        at = best.moved(axis, by)
        if at in tried or not 0 <= at.knob < len(method.ladder) or len(tried) == TRIALS:
            return False
        tried[at] = score(at)
        helped = tried[at] > tried[best]
        best = at if helped else best
        return helped

    while len(tried) < TRIALS:
        before = best
        for axis in method.axes():
            for by in (1, -1) if axis == "knob" else (step, -step):
                from_here = best
                while goes_on(axis, by):
                    pass
                if best != from_here:
                    break
        step = step / 2 if best == before else step
    return tried


@dataclass(frozen=True)
class Runs:
    """Scores of one method on one bed, computed when asked for and kept."""

    bed: Bed
    method: Searched
    cells: Cells
    compute: bool = True

    def at(self, point: Point, seed: int, rows: str) -> dict[str, float] | None:
        where = f"{point.threshold:g} {point.length:g} {self.method.ladder[point.knob]:g}"
        key = f"{self.method.name} | {rows} | {where} | seed {seed}"
        if not self.compute:
            return self.cells.known.get(key)
        return self.cells.get(
            key, lambda: cell(self.bed, self.method.choice(self.bed, point), seed, rows)
        )

    def score(self, point: Point) -> float:
        """The mean over the tuning seeds; what is not known raises KeyError."""
        found = [self.at(point, seed, "validation") for seed in TUNING]
        if any(one is None for one in found):
            raise KeyError(f"{self.method.name} is not tuned on {self.bed.name}")
        return statistics.fmean(one["score"] for one in found if one)

    def best(self) -> Point:
        tried = search(self.method, self.score)
        return max(tried, key=tried.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bed", nargs="*", default=list(beds()))
    parser.add_argument("--method", nargs="*", default=list(METHODS))
    parser.add_argument("--fresh", action="store_true", help="flat and the champion on test rows")
    arguments = parser.parse_args()
    if arguments.fresh and CHAMPION is None:
        parser.error("--fresh needs a champion that was committed before")
    torch.set_num_threads(1)
    names = ("flat", CHAMPION) if arguments.fresh else arguments.method
    seeds, rows = (FRESH, "test") if arguments.fresh else (SELECTION, "validation")
    for bed in (beds()[name] for name in arguments.bed):
        for method in (METHODS[name] for name in names):
            runs = Runs(bed, method, Cells(bed, KIND))
            best = runs.best()
            found = [runs.at(best, seed, rows) for seed in seeds]
            scores = [one["score"] for one in found if one]
            setting = method.choice(bed, best)
            print(
                f"{bed.name:10} {method.name:12} tuned {runs.score(best):8.4f} {rows} "
                f"{statistics.fmean(scores):8.4f} {setting.rule!r} lr {setting.lr:.3g} {best} "
                f"{[round(score, 3) for score in scores]} at {time.process_time():.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
