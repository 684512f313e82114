"""What each rule costs: a whole private step over a plain SGD step, on a CNN and on an MLP.

    .venv/bin/python benchmarks/rule_cost.py
    .venv/bin/python benchmarks/rule_cost.py --models MLP,CNN,ResNet --rules flat,value

All rules and plain SGD take turns in one process, one thread, in blocks, so that they meet the same
machine; the figure is the ratio of the medians of processor time, the noise thread included. Writes
benchmarks/results/rule_cost.json, or rule_cost_chosen.json where rules or models were chosen.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
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
    "value": lambda: rules.Value(1.0),
    "value forward": lambda: rules.Value(1.0, form="forward"),
    "dc norm": dc("norm", threshold=3.0),
    "dc loss": dc("loss", threshold=1.0),
    "dc trace k=200": dc("trace"),
    "dc rank": dc("rank", rank_by="norm"),
    "dc random": dc("random"),
}


def measure(model: str, names: Sequence[str], seconds: float) -> dict[str, float]:
    """Median seconds of a step, by rule."""
    task = next(task for task in TASKS if task.name == model)
    steps = {"plain": frameworks.build("plain", task)}
    for name in names:
        frameworks.RULES[name] = RULES[name]
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
                begin = time.process_time()
                step()
                times[name].append(time.process_time() - begin)
        count = max(1, min(20, int(0.03 / statistics.median(times["plain"]))))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="per rule and model")
    parser.add_argument("--models", help="parts of names, comma separated")
    parser.add_argument("--rules", help="names, comma separated")
    options = parser.parse_args()
    torch.set_num_threads(1)
    models: Sequence[str] = MODELS
    if options.models:
        parts = options.models.split(",")
        models = [task.name for task in TASKS if any(part in task.name for part in parts)]
    names = options.rules.split(",") if options.rules else list(RULES)
    found = {model: measure(model, names, options.seconds) for model in models}
    ratios = {
        model: {name: value / times["plain"] for name, value in times.items()}
        for model, times in found.items()
    }
    chosen = bool(options.models or options.rules)
    save(
        "rule_cost_chosen" if chosen else "rule_cost", {"seconds": found, "ratio_to_plain": ratios}
    )
    print("rule".ljust(16) + "".join(model.rjust(18) for model in models))
    for name in names:
        print(name.ljust(16) + "".join(f"{ratios[model][name]:18.2f}" for model in models))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
