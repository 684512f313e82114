"""Memory of a rank: plain data parallelism against FSDP2, in copies of the model.

    .venv/bin/python benchmarks/ranks_memory.py

An MLP of 12.6 million values with Adam, private, on 1, 2 and 4 ranks (gloo), four steps of 16 rows.
Resident memory beyond what a rank held before it built the model, over the bytes of the weights:
between two steps, and the largest during a step. Rank 0 of each run. Writes
benchmarks/results/ranks_memory.json.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path
from typing import Any

import torch
from memory import RETURN_MEMORY, resident
from saving import save
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import rank_jobs as jobs

NAME = "ranks_memory"
WIDTH, DEPTH, STEPS = 1024, 12, 4
RUNS = (("none", 1), ("none", 2), ("fsdp", 2), ("none", 4), ("fsdp", 4))


def measured(rank: int, wrapper: str) -> dict[str, float]:
    libc = ctypes.CDLL("libc.so.6")

    def settled() -> float:
        gc.collect()
        libc.malloc_trim(0)
        return resident("VmRSS")

    x = torch.randn(400, WIDTH, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    empty = settled()
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))
    weights = sum(p.numel() for p in model.parameters()) * 4 / 2**20
    shown = jobs.wrapped(model, wrapper)
    private = winsor.make_private(
        model=shown, optimizer=torch.optim.Adam(shown.parameters(), lr=1e-3), dataset=data,
        rule=winsor.rules.Flat(1.0), batch_size=16, steps=STEPS, noise_multiplier=1.0,
        delta=1e-4, seed=1,
    )  # fmt: skip
    peak = between = 0.0
    for rows, labels in private.batches():
        between = settled()
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        private.step(F.cross_entropy(shown(rows), labels, reduction="none"))
        peak = resident("VmHWM")
    return {"between": (between - empty) / weights, "peak": (peak - empty) / weights}


def main() -> None:
    os.environ |= RETURN_MEMORY
    rows: list[dict[str, Any]] = []
    for wrapper, world in RUNS:
        found = jobs.on_ranks(world, measured, wrapper)
        if isinstance(found[0], str):
            raise RuntimeError(found[0])
        rows.append({
            "model": wrapper, "world": world,
            "copies_between_steps": round(found[0]["between"], 2),
            "copies_at_the_peak": round(found[0]["peak"], 2),
        })  # fmt: skip
        print(rows[-1], flush=True)
    save(NAME, {"values": DEPTH * (WIDTH + 1) * WIDTH, "rows": rows})


if __name__ == "__main__":
    main()
