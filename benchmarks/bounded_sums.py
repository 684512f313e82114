"""By how much can one hostile row move a bounded sum, in multiples of what is stated?

    python benchmarks/bounded_sums.py --save                   # 100,000 cases: at most 1 in each
    python benchmarks/bounded_sums.py --before DIR --save      # the same on another checkout
    python benchmarks/bounded_sums.py --resume --save          # go on where it was stopped

Case number i has the seed SEED + i and is made by `tests/support/hostile_rows.py`. The result keeps
for every family [cases, cases above 1, largest move, its seed, its part and bound]. One core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from saving import FOLDER, save

import winsor

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from hostile_rows import case, noted, nothing, outcome

NAME = "bounded_sums"


def beside(about: str) -> argparse.ArgumentParser:
    """A parser of the command line of a benchmark that can be put to another checkout."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--before", help="a checkout of the code before")
    parser.add_argument("--as", dest="place", default="", help=argparse.SUPPRESS)
    return parser


def elsewhere(script: str, directory: str, *words: str) -> str:
    """Run a benchmark with the winsor of another checkout, and return what it prints."""
    paths = os.pathsep.join(filter(None, [directory, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, script, *words, "--as", directory]
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(
        command, check=True, env=environment, stdout=subprocess.PIPE, text=True
    ).stdout


def swept(known: dict[str, Any], cases: int, keep: Any) -> dict[str, Any]:
    """Go on from ``known`` up to ``cases``."""
    while known["cases"] < cases:
        one = case(known["seed"] + known["cases"])
        noted(known, one, outcome(one))
        if known["cases"] % 1000 == 0:
            print(f"{known['cases']} cases, {known['above']} above 1", file=sys.stderr, flush=True)
            keep(known)
    return known


def main() -> None:
    parser = beside(__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    if asked.before:
        words = [word for word in ("resume", "save") if getattr(asked, word)]
        options = ["--cases", str(asked.cases), "--seed", str(asked.seed)]
        print(elsewhere(__file__, asked.before, *options, *(f"--{word}" for word in words)), end="")
        return
    torch.set_num_threads(1)
    assert asked.place in winsor.__file__, winsor.__file__
    path, which = FOLDER / f"{NAME}.json", "before" if asked.place else "now"
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    known = kept.get(which) if asked.resume else None

    where = ["git", "-C", str(Path(winsor.__file__).parent), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(where, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    def keep(found: dict[str, Any]) -> None:
        if asked.save:
            save(NAME, {**kept, which: {**found, "commit": commit}})

    found = swept(known or nothing(asked.seed), asked.cases, keep)
    keep(found)
    print(
        f"{which}: {found['above']} of {found['cases']} cases above 1, largest {found['largest']}"
    )
    raise SystemExit(0 if asked.place or not found["above"] else 1)


if __name__ == "__main__":
    main()
