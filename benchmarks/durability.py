"""Kill runs at random times and at every kind of system call; each must resume as if never stopped.

    .venv/bin/python benchmarks/durability.py --kills 500

Library loops, `winsor train` and `winsor compare` (`tests/support/killed_runs.py`) are killed with
SIGKILL, resumed, and compared bit by bit with a run that was not interrupted; after every kill, the
ledger on disk must know every release whose noise was drawn (`tests/support/killing.py`). Call it
again to go on: trials that were made under the same commit are kept. `--anew` forgets them. Writes
benchmarks/results/durability.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from saving import FOLDER, made_by, save

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

NAME = "durability"
EVERY = 20
"""Trials between two writes of the result."""


def fresh() -> dict[str, Any]:
    counts = dict.fromkeys(("trials", "kills", "bit_equal", "entries_lost"), 0)
    return {**counts, "bad": [], "runs": {}, "at": {}}


def earlier(anew: bool) -> dict[str, Any]:
    """What the same commit has done already."""
    path = FOLDER / f"{NAME}.json"
    if not anew and path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        if found.pop("made_by") == made_by():
            return found
    return fresh()


def add(total: dict[str, Any], row: dict[str, Any]) -> None:
    total["trials"] += 1
    total["kills"] += len(row["kills"])
    total["bit_equal"] += row["equal"]
    total["entries_lost"] += row["lost"]
    if row["lost"] or not row["equal"]:
        total["bad"].append(row)
    of_run = Counter(total["runs"].get(row["run"], {"trials": 0, "kills": 0, "bit_equal": 0}))
    of_run.update(trials=1, kills=len(row["kills"]), bit_equal=int(row["equal"]))
    total["runs"][row["run"]] = dict(of_run)
    for kill in row["kills"]:
        at = f"{kill['call']}, {kill['moment']}" if kill["call"] else "random time"
        total["at"][at] = total["at"].get(at, 0) + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--anew", action="store_true")
    options = parser.parse_args()
    from killing import trials

    total = earlier(options.anew)
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else None) as folder:
        rows = trials(Path(folder), options.kills - total["kills"], first=total["trials"])
        for row in rows:
            add(total, row)
            if total["trials"] % EVERY == 0:
                save(NAME, total)
                print(f"{total['kills']} kills, {len(total['bad'])} bad", flush=True)
    save(NAME, total)
    print(
        f"{total['kills']} kills in {total['trials']} trials of {len(total['runs'])} runs: "
        f"{total['bit_equal']} ended bit-equal, {total['entries_lost']} entries lost"
    )
    for row in total["bad"]:
        print(row)
    sys.exit(1 if total["bad"] else 0)


if __name__ == "__main__":
    main()
