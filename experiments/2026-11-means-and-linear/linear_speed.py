"""How fast private linear models are, against the same work without privacy.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/linear_speed.py [--data ../shared/data]

Three questions, one process, medians of several rounds that take turns:

1. 30 epochs of a9a in batches of 200 (paper 4's Table 2 setting): non-private SGD in plain NumPy,
   and winsor's ``flat`` and ``averaged``. Training only: data at hand, noise level given, batches
   and noise drawn inside. Calibrating the noise is timed apart; it is done once per setting.
2. ``simple`` on n = 1,000,000, d = 100: peak memory of the fit over the memory of the data.
3. Time of ``simple`` and ``flat`` against n and d: exponents of a power law (1 = linear).

Without a9a a random binary table of the same shape and density is used, and the result says so.
Writes benchmarks/results/linear_speed.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from saving import save
from scipy.special import expit
from winsor_reproductions.datasets import load

from winsor.contract import ConfigurationError, Neighbouring
from winsor.grads.glm import Design, Logistic
from winsor.ledger.ledger import Ledger
from winsor.linear import AveragedDescent, FlatDescent, Simple
from winsor.linear.options import Method
from winsor.linear.task import LinearTask, Session
from winsor.randomness import new_key
from winsor.release.budget import Target
from winsor.release.prepaid import PrepaidDoor

EPOCHS, BATCH = 30, 200


def a9a(directory: str) -> tuple[np.ndarray, np.ndarray, str]:
    try:
        table = load("a9a", directory)
        return table.x_train, table.y_train, "a9a"
    except ConfigurationError:
        rng = np.random.default_rng(0)
        x = (rng.random((32561, 123)) < 0.113).astype(np.float64)
        return x, (rng.random(32561) < 0.24).astype(np.float64), "random binary stand-in for a9a"


def numpy_sgd(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Plain mini-batch SGD with averaged iterates: what the private methods are compared with."""
    n, d = x.shape
    rng = np.random.default_rng(0)
    w, b, total = np.zeros(d), 0.0, np.zeros(d)
    for _ in range(EPOCHS):
        order = rng.permutation(n)
        for start in range(0, n - BATCH + 1, BATCH):
            batch = order[start : start + BATCH]
            rows = x[batch]
            residual = expit(rows @ w + b) - y[batch]
            w -= 0.1 / BATCH * (residual @ rows)
            b -= 0.1 / BATCH * residual.sum()
            total += w
    return total


def private(method: Method, x: np.ndarray, y: np.ndarray) -> Callable[[], np.ndarray]:
    """One fit at a given noise multiplier: everything but calibration."""

    def run() -> np.ndarray:
        design = Design(x, intercept=True)
        relation = Neighbouring.ADD_OR_REMOVE_ONE
        key = new_key(0)
        door = PrepaidDoor(Ledger({}), relation, key)
        task = LinearTask(design, y, Logistic(), 0.0, np.zeros(design.size), None)
        return method.solve(task, Session(door, Target(1.0, 1e-5, None, relation), key, 1.0)).theta

    return run


def medians(jobs: dict[str, Callable[[], np.ndarray]], rounds: int) -> dict[str, float]:
    """Median seconds of each job; they take turns, so that a busy machine slows all alike."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            times[name].append(time.perf_counter() - start)
    return {name: float(np.median(values)) for name, values in times.items()}


def epochs_of_a9a(directory: str, rounds: int) -> dict[str, object]:
    x, y, name = a9a(directory)
    options = {"batch_size": BATCH, "epochs": EPOCHS, "learning_rate": 0.1}
    jobs = {
        "numpy": lambda: numpy_sgd(x, y),
        "flat": private(FlatDescent.plain(**options), x, y),
        "flat, with default caution": private(FlatDescent(**options), x, y),
        "averaged": private(AveragedDescent(clip=0.5, radius=10.0, **options), x, y),
    }
    seconds = medians(jobs, rounds)
    return {
        "data": name,
        "seconds": seconds,
        "flat_over_numpy": seconds["flat"] / seconds["numpy"],
        "cautious_flat_over_numpy": seconds["flat, with default caution"] / seconds["numpy"],
        "averaged_over_numpy": seconds["averaged"] / seconds["numpy"],
        "paper_cpp_seconds": {"cc": 0.128, "dp_sgd": 0.138},
        "paper_cpp_note": "paper 4, Table 2, Adult, epsilon 0.5: another machine, 21,000 rows",
    }


def memory(n: int, d: int) -> dict[str, float]:
    """Peak memory of a fit, in a process of its own, over the memory of its data."""
    output = subprocess.run(
        [sys.executable, __file__, "--memory-child", str(n), str(d)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return dict(json.loads(output))


def memory_child(n: int, d: int) -> None:
    from winsor.linear import PrivateLogisticRegression

    rng = np.random.default_rng(0)
    x = np.empty((n, d))
    for start in range(0, n, 10_000):
        x[start : start + 10_000] = rng.standard_normal((min(10_000, n - start), d))
    y = (x[:, 0] > 0).astype(np.float64)
    small = x[:1000].copy()
    method = Simple(clip=1.0, steps=5, learning_rate=4.0)
    PrivateLogisticRegression(method=method).fit(small, y[:1000])  # libraries are loaded now
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    start = time.perf_counter()
    PrivateLogisticRegression(method=method).fit(x, y)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    data = x.nbytes + y.nbytes
    print(
        json.dumps(
            {
                "n": n,
                "d": d,
                "data_bytes": data,
                "extra_bytes": peak - before,
                "data_and_extra_over_data": 1 + (peak - before) / data,
                "seconds_per_step": seconds / 5,
            }
        )
    )


def exponent(sizes: list[int], seconds: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def scaling(rounds: int) -> dict[str, object]:
    rng = np.random.default_rng(0)
    whole = Simple(clip=1.0, steps=10, learning_rate=1.0)
    sampled = FlatDescent(batch_size=500, epochs=3, learning_rate=0.1)
    found: dict[str, object] = {}
    for name, method in (("simple", whole), ("flat", sampled)):
        for axis, shapes in (
            ("n", [(n, 50) for n in (25_000, 50_000, 100_000, 200_000)]),
            ("d", [(50_000, d) for d in (50, 100, 200, 400)]),
        ):
            jobs = {}
            for n, d in shapes:
                x = rng.standard_normal((n, d))
                jobs[str(n if axis == "n" else d)] = private(method, x, (x[:, 0] > 0) * 1.0)
            seconds = medians(jobs, rounds)
            sizes = [int(size) for size in seconds]
            slope = exponent(sizes, list(seconds.values()))
            found[f"{name}_in_{axis}"] = {"seconds": seconds, "exponent": slope}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory-child", nargs=2, type=int)
    arguments = parser.parse_args()
    if arguments.memory_child:
        memory_child(*arguments.memory_child)
        return
    result = {
        "a9a_30_epochs": epochs_of_a9a(arguments.data, arguments.rounds),
        "memory_simple": memory(1_000_000, 100),
        "scaling": scaling(max(3, arguments.rounds // 2)),
    }
    save("linear_speed", result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
