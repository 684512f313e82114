"""What grouping costs: a step with persons of 8 rows against one with as many plain rows.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/units.py                 # a few minutes
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/units.py --seconds 2 --dry    # writes nothing
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/units.py --cpu    # processor time: busy machines

Models and batches are those of the step-time benchmark (MLP, CNN, a small GPT). Both arms see the
same rows at every step (sampling="full"), through make_private with Flat(1.0): loading, forward,
backward, clipping, noise, ledger and optimiser are all inside. The arms take turns, step by step,
in an order that changes every round; the median over rounds of each is reported, and the median of
the ratios. Aim: at most 1.1. Writes benchmarks/results/units.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from models import TASKS, Task
from rich.console import Console
from rich.table import Table
from saving import save
from torch.utils.data import TensorDataset

import winsor

GROUP, AIM, WARM, LEAST = 8, 1.1, 3, 12
NAMES = ("MLP 784-128-10", "CNN 28x28", "GPT 4x256")


class Arm:
    """One private training over the same rows again and again."""

    def __init__(self, task: Task, grouped: bool, steps: int) -> None:
        torch.manual_seed(0)
        self.task, self.model = task, task.model()
        rows = task.batch_size
        unit = np.arange(rows) // GROUP if grouped else None
        self.private = winsor.make_private(
            model=self.model,
            optimizer=torch.optim.SGD(self.model.parameters(), lr=1e-3),
            dataset=TensorDataset(*task.batch(rows)),
            rule=winsor.rules.Flat(1.0),
            batch_size=rows // GROUP if grouped else rows,
            sampling="full",
            steps=steps,
            noise_multiplier=1.0,
            delta=1e-5,
            unit=unit,
            rows_per_unit=GROUP,
        )
        self.batches: Iterator[Any] = self.private.batches()

    def step(self, clock: Callable[[], float] = time.perf_counter) -> float:
        start = clock()
        batch = next(self.batches)
        self.private.step(self.task.losses(self.model, batch))
        return clock() - start


def measure(task: Task, seconds: float, clock: Callable[[], float]) -> dict[str, Any]:
    arms = [Arm(task, grouped, 10**6) for grouped in (False, True)]
    for arm in arms:
        for _ in range(WARM):
            arm.step()
    times: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < LEAST:
        order = (0, 1) if len(times) % 2 == 0 else (1, 0)
        taken = {place: arms[place].step(clock) for place in order}
        times.append((taken[0], taken[1]))
    for arm in arms:
        arm.private.detach()
    plain, grouped = (1000 * statistics.median(pair[i] for pair in times) for i in (0, 1))
    ratio = statistics.median(two / one for one, two in times)
    return {
        "model": task.name,
        "rows": task.batch_size,
        "persons": task.batch_size // GROUP,
        "rounds": len(times),
        "plain_ms": round(plain, 3),
        "grouped_ms": round(grouped, 3),
        "ratio": round(ratio, 3),
        "reached": ratio <= AIM,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=35.0, help="for each model")
    parser.add_argument("--cpu", action="store_true", help="processor time of the stepping thread")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clock = time.thread_time if options.cpu else time.perf_counter
    rows = [measure(task, options.seconds, clock) for task in TASKS if task.name in NAMES]
    table = Table(title=f"a step with persons of {GROUP} rows against plain rows")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)
    if not options.dry:
        about = {"group": GROUP, "aim": AIM, "seconds": options.seconds, "cpu": options.cpu}
        save("units", {**about, "rows": rows})


if __name__ == "__main__":
    main()
