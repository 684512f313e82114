"""How a private step grows: time and memory against batch, depth, parameters, vocabulary, sequence.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/growth.py            # about 4 minutes

Two processes per dimension (Linux only, as memory.py). At each size: the least processor time of a
private step under `Flat` over some steps, in a process that keeps what it freed (else page faults
are timed); and the kernel's high-water mark of resident memory during a step beyond what was there
before it, in one that returns it at once. A straight line is fitted to each; R^2 says how straight.
Width is counted in parameters, of which a linear layer has width squared. Sizes begin where one
thing makes the peak: below, small models keep rows that large ones never form.
Writes benchmarks/results/growth.json; dimensions that are not asked for (--only) stay.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from memory import RETURN_MEMORY, resident
from saving import FOLDER, save
from step_time import KEEP_MEMORY

SIZES: dict[str, tuple[int, ...]] = {
    "batch": (512, 768, 1024, 1536, 2048),  # from where rows, not parameters, make the peak
    "depth": (4, 8, 12, 16, 24),
    "parameters": (512, 640, 768, 896, 1024),  # widths, from where no layer keeps rows
    "vocabulary": (2000, 5000, 10_000, 15_000, 20_000),
    "sequence": (32, 64, 96, 128, 192),
}


def problem(dimension: str, size: int) -> tuple[Any, Any, int]:
    """(model, batch, what is on the axis)."""
    import torch
    from models import GPT
    from torch import nn

    def mlp(width: int, depth: int, rows: int) -> tuple[Any, Any]:
        layers: list[Any] = []
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(width, 10))
        return model, (torch.randn(rows, width), torch.randint(0, 10, (rows,)))

    torch.manual_seed(0)
    if dimension in ("batch", "depth", "parameters"):
        width = size if dimension == "parameters" else 512
        depth = size if dimension == "depth" else 4
        model, batch = mlp(width, depth, size if dimension == "batch" else 256)
        count = sum(p.numel() for p in model.parameters())
        return model, batch, count if dimension == "parameters" else size
    vocabulary = size if dimension == "vocabulary" else 1000
    length = size if dimension == "sequence" else 32
    tokens = torch.randint(0, vocabulary, (8, length))
    return GPT(2, 128, 4, vocabulary, length), (tokens, tokens), size


def measure(dimension: str, steps: int) -> list[dict[str, float]]:
    import torch
    from models import Task
    from torch import nn
    from torch.utils.data import TensorDataset

    import winsor

    torch.set_num_threads(1)
    libc, rows = ctypes.CDLL("libc.so.6"), []
    returning = RETURN_MEMORY.items() <= os.environ.items()
    for size in SIZES[dimension]:
        model, batch, place = problem(dimension, size)
        task: Any = Task("", len(batch[0]), nn.Module, lambda _: batch)  # noqa: B023
        run = winsor.make_private(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            dataset=TensorDataset(*batch),
            rule=winsor.rules.Flat(1.0),
            noise_multiplier=1.0,
            delta=1e-5,
            steps=10**6,
            batch_size=len(batch[0]),
            sampling=winsor.FullBatch(len(batch[0])),
        )
        times, peaks = [], []
        for drawn in run.batches(steps):
            gc.collect()
            if returning:
                libc.malloc_trim(0)
            before = resident("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
            start = time.process_time()
            run.step(task.losses(model, drawn))
            times.append(time.process_time() - start)
            peaks.append(resident("VmHWM") - before)
        peak = statistics.median(peaks[2:])  # the first two find their buffers
        rows.append({"x": place, "ms": 1e3 * min(times[2:]), "mib": peak})
    return rows


def line(rows: list[dict[str, float]], of: str) -> dict[str, float]:
    import numpy as np

    x, y = np.array([r["x"] for r in rows]), np.array([r[of] for r in rows])
    slope, start = np.polyfit(x, y, 1)
    rest = y - (slope * x + start)
    return {
        "slope": float(slope),
        "start": float(start),
        "r2": float(1 - (rest @ rest) / ((y - y.mean()) @ (y - y.mean()))),
    }


def in_own_process(dimension: str, steps: int, memory: dict[str, str]) -> list[dict[str, float]]:
    done = subprocess.run(
        [sys.executable, __file__, "--dimension", dimension, "--steps", str(steps)],
        env={**os.environ, **memory},
        check=True,
        capture_output=True,
        text=True,
    )
    rows: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--dimension", choices=SIZES, help="measure one, in this process")
    parser.add_argument("--only", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--steps", type=int, default=14)
    options = parser.parse_args()
    if options.dimension:
        print(json.dumps(measure(options.dimension, options.steps)))
        return
    path = FOLDER / "growth.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    found = {name: part for name, part in found.items() if name in SIZES}
    for dimension in options.only:
        timed = in_own_process(dimension, 3 * options.steps, KEEP_MEMORY)
        peaks = in_own_process(dimension, options.steps, RETURN_MEMORY)
        rows = [{**one, "mib": other["mib"]} for one, other in zip(timed, peaks, strict=True)]
        found[dimension] = {"time": line(rows, "ms"), "memory": line(rows, "mib"), "rows": rows}
        fits = {of: round(found[dimension][of]["r2"], 4) for of in ("time", "memory")}
        print(f"{dimension:12} R2 {fits}", flush=True)
        save("growth", {"steps": options.steps, "reach": 0.99, **found})


if __name__ == "__main__":
    main()
