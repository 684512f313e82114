"""Two hundred run directories that somebody changed, and two hundred that nobody did.

    .venv/bin/python benchmarks/tampering.py --count 200

Honest runs of several kinds (rules, mechanisms, samplings, kept checkpoints, stopped ones) are made
once, copied, and changed in one of the ways of tests/support/tampering.py. `winsor verify` must
find every change and raise no alarm for an honest run, of which each has a seed of its own. Writes
benchmarks/results/tampering.json.
"""

from __future__ import annotations

import argparse
import collections
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from saving import save

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from tampering import KINDS, honest_runs, tampered
from tiny_runs import table

from winsor.app.runs.config import from_table
from winsor.app.runs.execute import execute
from winsor.app.runs.progress import Quiet
from winsor.app.runs.verifying import disagreements


def false_alarms(count: int, folder: Path) -> list[list[str]]:
    """What is said against honest runs."""
    found = []
    for number in range(count):
        kind = sorted(KINDS)[number % len(KINDS)]
        settings = table(**KINDS[kind]) | {"seed": number, "name": f"honest {number}"}
        settings["training"] = {k: v for k, v in settings["training"].items() if v is not None}
        path = folder / f"honest-{number}"
        execute(from_table(settings), path, Quiet())
        found += [[kind, line] for line in disagreements(path)]
        shutil.rmtree(path)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        runs = honest_runs(Path(folder, "honest"))
        detected, missed = collections.Counter(), []
        for number in range(options.count):
            name, way, path = tampered(runs, number, Path(folder, "tampered"))
            if disagreements(path):
                detected[way] += 1
            else:
                missed.append([number, name, way])
            shutil.rmtree(path)
        alarms = false_alarms(options.count, Path(folder, "more"))
    found = sum(detected.values())
    print(f"{found} of {options.count} found, {len(alarms)} alarms for {options.count} honest runs")
    for line in [*missed, *alarms]:
        print("   ", *line)
    result = {"tampered": options.count, "found": found, "missed": missed, "by_way": dict(detected)}
    save("tampering", {**result, "honest": options.count, "false_alarms": alarms})


if __name__ == "__main__":
    main()
