"""What watching costs: step time with the private and the debug monitor over plain clipping.

    python benchmarks/tails_monitor.py [--steps 60]

A CNN of 26,010 parameters on random 28 x 28 images, batches of 256, one thread. The three runs take
turns step by step, in rotating order, so that a busy machine slows all alike; medians of CPU time
per step, and their ratios. Saved to benchmarks/results/tails_monitor.json.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path

from saving import save

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.contract import PrivacyLeakWarning
from winsor.rules import Flat
from winsor.tails import DebugMonitor, PrivateMonitor

WARM_UP = 5


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def start(rule: object, steps: int) -> winsor.PrivateTraining:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4096, 1, 28, 28, generator=generator)
    labels = torch.randint(0, 10, (4096,), generator=generator)
    model = network()
    return winsor.make_private(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=TensorDataset(images, labels),
        rule=rule,
        noise_multiplier=1.0,
        delta=1e-5,
        batch_size=256,
        steps=steps,
        seed=0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/tails_monitor.json")
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        rules = {
            "plain": Flat(1.0),
            "private": PrivateMonitor(Flat(1.0)),
            "debug": DebugMonitor(Flat(1.0)),
        }
    steps = arguments.steps + WARM_UP
    runs = {name: start(rule, steps) for name, rule in rules.items()}
    loops = {name: run.batches() for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for step in range(steps):
        names = list(runs)
        for name in names[step % 3 :] + names[: step % 3]:  # nobody is always first
            run = runs[name]
            begin = time.process_time()
            images, labels = next(loops[name])
            run.step(F.cross_entropy(run.model(images), labels, reduction="none"))
            times[name].append(time.process_time() - begin)
    medians = {name: float(np.median(taken[WARM_UP:])) for name, taken in times.items()}
    pairs = {
        name: float(np.median(np.array(times[name]) / np.array(times["plain"])))
        for name in ("private", "debug")
    }
    for name, seconds in medians.items():
        print(f"{name:<8} {1000 * seconds:7.2f} ms CPU per step")
    for name, ratio in pairs.items():
        print(f"{name:<8} {100 * (ratio - 1):+6.2f} % (median of paired ratios)")
    report = {"cpu_seconds": medians, "paired_ratio": pairs, "steps": arguments.steps}
    save(arguments.output.stem, report, arguments.output.parent)


if __name__ == "__main__":
    main()
