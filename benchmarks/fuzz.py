"""A thousand damaged files of every format that winsor reads: one clear line each, and no more.

    .venv/bin/python benchmarks/fuzz.py --count 1000 [--format NAME]

Each format is met in a process of its own, so that a death would be seen; the process notes the
case before it meets it. The cases are those of tests/support/fuzzing.py, by number. Counts how each
command ended, the slowest case and the peak of memory over that of honest files. Writes
benchmarks/results/fuzz.json.
"""

from __future__ import annotations

import argparse
import collections
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from saving import FOLDER, save

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def meet_all(name: str, count: int, first: int, folder: Path) -> dict[str, Any]:
    """One format, in this process."""
    import torch
    from fuzzing import FAULTS, Material, meet

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    material = Material(folder / "honest")
    form = material.formats()[name]
    started, ends, faults, slowest = megabytes(), collections.Counter(), [], 0.0
    for number in range(first, first + count):
        (folder / "case").write_text(str(number))
        begun = time.perf_counter()
        found = meet(form, number, folder / "case-files")
        slowest = max(slowest, time.perf_counter() - begun)
        ends.update(end for end, _ in found)
        faults += [[number, end, words[-1500:]] for end, words in found if end in FAULTS]
    return {
        "files": count,
        "ends": dict(ends),
        "faults": faults,
        "slowest_seconds": round(slowest, 1),
        "memory_growth_mb": round(megabytes() - started),
    }


def in_own_process(name: str, count: int, first: int) -> dict[str, Any]:
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # thousands of fsyncs
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        command = [sys.executable, __file__, "--child", folder, "--format", name]
        command += ["--count", str(count), "--first", str(first)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return found
        case = Path(folder, "case")
        number = case.read_text() if case.exists() else "none"
    words = done.stderr[-2000:]
    return {"died": done.returncode, "case": number, "faults": [[number, "died", words]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--format", action="append")
    parser.add_argument("--child", type=Path)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(meet_all(options.format[0], options.count, options.first, options.child)))
        return
    from fuzzing import REPORTED, ROWS

    names = ["toml", *ROWS, "npy (tails)", "ledger", "checkpoint", *REPORTED, "compare.json"]
    path = FOLDER / "fuzz.json"
    for name in options.format or names:
        found = in_own_process(name, options.count, options.first)
        print(name, {key: found[key] for key in found if key != "faults"}, flush=True)
        for fault in found["faults"][:8]:
            print("   FAULT", *fault, flush=True)
        known = json.loads(path.read_text())["formats"] if path.exists() else {}
        save("fuzz", {"formats": known | {name: found}})


if __name__ == "__main__":
    main()
