"""Time of a whole private step against plain PyTorch SGD on the same batch, one thread.

    .venv/bin/pip install -e '.[bench]' && .venv/bin/python benchmarks/step_time.py

One process per framework. In each, blocks of plain steps and blocks of the framework's steps take
turns on every model, so that both meet the same machine; the figure is the ratio of the medians.
Writes benchmarks/results/step_time.json and prints a table. Also measures growth: time of a winsor
step as the batch and the depth double. `--seconds` bounds the time per model and framework,
`--frameworks` and `--tasks` select (comma separated parts of names), `--cpu` counts processor time
of the stepping thread instead of wall time, for machines that are busy with other work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from saving import save

os.environ.setdefault("OMP_NUM_THREADS", "1")
REACH = {
    "linear 784-10": 1.25,
    "MLP 784-128-10": 1.40,
    "CNN 28x28": 1.04,
    "ResNet-20": 1.15,
    "GPT 4x256": 1.10,
    "embedding 20kx64": 2.5,
}
Clock = Callable[[], float]


def take_turns(steps: dict[str, Any], seconds: float, clock: Clock) -> dict[str, list[float]]:
    """Times of single steps; the contenders alternate in blocks of about 30 ms."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for prepare, step in steps.values():
        for _ in range(3):
            prepare()
            step()
    end = time.perf_counter() + seconds
    count = 1
    while time.perf_counter() < end or len(times["plain"]) < 5:
        for name, (prepare, step) in steps.items():
            for _ in range(count):
                prepare()
                begin = clock()
                step()
                times[name].append(clock() - begin)
        count = max(1, min(100, int(0.03 / statistics.median(times["plain"]))))
    return times


def measure(
    framework: str, wanted: list[str], seconds: float, clock: Clock
) -> list[dict[str, Any]]:
    import frameworks
    import torch
    from models import TASKS

    torch.set_num_threads(1)
    rows = []
    for task in TASKS:
        if not any(part in task.name for part in wanted):
            continue
        row: dict[str, Any] = {"model": task.name, "framework": framework}
        try:
            steps = {
                "plain": frameworks.build("plain", task),
                framework: frameworks.build(framework, task),
            }
            times = take_turns(steps, seconds, clock)
        except Exception as error:  # a framework that refuses a model is a result too
            row["refused"] = f"{type(error).__name__}: {error}"[:300]
            rows.append(row)
            continue
        medians = {name: statistics.median(values) for name, values in times.items()}
        row["plain_ms"] = 1e3 * medians["plain"]
        row["step_ms"] = 1e3 * medians[framework]
        row["ratio"] = medians[framework] / medians["plain"]
        row["ratio_of_minima"] = min(times[framework]) / min(times["plain"])
        row["steps"] = len(times[framework])
        rows.append(row)
    return rows


def growth(seconds: float, clock: Clock) -> list[dict[str, Any]]:
    """Median step time of winsor flat as the batch, then the depth, doubles."""
    import frameworks
    import torch
    from models import GPT, Task, tokens

    torch.set_num_threads(1)
    rows = []
    for batch, depth in [(4, 2), (8, 2), (16, 2), (4, 4), (4, 8)]:
        task = Task("GPT", batch, lambda d=depth: GPT(d, 128, 4, 500, 64), tokens(500, 64))
        steps = {
            "plain": frameworks.build("plain", task),
            "winsor flat": frameworks.build("winsor flat", task),
        }
        times = take_turns(steps, seconds, clock)
        medians = {name: 1e3 * statistics.median(values) for name, values in times.items()}
        rows.append(
            {
                "batch": batch,
                "depth": depth,
                "plain_ms": medians["plain"],
                "step_ms": medians["winsor flat"],
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(row["framework"] for row in rows))
    models = list(dict.fromkeys(row["model"] for row in rows))
    lines = ["ratio to plain".ljust(18) + "".join(name.rjust(18) for name in names) + "   reach"]
    for model in models:
        found = {row["framework"]: row for row in rows if row["model"] == model}
        cells = [
            f"{found[name]['ratio']:.2f}" if "ratio" in found.get(name, {}) else "-"
            for name in names
        ]
        reach = f"{REACH[model]:.2f}" if model in REACH else ""
        lines.append(model.ljust(18) + "".join(cell.rjust(18) for cell in cells) + reach.rjust(8))
    return "\n".join(lines)


def in_own_process(arguments: list[str]) -> list[dict[str, Any]]:
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> None:
    from frameworks import FRAMEWORKS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--frameworks", default="winsor,opacus")
    parser.add_argument("--tasks", default="")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--one", help="measure this framework here and print JSON")
    options = parser.parse_args()
    clock = time.thread_time if options.cpu else time.perf_counter
    if options.one == "growth":
        print(json.dumps(growth(options.seconds / 2, clock)))
        return
    if options.one:
        print(json.dumps(measure(options.one, options.tasks.split(","), options.seconds, clock)))
        return
    passed = ["--seconds", str(options.seconds), "--tasks", options.tasks]
    passed += ["--cpu"] if options.cpu else []
    parts = options.frameworks.split(",")
    rows: list[dict[str, Any]] = []
    for framework in FRAMEWORKS[1:]:
        if any(part in framework for part in parts):
            rows += in_own_process([*passed, "--one", framework])
            print(table(rows), "\n", flush=True)
    grown = in_own_process([*passed, "--one", "growth"])
    for row in grown:
        shape = f"GPT batch {row['batch']:2d} depth {row['depth']}"
        print(f"{shape}: {row['step_ms']:.1f} ms (plain {row['plain_ms']:.1f})")
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    clock_name = "processor" if options.cpu else "wall"
    result = {
        "machine": machine,
        "clock": clock_name,
        "reach": REACH,
        "rows": rows,
        "growth": grown,
    }
    print(f"written to {save('step_time', result)}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
