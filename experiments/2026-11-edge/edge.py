"""Does any rule beat tuned flat clipping when gradients have heavy tails? Six beds, equal tuning.

    .venv/bin/python benchmarks/edge.py --bed injury            # tune; about a minute of one core
    .venv/bin/python benchmarks/edge.py --bed injury --fresh    # and evaluate
    .venv/bin/python benchmarks/edge.py --page                  # docs/heavy-tail-edge.md

Certified epsilon 3 at delta 1e-5 for everything that touches training rows, from the ledger. Every
method has the same eight trials (`edge_methods.py`), on one tuning seed and scored on validation
rows; the best setting then runs on three more tuning seeds, on which the champion is chosen. With
--fresh it runs on eight seeds that nothing was chosen on, scored on test rows. Seeds pair the
methods: the same rows, start, batches and noise. Tuning is outside epsilon for all alike.

Finished cells are kept in benchmarks/results/edge_BED.json and not repeated. The second round, with
an adaptive search and one candidate named beforehand, is `edge_search.py`.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from edge_beds import Bed, Task, adjusted, beds
from edge_methods import FRESH, METHODS, POINTS, SELECTION, TUNING, Choice, Method
from saving import FOLDER, save
from torch.utils.data import TensorDataset

import winsor
from winsor.accounting import calibrate
from winsor.losses import released_counts

EPSILON, DELTA, COUNT_NOISE = 3.0, 1e-5, 10.0


@functools.cache
def noise(n: int, batch: int, steps: int, counted: bool) -> float:
    """The multiplier of a run, after the class counts if they were released."""

    def whole(multiplier: float) -> DpEvent:
        step = PoissonSampledDpEvent(batch / n, GaussianDpEvent(multiplier))
        events: list[DpEvent] = [SelfComposedDpEvent(step, steps)]
        return ComposedDpEvent([GaussianDpEvent(COUNT_NOISE)] * counted + events)

    relation = winsor.Neighbouring.ADD_OR_REMOVE_ONE
    return calibrate.noise_multiplier(whole, 1, EPSILON, DELTA, relation)


def train(bed: Bed, task: Task, choice: Choice, seed: int) -> tuple[torch.nn.Module, float]:
    """A trained model and the epsilon of all that was released for it."""
    n, losses, spent = len(task.train[0]), task.losses, []
    if choice.adjusted:
        counts = released_counts(
            task.train[1], len(bed.profile or ()), delta=DELTA, noise_multiplier=COUNT_NOISE,
            seed=90_000 + seed,
        )  # fmt: skip
        losses, spent = adjusted(counts.counts, choice.adjusted), [counts]
    torch.manual_seed(seed)
    model = task.model()
    private = winsor.make_private(
        model=model,
        optimizer=choice.optimizer(model.parameters(), choice.lr),
        dataset=TensorDataset(*task.train),
        rule=choice.rule,
        noise_multiplier=noise(n, bed.batch, bed.steps, bool(spent)),
        delta=DELTA,
        batch_size=bed.batch,
        steps=bed.steps,
        seed=seed,
        iterate="ema",
    )
    for batch in private.batches():
        private.step(losses(model, batch, private.steps_done / bed.steps))
    return model, winsor.total(*spent, private).epsilon if spent else private.spent().epsilon


def cell(bed: Bed, choice: Choice, seed: int, rows: str) -> dict[str, float]:
    start = time.process_time()
    task = bed.task(seed)
    model, epsilon = train(bed, task, choice, seed)
    if not epsilon <= EPSILON:
        raise RuntimeError(f"{bed.name}: epsilon {epsilon} is above {EPSILON}")
    scores = task.scores(model, getattr(task, rows))
    if not math.isfinite(scores["score"]):
        scores["score"] = -1e9  # a run that left the numbers loses
    return {**scores, "epsilon": epsilon, "processor_seconds": time.process_time() - start}


class Cells:
    """Finished cells of a bed, on disk."""

    def __init__(self, bed: Bed, kind: str = "edge") -> None:
        self.name = f"{kind}_{bed.name}"
        path = FOLDER / f"{self.name}.json"
        self.known: dict[str, Any] = {}
        if path.exists():
            self.known = json.loads(path.read_text())["cells"]

    def get(self, key: str, compute: Any) -> dict[str, float]:
        if key not in self.known:
            self.known[key] = compute()
            self.save()
        found: dict[str, float] = self.known[key]
        return found

    def save(self) -> None:
        """With what another process may have finished meanwhile."""
        path = FOLDER / f"{self.name}.json"
        if path.exists():
            self.known = {**json.loads(path.read_text())["cells"], **self.known}
        save(self.name, {"epsilon": EPSILON, "delta": DELTA, "cells": self.known})


def measure(bed: Bed, method: Method, cells: Cells, fresh: bool) -> None:
    """Tune, then run the best setting on selection seeds and, if asked, on fresh ones."""

    def run(trial: int, seed: int, rows: str) -> dict[str, float]:
        key = f"{method.name} | {rows} | trial {trial} | seed {seed}"
        return cells.get(key, lambda: cell(bed, method.choice(bed, trial), seed, rows))

    tuned = [run(trial, TUNING, "validation")["score"] for trial in range(len(POINTS))]
    best = max(range(len(POINTS)), key=tuned.__getitem__)
    scores = [run(best, seed, "validation")["score"] for seed in SELECTION]
    if fresh:
        scores = [run(best, seed, "test")["score"] for seed in FRESH]
    setting = method.choice(bed, best)
    print(
        f"{bed.name:10} {method.name:18} {sum(scores) / len(scores):9.4f} "
        f"{setting.rule!r} lr {setting.lr:.3g} tuned {[round(t, 2) for t in tuned]} "
        f"at {time.process_time():.0f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bed", nargs="*", default=[])
    parser.add_argument("--method", nargs="*", default=list(METHODS))
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--page", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.bed:
        bed = beds()[name]
        cells = Cells(bed)
        for method in (METHODS[wanted] for wanted in arguments.method):
            if method.serves(bed):
                measure(bed, method, cells, arguments.fresh)
    if arguments.page:
        from edge_page import write  # it reads results only

        write(Path(__file__).parent.parent / "docs")


if __name__ == "__main__":
    main()
