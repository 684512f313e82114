"""Kill one rank or all at random moments; resume on as many ranks or on others.

    .venv/bin/python benchmarks/ranks_durability.py --kills 50

Two or three ranks under gloo, plain, in DDP and in FSDP2 by turns, the last with checkpoints in one
file and in shards, are killed with SIGKILL and resumed (`tests/support/rank_kills.py`).
On as many ranks, weights and ledger must be bit by bit those of a run that nobody interrupted; on
another number the run goes on, with new randomness where steps after its checkpoint are in the
ledger. The ledger on disk must never know fewer releases than ranks have drawn noise for. Call it
again to go on: trials that were made under the same commit are kept. `--anew` forgets them. Writes
benchmarks/results/ranks_durability.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from saving import FOLDER, made_by, save

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

NAME = "ranks_durability"
EVERY = 2
"""Trials between two writes of the result."""


def fresh() -> dict[str, Any]:
    names = ("trials", "kills", "in_the_middle", "well", "bit_equal", "new_randomness")
    names += ("entries_lost",)
    return {**dict.fromkeys(names, 0), "bad": [], "ranks": {}, "models": {}, "at": {}}


def earlier(anew: bool, folder: Path) -> dict[str, Any]:
    """What the same commit has done already."""
    path = folder / f"{NAME}.json"
    if not anew and path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        if found.pop("made_by") == made_by():
            return found
    return fresh()


def add(total: dict[str, Any], row: dict[str, Any]) -> None:
    same = row["world"] == row["after"]
    total["trials"] += 1
    total["kills"] += row["kills"]
    total["in_the_middle"] += row["kills"] and 0 < row["entries"] < 12
    total["well"] += row["well"]
    total["bit_equal"] += row["well"] and same
    total["new_randomness"] += not row["repeated"]
    total["entries_lost"] += row["lost"]
    if row["lost"] or not row["well"]:
        total["bad"].append(row)
    who = "all ranks" if row["who"] == "all" else "rank 0" if row["who"] == "0" else "another rank"
    for names, name in (
        (total["ranks"], f"{row['world']} -> {row['after']}"),
        (total["models"], row["wrapper"]),
        (total["at"], f"{who}, {row['at']}"),
    ):
        names[name] = names.get(name, 0) + row["kills"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    from rank_kills import trials

    total = earlier(options.anew, options.output)
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else None) as folder:
        rows = trials(Path(folder), options.kills - total["kills"], first=total["trials"])
        for row in rows:
            add(total, row)
            if total["trials"] % EVERY == 0:
                save(NAME, total, options.output)
                print(f"{total['kills']} kills, {len(total['bad'])} bad", flush=True)
    save(NAME, total, options.output)
    print(
        f"{total['kills']} kills in {total['trials']} trials, {total['in_the_middle']} of them "
        f"between the first step and the last: {total['well']} ended well, "
        f"{total['bit_equal']} of them bit-equal on as many ranks, {total['new_randomness']} with "
        f"new randomness, {total['entries_lost']} entries lost"
    )
    for row in total["bad"]:
        print(row)
    sys.exit(1 if total["bad"] else 0)


if __name__ == "__main__":
    main()
