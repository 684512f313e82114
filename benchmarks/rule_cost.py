"""What each rule costs: a whole private step over a plain SGD step, on a CNN and on an MLP.

    .venv/bin/python benchmarks/rule_cost.py

All rules and plain SGD take turns in one process, one thread, in blocks, so that they meet the same
machine; the figure is the ratio of the medians. Writes benchmarks/results/rule_cost.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from saving import save

os.environ.setdefault("OMP_NUM_THREADS", "1")

import frameworks
import torch
from models import TASKS

from winsor import rules
from winsor.rules.discriminative import Discriminative

MODELS = ("CNN 28x28", "MLP 784-128-10")


def dc(selection: str, **options: Any) -> Callable[[], Any]:
    return lambda: Discriminative(1.0, 0.3, selection=selection, **options)


RULES: dict[str, Callable[[], Any]] = {
    "flat": lambda: rules.Flat(1.0),
    "automatic": lambda: rules.Automatic(1.0),
    "nsgd": lambda: rules.NSGD(1.0),
    "psac": lambda: rules.PSAC(1.0, r=0.1),
    "per_layer": lambda: rules.PerLayer(1.0),
    "quantile": lambda: rules.Quantile(1.0),
    "linf p=25": lambda: rules.LInf(1.0, 25),
    "l1": lambda: rules.L1(1.0),
    "averaged": lambda: rules.Averaged(1.0),
    "microbatch 4": lambda: rules.Microbatch(1.0, size=4),
    "value": lambda: rules.Value(1.0),
    "dc norm": dc("norm", threshold=3.0),
    "dc loss": dc("loss", threshold=1.0),
    "dc trace k=200": dc("trace"),
    "dc rank": dc("rank", rank_by="norm"),
    "dc random": dc("random"),
}


def measure(model: str, seconds: float) -> dict[str, float]:
    """Median seconds of a step, by rule."""
    task = next(task for task in TASKS if task.name == model)
    steps = {"plain": frameworks.build("plain", task)}
    for name, rule in RULES.items():
        frameworks.RULES[name] = rule
        steps[name] = frameworks.build(name, task)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for prepare, step in steps.values():
        for _ in range(2):
            prepare()
            step()
    end, count = time.perf_counter() + seconds * len(steps), 1
    while time.perf_counter() < end or len(times["plain"]) < 5:
        for name, (prepare, step) in steps.items():
            for _ in range(count):
                prepare()
                begin = time.perf_counter()
                step()
                times[name].append(time.perf_counter() - begin)
        count = max(1, min(20, int(0.03 / statistics.median(times["plain"]))))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="per rule and model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {model: measure(model, options.seconds) for model in MODELS}
    ratios = {
        model: {name: value / times["plain"] for name, value in times.items()}
        for model, times in found.items()
    }
    save("rule_cost", {"seconds": found, "ratio_to_plain": ratios})
    print("rule".ljust(16) + "".join(model.rjust(18) for model in MODELS))
    for name in RULES:
        print(name.ljust(16) + "".join(f"{ratios[model][name]:18.2f}" for model in MODELS))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
