"""Would torch.compile pay? Plain training steps, eager and compiled, on one core.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/compiled.py            # about 5 minutes

A private run refuses compiled models: its engines read layers and graphs that a compiled region
fuses away. This measures what that costs: the ratio of a compiled plain step to an eager one, which
is the most that compiling the same model could give to a private run, and the seconds that the
first step takes. Blocks of both take turns in one process; processor time, medians.
Writes benchmarks/results/compiled.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from frameworks import fresh
from models import TASKS, Task
from saving import save

MODELS = ("MLP 784-128-10", "CNN 28x28", "GPT 4x256")


def plain_step(task: Task, compiled: bool) -> Callable[[], None]:
    model, batch, optimizer = fresh(task)
    called: Any = torch.compile(model) if compiled else model

    def step() -> None:
        task.losses(called, batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(step: Callable[[], None]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def measure(task: Task, rounds: int) -> dict[str, float]:
    eager, compiled = plain_step(task, False), plain_step(task, True)
    first = seconds(compiled)
    for _ in range(3):
        seconds(eager), seconds(compiled)
    pairs = [(seconds(eager), seconds(compiled)) for _ in range(rounds)]
    return {
        "eager_ms": 1e3 * statistics.median(a for a, _ in pairs),
        "compiled_ms": 1e3 * statistics.median(b for _, b in pairs),
        "ratio": statistics.median(b / a for a, b in pairs),
        "first_step_seconds": first,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    found = {}
    for name in MODELS:
        task = next(task for task in TASKS if task.name == name)
        found[name] = measure(task, rounds)
        print(name, found[name], flush=True)
        save("compiled", {"rounds": rounds, "plain_steps": found})


if __name__ == "__main__":
    main()
