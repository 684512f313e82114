"""How fast several ranks are: against one, against plain DDP, and against the model of the docs.

    .venv/bin/python benchmarks/ranks_speed.py
    .venv/bin/python benchmarks/ranks_speed.py --worlds 2 --timed-steps 4 --turns 5

Rows per second of 1, 2 and 4 ranks with one core each, by turns: private, plain DDP, and plain
processes that exchange nothing, which is what the machine can give. A rank is kept on its core with
all of its threads: else a rank alone would have its noise drawn by the core of another. On the
wall, for a machine with nothing else to do; and by processor time, which waiting does not enter and
others disturb less.

The model of docs/several-processes.md, T(W) = a B/W + c + what ranks exchange, is fitted to one
process at B, B/2 and B/4 rows (a and c) and to single exchanges, and compared with steps of W
ranks. Processes that exchange nothing slow each other down, too, where they share caches and cores:
where W of them get s times the work of one done, a B/W + c takes W/s times as long; and a row takes
them more processor time. With --keep-memory no process gives memory back to the system, on either
side (`step_time.py` says why). Writes benchmarks/results/ranks_speed.json; tasks and modes that are
not asked for stay.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models import TASKS, Task
from saving import FOLDER, save
from step_time import KEEP_MEMORY
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import winsor
from winsor.training.ranks.ranks import Ranks

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import rank_jobs as jobs

NAME = "ranks_speed"
TIMED = ("CNN 28x28", "GPT 4x256")
WAYS = ("private", "plain", "apart")
CLOCKS = {"wall": time.perf_counter, "work": time.process_time}
PARTS = (2, 4)
"""Of a batch, that one process does alone: what a rank of so many has to do."""
PATIENCE = 3600.0

Times = dict[str, list[float]]

# ---------------------------------------------------------------------------------- in a process


def data_of(task: Task, batches: int) -> TensorDataset:
    torch.manual_seed(0)
    return TensorDataset(*task.batch(batches * task.batch_size))


def private_steps(task: Task, size: int) -> Callable[[int], int]:
    """Does private steps of ``size`` rows of all ranks, and says how many this rank had."""
    torch.manual_seed(1)
    model = task.model()
    private = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        dataset=data_of(task, 20), rule=winsor.rules.Flat(1.0), batch_size=size,
        steps=10_000, noise_multiplier=1.0, delta=1e-5, seed=3, allow_large_delta=True,
    )  # fmt: skip

    def run(steps: int) -> int:
        rows = 0
        for batch in private.batches(steps):
            rows += len(batch[0])
            private.step(task.losses(model, batch))
        return rows

    return run


def plain_steps(task: Task, apart: bool = False) -> Callable[[int], int]:
    """The same without privacy: DDP on as many rows. ``apart``, nothing is exchanged."""
    torch.manual_seed(1)
    several = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
    world = torch.distributed.get_world_size() if several else 1
    model = task.model()
    shown = DistributedDataParallel(model) if several and not apart else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    size = task.batch_size // world
    tensors = data_of(task, 20).tensors

    def run(steps: int) -> int:
        for _ in range(steps):
            rows = torch.randint(len(tensors[0]), (size,))
            optimizer.zero_grad()
            task.losses(shown, tuple(tensor[rows] for tensor in tensors)).mean().backward()
            optimizer.step()
        return steps * size

    return run


def stay_on_core(rank: int) -> None:
    """This process with the threads it has (those of gloo) and will have (that of the noise)."""
    cores = sorted(os.sched_getaffinity(0))
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {cores[rank % len(cores)]})


def timed(rank: int, name: str, steps: int, turns: int) -> dict[str, Times]:
    """Seconds per row of this rank by both clocks, ways by turns; and of what ranks exchange."""
    stay_on_core(rank)
    task = next(task for task in TASKS if task.name == name)
    runs = {
        "private": private_steps(task, task.batch_size),
        "plain": plain_steps(task),
        "apart": plain_steps(task, apart=True),
    }
    if Ranks.here() is None:
        runs |= {f"1/{part}": private_steps(task, task.batch_size // part) for part in PARTS}
    found: dict[str, Times] = {way: {clock: [] for clock in CLOCKS} for way in runs}
    for turn in range(turns + 1):
        for way, run in runs.items():
            begun = {clock: now() for clock, now in CLOCKS.items()}
            rows = run(steps)
            if turn:  # the first turn warms up
                for clock, now in CLOCKS.items():
                    found[way][clock].append((now() - begun[clock]) / max(1, rows))
    return found | exchanges(task.model())


def exchanges(model: nn.Module) -> dict[str, Times]:
    """Seconds of adding up a gradient over ranks, and of the word that goes with a release."""
    ranks = Ranks.here()
    if ranks is None:
        return {name: {clock: [0.0] for clock in CLOCKS} for name in ("all_reduce", "words")}
    sums = {"grad": {name: torch.zeros(p.shape) for name, p in model.named_parameters()}}
    acts = {
        "all_reduce": lambda: ranks.add_up(sums),
        "words": lambda: ranks.same_release("run", 0, "00" * 16),
    }
    found: dict[str, Times] = {name: {clock: [] for clock in CLOCKS} for name in acts}
    for name, act in acts.items():
        for _ in range(20):
            torch.distributed.barrier()
            begun = {clock: now() for clock, now in CLOCKS.items()}
            act()
            for clock, now in CLOCKS.items():
                found[name][clock].append(now() - begun[clock])
    return found


# ------------------------------------------------------------------------------------ all of them


def fitted(alone: dict[str, Times], size: int, clock: str) -> tuple[float, float]:
    """Seconds per row, a, and per step, c, of one process: least squares over three sizes."""
    sizes = [size, *(size // part for part in PARTS)]
    ways = ["private", *(f"1/{part}" for part in PARTS)]
    steps = [n * statistics.median(alone[way][clock]) for n, way in zip(sizes, ways, strict=True)]
    each, once = np.polyfit(sizes, steps, 1)
    return float(each), float(once)


def middle(found: list[dict[str, Times]], what: str, clock: str) -> float:
    """Over ranks, the mean of what is the middle on each."""
    return statistics.mean(statistics.median(rank[what][clock]) for rank in found)


def row_of(
    task: Task, world: int, found: list[dict[str, Times]], one: dict[str, Times]
) -> dict[str, Any]:
    """Rates of ``world`` ranks, and step times measured and modelled."""
    rate, first = (
        {way: sum(1 / statistics.median(rank[way]["wall"]) for rank in ranks) for way in WAYS}
        for ranks in (found, [one])
    )
    share = rate["apart"] / first["apart"]  # of one process' work, that so many get done
    work = {way: middle(found, way, "work") for way in WAYS}
    alone = {way: middle([one], way, "work") for way in WAYS}
    modelled = {}
    for clock, slower in {"wall": world / share, "work": work["apart"] / alone["apart"]}.items():
        each, once = fitted(one, task.batch_size, clock)
        sent = middle(found, "all_reduce", clock) + middle(found, "words", clock)
        modelled[clock] = (each * task.batch_size / world + once) * slower + sent
    each, once = fitted(one, task.batch_size, "work")
    return {
        "task": task.name, "world": world, "one_core_each": True,
        "rows_per_second": round(rate["private"], 1),
        "plain_rows_per_second": round(rate["plain"], 1),
        "overhead": round(rate["plain"] / rate["private"], 3),
        "against_one": round(rate["private"] / first["private"], 3),
        "plain_against_one": round(rate["plain"] / first["plain"], 3),
        "apart_against_one": round(share, 3),
        "overhead_of_work": round(work["private"] / work["plain"], 3),
        "against_one_by_work": round(world * alone["private"] / work["private"], 3),
        "plain_against_one_by_work": round(world * alone["plain"] / work["plain"], 3),
        "apart_against_one_by_work": round(world * alone["apart"] / work["apart"], 3),
        "a_ms_per_row": round(1e3 * each, 4), "c_ms": round(1e3 * once, 2),
        "all_reduce_ms": round(1e3 * middle(found, "all_reduce", "wall"), 2),
        "words_ms": round(1e3 * middle(found, "words", "wall"), 2),
        "step_ms": round(1e3 * task.batch_size / rate["private"], 1),
        "modelled_step_ms": round(1e3 * modelled["wall"], 1),
        "work_ms_per_step": round(1e3 * work["private"] * task.batch_size / world, 1),
        "modelled_work_ms": round(1e3 * modelled["work"], 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", nargs="*", type=int, default=[2, 4])
    parser.add_argument("--tasks", nargs="*", choices=TIMED, default=list(TIMED))
    parser.add_argument("--timed-steps", type=int, default=10)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--keep-memory", action="store_true")
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    path = options.output / f"{NAME}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    kept = options.keep_memory
    rows = [
        row
        for row in rows
        if row["task"] not in options.tasks or row.get("keep_memory", False) != kept
    ]
    if kept:
        os.environ.update(KEEP_MEMORY)  # for the processes of the ranks, which are begun below
    for name in options.tasks:
        task = next(task for task in TASKS if task.name == name)
        one: list[Any] = []
        for world in (1, *options.worlds):
            asked = (name, options.timed_steps, options.turns)
            found = jobs.on_ranks(world, timed, *asked, patience=PATIENCE)
            if any(isinstance(rank, str) for rank in found):
                raise RuntimeError(f"{name} on {world} ranks: {found}")
            one = one or found
            rows.append({**row_of(task, world, found, one[0]), "keep_memory": kept})
            print(rows[-1], flush=True)
            save(NAME, {"rows": rows}, options.output)


if __name__ == "__main__":
    main()
