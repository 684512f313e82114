"""Correlated against independent noise: test accuracy at 5 epochs, epsilon 8, equal tuning.

    OMP_NUM_THREADS=1 nice -n 15 .venv/bin/python benchmarks/banded_accuracy.py
    .venv/bin/python benchmarks/banded_accuracy.py --show    # what is known so far

Two-layer CNN on Fashion-MNIST (50,000 private images, 2,000 others for tuning, 10,000 for testing),
batches of 500 rows on average, 100 steps an epoch, delta 1e-5, Flat(0.1). Three arms:

    independent   Poisson sampling, independent noise: DP-SGD
    banded        winsor.Banded(): cyclic sampling, square-root coefficients, bands chosen
    optimised     winsor.Banded(optimised=True): the same with coefficients fitted to the run

Every arm is tuned over the same grid (a step's length, momentum, whether the learning rate falls),
at full length with one seed, by accuracy on the 2,000 images. The winner of each arm runs with
SEEDS other seeds; a seed starts the same weights in all arms, and differences are taken seed by
seed. A length is learning rate x threshold / (1 - momentum), so that momentum changes no scale.

Every cell is saved when it is finished, in benchmarks/results/banded_accuracy.json, and not
repeated. A difference below two standard errors is reported as none.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rules_fashion_mnist import Data, accuracy, load
from saving import FOLDER, save
from torch.nn import functional as F

import winsor
from winsor.models.networks import two_layer_cnn

NAME = "banded_accuracy"
EPSILON, DELTA, BATCH, EPOCHS, THRESHOLD, SEEDS = 8.0, 1e-5, 500, 5, 0.1, 5
LENGTHS = (2.5, 5.0, 10.0, 20.0)
SHAPES = ((0.0, False), (0.9, True))  # momentum, falling learning rate
ARMS = {
    "independent": None,
    "banded": winsor.Banded(),
    "optimised": winsor.Banded(optimised=True),
}


@dataclass(frozen=True)
class Setting:
    """One point of the grid."""

    length: float
    momentum: float
    falling: bool

    def __str__(self) -> str:
        rate = "falling" if self.falling else "constant"
        return f"length={self.length:g} momentum={self.momentum:g} {rate}"

    @property
    def learning_rate(self) -> float:
        return self.length * (1 - self.momentum) / THRESHOLD


GRID = [Setting(length, *shape) for shape, length in itertools.product(SHAPES, LENGTHS)]


def train(data: Data, arm: str, setting: Setting, seed: int, final: bool) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = two_layer_cnn()
    steps = EPOCHS * len(data.train) // BATCH
    optimizer = torch.optim.SGD(
        model.parameters(), lr=setting.learning_rate, momentum=setting.momentum
    )
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    start = time.perf_counter()
    private = winsor.make_private(
        model=model,
        optimizer=optimizer,
        dataset=data.train,
        rule=winsor.rules.Flat(THRESHOLD),
        epsilon=EPSILON,
        delta=DELTA,
        steps=steps,
        batch_size=BATCH,
        seed=seed,
        max_physical_batch_size=512,
        mechanism=ARMS[arm],
        scheduler=falling if setting.falling else None,
    )
    for x, y in private.batches():
        private.step(F.cross_entropy(model(x), y, reduction="none"))
    return {
        "accuracy": accuracy(model, *(data.test if final else data.validation)),
        "epsilon": private.spent().epsilon,
        "noise_multiplier": private.noise_multiplier,
        "bands": getattr(private.sampler, "bands", 1),
        "seconds": round(time.perf_counter() - start, 1),
    }


class Cells:
    """Finished runs by name, on disk after each."""

    def __init__(self) -> None:
        path = FOLDER / f"{NAME}.json"
        self.runs: dict[str, Any] = json.loads(path.read_text())["runs"] if path.exists() else {}

    def get(self, data: Data, arm: str, setting: Setting, seed: int, final: bool) -> Any:
        name = f"{'final' if final else 'tune'} {arm} {setting} seed={seed}"
        if name not in self.runs:
            self.runs[name] = train(data, arm, setting, seed, final)
            print(f"{name}: {self.runs[name]}", flush=True)
            self.write()
        return self.runs[name]

    def write(self) -> None:
        names = ("EPSILON", "DELTA", "BATCH", "EPOCHS", "THRESHOLD", "SEEDS", "LENGTHS")
        settings = {name.lower(): globals()[name] for name in names}
        save(NAME, {"settings": settings, "table": self.table(), "runs": self.runs})

    def best(self, arm: str) -> Setting | None:
        """The tuned setting, once the whole grid is known."""
        found = {s: self.runs.get(f"tune {arm} {s} seed=0") for s in GRID}
        if any(run is None for run in found.values()):
            return None
        return max(GRID, key=lambda setting: found[setting]["accuracy"])

    def table(self) -> dict[str, Any]:
        """Of every arm whose finals are done; differences to independent noise, seed by seed."""
        rows: dict[str, Any] = {}
        scores: dict[str, list[float]] = {}
        for arm in ARMS:
            best = self.best(arm)
            runs = [self.runs.get(f"final {arm} {best} seed={s}") for s in range(1, SEEDS + 1)]
            if best is None or None in runs:
                continue
            scores[arm] = [run["accuracy"] for run in runs]
            rows[arm] = {
                **asdict(best),
                "at_an_end_of_the_grid": best.length in (LENGTHS[0], LENGTHS[-1]),
                "bands": runs[0]["bands"],
                "noise_multiplier": runs[0]["noise_multiplier"],
                "epsilon": max(run["epsilon"] for run in runs),
                "mean": statistics.mean(scores[arm]),
                "sd": statistics.stdev(scores[arm]),
            }
            if arm != "independent" and "independent" in scores:
                pairs = zip(scores[arm], scores["independent"], strict=True)
                apart = [one - other for one, other in pairs]
                error = statistics.stdev(apart) / math.sqrt(len(apart))
                gain = statistics.mean(apart)
                verdict = "better" if gain > 2 * error else "worse" if gain < -2 * error else "none"
                rows[arm] |= {"gain": gain, "standard_error": error, "difference": verdict}
        return rows


def show(rows: dict[str, Any]) -> None:
    table = Table(title=f"test accuracy, {EPOCHS} epochs, epsilon {EPSILON:g}")
    for column in ("arm", "bands", "noise", "length", "momentum", "falling", "accuracy", "gain"):
        table.add_column(column)
    for arm, row in rows.items():
        gain = f"{row['gain']:+.2f} +- {row['standard_error']:.2f} ({row['difference']})" if (
            "gain" in row
        ) else ""  # fmt: skip
        table.add_row(
            arm, str(row["bands"]), f"{row['noise_multiplier']:.3f}", f"{row['length']:g}",
            f"{row['momentum']:g}", str(row["falling"]), f"{row['mean']:.2f} +- {row['sd']:.2f}",
            gain,
        )  # fmt: skip
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--show", action="store_true", help="show what is known, and run nothing")
    parser.add_argument("--first", type=int, help="stop after so many new cells")
    arguments = parser.parse_args()
    cells = Cells()
    if not arguments.show:
        torch.set_num_threads(1)
        data = load(arguments.data)
        wanted = itertools.chain(
            ((arm, s, 0, False) for arm in ("independent", "banded") for s in GRID),
            _finals(cells, ("independent", "banded")),
            (("optimised", s, 0, False) for s in GRID),
            _finals(cells, ("optimised",)),
        )
        known = len(cells.runs)
        for arm, setting, seed, final in wanted:
            if arguments.first is not None and len(cells.runs) - known >= arguments.first:
                break
            cells.get(data, arm, setting, seed, final)
        cells.write()
    show(cells.table())


def _finals(cells: Cells, arms: tuple[str, ...]) -> Any:
    """Asked for only when the tuning before it is done; the arms take turns."""
    for seed, arm in itertools.product(range(1, SEEDS + 1), arms):
        best = cells.best(arm)
        assert best is not None
        yield arm, best, seed, True


if __name__ == "__main__":
    main()
