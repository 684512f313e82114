"""Peak memory of a step beyond what the process held before it, against plain PyTorch SGD.

    .venv/bin/pip install -e '.[bench]' && .venv/bin/python benchmarks/memory.py

One process per framework and model (Linux only: it resets and reads the kernel's own high-water
mark of resident memory). The allocator is told to return memory at once, so that what was freed
before the step cannot hide what the step takes. The figure is the median over steps of
(high-water mark during the step - resident memory before it), as a ratio to plain.
Writes benchmarks/results/memory.json and prints a table. `--large` adds transformers of
100 M and 350 M parameters; `--frameworks` and `--tasks` select (comma separated parts of names).
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
from pathlib import Path
from typing import Any

from saving import made_by, save

RESULTS = Path(__file__).parent / "results" / "memory.json"
REACH = {
    "CNN 28x28": 1.03,
    "ResNet-20": 1.20,
    "GPT 4x256": 1.08,
    "embedding 20kx64": 2.0,
    "GPT 12x768 (100 M)": 1.10,
    "GPT 26x1024 (350 M)": 1.10,
}
RETURN_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "0",
    "MALLOC_TOP_PAD_": "0",
    "OMP_NUM_THREADS": "1",
}
MIB = 1024.0


def resident(field: str) -> float:
    """MiB of VmRSS or VmHWM."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return float(line.split()[1]) / MIB
    raise RuntimeError(f"no {field} in /proc/self/status")


def measure(framework: str, name: str, steps: int) -> float:
    import frameworks
    import torch
    from models import LARGE, LARGER, TASKS

    torch.set_num_threads(1)
    task = next(task for task in (*TASKS, LARGE, LARGER) if task.name == name)
    prepare, step = frameworks.build(framework, task)
    libc = ctypes.CDLL("libc.so.6")
    peaks = []
    for i in range(steps + 2):
        prepare()
        gc.collect()
        libc.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        before = resident("VmRSS")
        step()
        if i >= 2:
            peaks.append(resident("VmHWM") - before)
    return statistics.median(peaks)


def in_own_process(framework: str, name: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", framework, "--tasks", name]
    environment = {**os.environ, **RETURN_MEMORY}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    row: dict[str, Any] = {"model": name, "framework": framework, "commit": made_by()["commit"]}
    if done.returncode != 0:
        row["refused"] = done.stderr.strip().splitlines()[-1][:300]
    else:
        row["peak_mib"] = float(done.stdout.splitlines()[-1])
    return row


def table(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(row["framework"] for row in rows))
    models = list(dict.fromkeys(row["model"] for row in rows))
    header = "peak MiB (ratio)".ljust(20) + "".join(name.rjust(19) for name in names) + "   reach"
    lines = [header]
    for model in models:
        found = {row["framework"]: row.get("peak_mib") for row in rows if row["model"] == model}
        cells = []
        for name in names:
            peak, base = found.get(name), found.get("plain")
            cells.append("-" if peak is None or not base else f"{peak:.1f} ({peak / base:.2f})")
        reach = f"{REACH[model]:.2f}" if model in REACH else ""
        lines.append(model.ljust(20) + "".join(cell.rjust(19) for cell in cells) + reach.rjust(8))
    return "\n".join(lines)


def main() -> None:
    from frameworks import FRAMEWORKS
    from models import LARGE, LARGER, TASKS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frameworks", default="winsor,opacus")
    parser.add_argument("--tasks", default="")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--one", help="measure this framework here and print MiB")
    options = parser.parse_args()
    if options.one:
        print(
            measure(
                options.one, options.tasks, 1 if options.tasks in (LARGE.name, LARGER.name) else 4
            )
        )
        return
    wanted, parts = options.tasks.split(","), options.frameworks.split(",")
    rows: list[dict[str, Any]] = []
    for task in (*TASKS, *([LARGE, LARGER] if options.large else [])):
        if not any(part in task.name for part in wanted):
            continue
        for framework in FRAMEWORKS:
            if framework == "plain" or any(part in framework for part in parts):
                rows.append(in_own_process(framework, task.name))
        print(table(rows), "\n", flush=True)
        keep(rows)
    print(f"written to {RESULTS}")


def keep(rows: list[dict[str, Any]]) -> None:
    """Save; what was not measured now stays, with the commit that it was measured at."""
    measured = {(row["model"], row["framework"]) for row in rows}
    known: list[dict[str, Any]] = []
    if RESULTS.exists():
        known = json.loads(RESULTS.read_text())["rows"]
    known = [row for row in known if (row["model"], row["framework"]) not in measured]
    save("memory", {"reach": REACH, "rows": rows + known})


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
