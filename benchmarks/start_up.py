"""How long a process takes to begin: imports, help, refusals, the first step of `winsor train`.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/start_up.py            # 7 rounds, about 3 minutes

Writes benchmarks/results/start_up.json: processor seconds (user and system) of whole processes,
medians and minima over interleaved rounds, because a shared machine spoils wall clocks. Floors are
measured in the same rounds: a Python that does nothing, `import torch`, torch with its first
optimiser (which loads torch's compiler), and `import dp_accounting` (which loads scipy.stats).
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from saving import save

ROOT = Path(__file__).parent.parent
OPTIMISER = "import torch; torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)"
FIRST_BATCH = """
import os, sys
import winsor.training.loop as loop
step = loop.PrivateTraining.step
def last(*arguments, **options):  # a batch has arrived
    if sys.argv[2] == "updated":
        step(*arguments, **options)
    os._exit(0)
loop.PrivateTraining.step = last
from winsor.app.commands.main import main
main(["train", "examples/digits.toml", "--run", sys.argv[1], "--quiet"])
"""
REACH = {
    "import winsor": 0.15,
    "winsor --help": 0.2,
    "winsor train, first batch": 2.0,
}


def commands(folder: str) -> dict[str, list[str]]:
    return {
        "floor: python": ["-c", "pass"],
        "floor: import torch": ["-c", "import torch"],
        "floor: torch and an optimiser": ["-c", OPTIMISER],
        "floor: import dp_accounting": ["-c", "import dp_accounting"],
        "import winsor": ["-c", "import winsor"],
        "winsor --help": ["-m", "winsor", "--help"],
        "winsor reproduce list": ["-m", "winsor", "reproduce", "list"],
        "winsor train missing.toml": ["-m", "winsor", "train", f"{folder}/missing.toml"],
        "winsor verify missing": ["-m", "winsor", "verify", f"{folder}/missing"],
        "winsor train, first batch": ["-c", FIRST_BATCH, f"{folder}/run", "arrived"],
        "winsor train, first update": ["-c", FIRST_BATCH, f"{folder}/another", "updated"],
    }


def seconds(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for name, arguments in commands(folder).items():
                found.setdefault(name, []).append(seconds(arguments))
    rows = {}
    for name, values in found.items():
        rows[name] = {
            "median": round(statistics.median(values), 3),
            "least": round(min(values), 3),
            "over_torch": round(
                statistics.median(
                    v / t for v, t in zip(values, found["floor: import torch"], strict=True)
                ),
                2,
            ),
        }
        if name in REACH:
            rows[name]["reach"] = REACH[name]
        print(f"{name:32}", rows[name])
    load = os.getloadavg()[0]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}"
    save("start_up", {"rounds": rounds, "machine": machine, "processor_seconds": rows})


if __name__ == "__main__":
    main()
