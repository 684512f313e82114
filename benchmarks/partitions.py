"""Tables larger than a machine: 50 million rows on a Dask cluster of two workers.

    .venv/bin/python benchmarks/partitions.py

Rows are made partition by partition where they are needed (500,000 rows of three columns with heavy
tails), so that nobody ever holds the table. Each method runs in one process, one partition after
the other, and on two workers, with the same key; the second time one worker is killed with SIGKILL
after a third of its partitions. Says how far estimates are apart (relative to their size), seconds,
and the largest resident memory of the driver and of any worker, above what it held before.
Writes benchmarks/results/partitions.json. `--methods` chooses; what was measured before stays.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster
from saving import FOLDER, save

from winsor import metrics
from winsor.tables import PrivateRidge, partitions
from winsor.tables.partitions import Partitions
from winsor.tables.transformers import PrivateScaler

NAME = "partitions"
KEY = bytes(range(32))
OPTIONS = {"epsilon": 1.0, "random_state": KEY}
WEIGHTS = np.array([2.0, 0.01])


@dataclass(frozen=True)
class Made:
    """One partition: two features, and a target that depends on them."""

    seed: int
    rows: int

    def __call__(self) -> np.ndarray:
        chance = np.random.Generator(np.random.SFC64(self.seed))
        table = np.empty((self.rows, 3))
        uniform = chance.random((self.rows, 3))
        uniform -= 0.5
        # Student's t with two degrees of freedom, by its inverse: heavy tails at little cost.
        table[:] = 2 * uniform * np.sqrt(2 / np.maximum(1 - 4 * uniform**2, 1e-12))
        table[:, 1] *= 300
        table[:, 2] += 7 + table[:, :2] @ WEIGHTS
        return table


def judged(rows: np.ndarray) -> dict[str, np.ndarray]:
    guesses = rows[:, :2] @ WEIGHTS + 7
    return {
        "targets": rows[:, 2] > 7,
        "predictions": guesses > 7,
        "losses": np.abs(rows[:, 2] - guesses),
    }


def mean(rows: Partitions) -> np.ndarray:
    return partitions.clipped_mean(rows, radius=1_000.0, **OPTIONS).estimate


def quantiles(rows: Partitions) -> np.ndarray:
    return partitions.quantiles(rows, [0.05, 0.5, 0.95], **OPTIONS).values


def scaler(rows: Partitions) -> np.ndarray:
    found = partitions.fit_scaler(PrivateScaler(low=-1e4, high=1e4, **OPTIONS), rows)
    return np.concatenate([found.mean_, found.scale_])


def ridge(rows: Partitions) -> np.ndarray:
    found = partitions.fit_ridge(PrivateRidge(method="suffstats", **OPTIONS), rows)
    return np.append(found.coef_, found.intercept_)


def measured(rows: Partitions) -> np.ndarray:
    asked = {
        "accuracy": metrics.Accuracy(),
        "confusion": metrics.ConfusionMatrix([False, True]),
        "loss": metrics.ClippedLoss(20.0),
    }
    found = partitions.measure(asked, rows, judged, **OPTIONS)
    return np.concatenate([np.ravel(found[name].value) for name in asked])


METHODS: dict[str, Callable[[Partitions], np.ndarray]] = {
    "mean": mean,
    "metrics": measured,
    "scaler": scaler,
    "quantiles": quantiles,
    "ridge": ridge,
}


def peak() -> float:
    """MiB of the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def died(pid: int, seconds: float) -> threading.Timer:
    """Kill a worker in so many seconds; its nanny starts another one."""
    timer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
    timer.start()
    return timer


def one(name: str, rows: int, size: int, client: Client) -> dict[str, Any]:
    loaders = [Made(seed, size) for seed in range(rows // size)]
    method = METHODS[name]
    before = client.run(peak)
    start = time.perf_counter()
    alone = method(Partitions.of_loaders(loaders, columns=3))
    seconds, held = time.perf_counter() - start, peak()

    start = time.perf_counter()
    spread = Partitions.of_loaders(loaders, columns=3, client=client)
    together = method(spread)
    cluster = time.perf_counter() - start
    after = client.run(peak)

    pid = sorted(client.run(os.getpid).values())[0]
    timer = died(pid, cluster / 3)
    killed = method(spread)
    timer.join()
    replaced = pid not in client.run(os.getpid).values()

    def apart(other: np.ndarray) -> float:
        return float(np.max(np.abs(other - alone) / np.maximum(np.abs(alone), 1e-12)))

    return {
        "rows": len(loaders) * size,
        "partitions": len(loaders),
        "workers": len(after),
        "apart": apart(together),
        "apart_with_a_killed_worker": apart(killed),
        "worker_was_replaced": replaced,
        "seconds_alone": round(seconds, 1),
        "seconds_on_workers": round(cluster, 1),
        "driver_peak_mib": round(held),
        "worker_peak_mib": round(max(after.values())),
        "worker_peak_before_mib": round(max(before.values())),
        "table_mib": round(len(loaders) * size * 3 * 8 / 2**20),
        "estimate": [round(float(value), 6) for value in np.ravel(alone)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--size", type=int, default=500_000, help="rows of a partition")
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    path = options.output / f"{NAME}.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    with dask.config.set({"distributed.scheduler.allowed-failures": 10}):
        cluster = LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        )
        with Client(cluster) as client:
            for name in options.methods:
                result[name] = one(name, options.rows, options.size, client)
                print(name, result[name], flush=True)
                save(NAME, result, options.output)
        with suppress(TimeoutError):  # a busy machine may let a worker end after its nanny's 5 s
            cluster.close()


if __name__ == "__main__":
    main()
