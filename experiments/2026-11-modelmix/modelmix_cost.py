"""What mixing adds to the time of a private step: at most 1.25 x, on small and larger models.

    OMP_NUM_THREADS=1 python benchmarks/modelmix_cost.py

Two runs of the same rule, model and data, one with ModelMix and one without, take turns step by
step in one process; each step is timed, from drawing the batch to the updated model. The ratio of
the medians is what mixing costs, whatever else the machine is doing. With the rule `LInf`, which
materialises per-sample gradients, the ratio is that of the mechanism and not of the rule.

Writes benchmarks/results/modelmix_cost.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from saving import save
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.models.networks import mlp, two_layer_cnn
from winsor.rules import Flat, LInf

LIMIT = 1.25
ROWS = 2048


@dataclass(frozen=True)
class Case:
    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch_size: int
    rule: Any


CASES = (
    Case("linear 784-10, flat", lambda: mlp([784, 10]), (784,), 256, Flat(1.0)),
    Case("MLP 784-256-10, flat", lambda: mlp([784, 256, 10]), (784,), 256, Flat(1.0)),
    Case("CNN 28x28, flat", two_layer_cnn, (1, 28, 28), 128, Flat(1.0)),
    Case("CNN 28x28, l-inf p=25", two_layer_cnn, (1, 28, 28), 64, LInf(1.0, 25)),
)


def steps(case: Case, mix: ModelMix | None, count: int) -> Iterator[float]:
    """Seconds of each step of one run."""
    torch.manual_seed(0)
    model = case.model()
    private = winsor.make_private(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=TensorDataset(torch.randn(ROWS, *case.shape), torch.arange(ROWS) % 10),
        rule=case.rule,
        batch_size=case.batch_size,
        delta=1e-5,
        noise_multiplier=1.0,
        steps=count,
        mechanism=mix,
        seed=0,
    )
    start = time.perf_counter()
    for x, y in private.batches():
        private.step(F.cross_entropy(model(x), y, reduction="none"))
        yield time.perf_counter() - start
        start = time.perf_counter()  # the other run had its turn


def measure(case: Case, count: int, warmup: int = 5) -> dict[str, Any]:
    runs = {"plain": steps(case, None, count), "mixed": steps(case, ModelMix(0.01), count)}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(count):
        order = list(runs) if turn % 2 else list(reversed(runs))  # neither is always second
        for name in order:
            times[name].append(next(runs[name]))
    plain, mixed = (statistics.median(times[name][warmup:]) for name in runs)
    return {
        "parameters": sum(p.numel() for p in case.model().parameters()),
        "plain_ms": 1e3 * plain,
        "mixed_ms": 1e3 * mixed,
        "ratio": mixed / plain,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    print(f"{'case':24} {'parameters':>10} {'plain ms':>9} {'mixed ms':>9} {'ratio':>6}")
    for case in CASES:
        row = rows[case.name] = measure(case, arguments.steps)
        print(f"{case.name:24} {row['parameters']:10d} {row['plain_ms']:9.2f} "
              f"{row['mixed_ms']:9.2f} {row['ratio']:6.2f}")  # fmt: skip
    worst = max(row["ratio"] for row in rows.values())
    print(f"worst ratio {worst:.2f}, limit {LIMIT}")
    content = {"steps": arguments.steps, "limit": LIMIT, "worst": worst, "rows": rows}
    save("modelmix_cost", content)
    raise SystemExit(worst > LIMIT)


if __name__ == "__main__":
    main()
