"""Time of a whole private step against plain PyTorch SGD on the same batch, one thread.

    .venv/bin/pip install -e '.[bench]' && .venv/bin/python benchmarks/step_time.py

One process per framework. In each, rounds of plain steps and of the framework's steps take turns on
every model, at least seven, so that both meet the same machine; the figure is the ratio of the
medians, beside the median of the rounds' own ratios and the ratio of the minima. Writes
benchmarks/results/step_time.json and prints a table. Also measures growth: time of a winsor step as
the batch and the depth double.

    --seconds S        time per model and framework
    --frameworks, --tasks   select (comma separated parts of names); `more` among the tasks adds
                       transformers of other lengths, batches and vocabularies, and LoRA
    --feed             a user's own loop: drawing the batch is counted too, on both sides
    --pin              everything on one core: background noise competes with the step
    --cpu              processor time of the stepping thread, for machines that are busy
    --keep-memory      no step gives memory back to the system, on either side: page faults, of
                       which one side may have thousands by chance, are not part of the ratio
    --against DIR      another checkout of winsor takes turns with this one, as "(before)"
    --turns N          all of it N times, in turns; the figure of a row is then the median of its
                       ratios, which are kept: two checkouts are compared over the same minutes
    --save NAME        another file in benchmarks/results
    --merge            keep the rows of other models and frameworks that the file has from earlier
                       pieces of the same measurement; every row names its own commit and load
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from saving import FOLDER, made_by, save

os.environ.setdefault("OMP_NUM_THREADS", "1")
REACH = {
    "linear 784-10": 1.10,
    "MLP 784-128-10": 1.20,
    "CNN 28x28": 1.00,
    "ResNet-20": 1.05,
    "GPT 4x256": 1.05,
    "embedding 20kx64": 1.70,
    "LoRA 4x256": 1.02,
}
ROUNDS = 7
KEEP_MEMORY = {name: str(1 << 33) for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")}
"""Tells glibc to keep what is freed, for blocks of any size."""
Clock = Callable[[], float]


def take_turns(
    steps: dict[str, Any], seconds: float, clock: Clock, feed: bool = False
) -> dict[str, list[list[float]]]:
    """Times of single steps, round by round; the contenders alternate in blocks of about 30 ms."""
    times: dict[str, list[list[float]]] = {name: [] for name in steps}
    for prepare, step in steps.values():
        for _ in range(3):
            prepare()
            step()
    end = time.perf_counter() + seconds
    count = 1
    while time.perf_counter() < end or len(times["plain"]) < ROUNDS:
        for name, (prepare, step) in steps.items():
            times[name].append([])
            for _ in range(count):
                begin = clock()
                prepare()
                begin = begin if feed else clock()
                step()
                times[name][-1].append(clock() - begin)
        count = max(1, min(100, int(0.03 / statistics.median(times["plain"][-1]))))
    return times


def figures(times: dict[str, list[list[float]]], framework: str) -> dict[str, Any]:
    """What is saved of one framework on one model."""
    flat = {name: [t for block in blocks for t in block] for name, blocks in times.items()}
    medians = {name: statistics.median(values) for name, values in flat.items()}
    pairs = zip(times[framework], times["plain"], strict=True)
    rounds = [statistics.median(ours) / statistics.median(theirs) for ours, theirs in pairs]
    return {
        "plain_ms": 1e3 * medians["plain"],
        "step_ms": 1e3 * medians[framework],
        "ratio": medians[framework] / medians["plain"],
        "median_of_round_ratios": statistics.median(rounds),
        "ratio_of_minima": min(flat[framework]) / min(flat["plain"]),
        "rounds": len(rounds),
        "steps": len(flat[framework]),
    }


def chosen(wanted: list[str]) -> list[Any]:
    from models import MORE_TASKS, TASKS

    tasks = [*TASKS, *MORE_TASKS] if "more" in wanted else list(TASKS)
    parts = [part for part in wanted if part != "more"] or [""]
    return [task for task in tasks if any(part in task.name for part in parts)]


def measure(
    framework: str, wanted: list[str], seconds: float, clock: Clock, feed: bool
) -> list[dict[str, Any]]:
    import frameworks
    import torch

    torch.set_num_threads(1)
    rows = []
    for task in chosen(wanted):
        row: dict[str, Any] = {"model": task.name, "framework": framework}
        try:
            steps = {
                "plain": frameworks.build("plain", task),
                framework: frameworks.build(framework, task),
            }
            row |= figures(take_turns(steps, seconds, clock, feed), framework)
        except Exception as error:  # a framework that refuses a model is a result too
            row["refused"] = f"{type(error).__name__}: {error}"[:300]
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
        found = figures(times, "winsor flat")
        kept = {name: found[name] for name in ("plain_ms", "step_ms")}
        rows.append({"batch": batch, "depth": depth, **kept})
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


def in_own_process(arguments: list[str], checkout: str | None = None) -> list[dict[str, Any]]:
    environment = dict(os.environ)
    if checkout is not None:
        environment["PYTHONPATH"] = str(Path(checkout).resolve())
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def before(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"framework": f"{row['framework']} (before)"} for row in rows]


def noted(rows: list[dict[str, Any]], commit: str) -> list[dict[str, Any]]:
    """Pieces of one measurement may be taken at different times: each row says when."""
    load = [round(value, 2) for value in os.getloadavg()]
    return [row | {"commit": commit, "load": load} for row in rows]


def commit_of(checkout: str) -> str:
    words = ["git", "-C", checkout, "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def over_turns(turns: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row per model and framework: the one with the median ratio, and the ratios of all."""
    if len(turns) == 1:
        return turns[0]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in (row for turn in turns for row in turn):
        found.setdefault((row["model"], row["framework"]), []).append(row)
    rows = []
    for several in found.values():
        timed = sorted((row for row in several if "ratio" in row), key=lambda row: row["ratio"])
        if timed:
            ratios = [round(row["ratio"], 4) for row in several]
            middle = timed[(len(timed) - 1) // 2]
            rows.append(middle | {"ratio": statistics.median(ratios), "turns": ratios})
        else:
            rows.append(several[0])
    return rows


def merged(result: dict[str, Any], path: Path) -> dict[str, Any]:
    """``result`` with the rows of an earlier piece that it does not measure again."""
    earlier = json.loads(path.read_text()) if path.exists() else {}
    same = all(earlier.get(key) == result[key] for key in ("machine", "clock", "mode"))
    if earlier and not same:
        raise SystemExit(f"{path} must be of the same machine, clock and mode to be merged with.")
    fresh = {(row["model"], row["framework"]) for row in result["rows"]}
    kept = [
        row
        for row in earlier.get("rows", [])
        if (row["model"], row["framework"]) not in fresh and "commit" in row
    ]
    return result | {"rows": kept + result["rows"]}


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--frameworks", default="winsor,opacus")
    parser.add_argument("--tasks", default="")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--save", default="step_time")
    parser.add_argument("--against", help="another checkout of winsor")
    for switch in ("--cpu", "--feed", "--pin", "--keep-memory", "--no-growth", "--merge"):
        parser.add_argument(switch, action="store_true")
    parser.add_argument("--one", help="measure this framework here and print JSON")
    return parser.parse_args()


def here(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure one framework in this process."""
    if options.pin:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    clock = time.thread_time if options.cpu else time.perf_counter
    if options.one == "growth":
        return growth(options.seconds / 2, clock)
    return measure(options.one, options.tasks.split(","), options.seconds, clock, options.feed)


def one_turn(
    options: argparse.Namespace, common: list[str], frameworks: Sequence[str]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for framework in frameworks:
        if not any(part in framework for part in options.frameworks.split(",")):
            continue
        for task in chosen(options.tasks.split(",")):  # this checkout and the other take turns
            words = [*common, "--tasks", f"more,{task.name}", "--one", framework]
            if options.against:
                there = commit_of(options.against)
                rows += before(noted(in_own_process(words, options.against), there))
            rows += noted(in_own_process(words), made_by()["commit"])
        print(table(rows), "\n", flush=True)
    return rows


def main() -> None:
    options = asked()
    if options.one:
        print(json.dumps(here(options)))
        return
    from frameworks import FRAMEWORKS

    switches = [name for name in ("cpu", "feed", "pin") if getattr(options, name)]
    common = ["--seconds", str(options.seconds), *(f"--{name}" for name in switches)]
    if options.keep_memory:
        os.environ.update(KEEP_MEMORY)  # read where a process starts, as each measurement does
        switches.append("keep-memory")
    rows = over_turns([one_turn(options, common, FRAMEWORKS[1:]) for _ in range(options.turns)])
    result: dict[str, Any] = {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
        },
        "clock": "processor" if options.cpu else "wall",
        "mode": switches,
        "load": os.getloadavg(),
        "reach": REACH,
        "rows": rows,
    }
    if options.merge:
        result = merged(result, FOLDER / f"{options.save}.json")
    if not options.no_growth:
        result["growth"] = in_own_process([*common, "--one", "growth"])
        for row in result["growth"]:
            shape = f"GPT batch {row['batch']:2d} depth {row['depth']}"
            print(f"{shape}: {row['step_ms']:.1f} ms (plain {row['plain_ms']:.1f})")
    print(f"written to {save(options.save, result)}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
