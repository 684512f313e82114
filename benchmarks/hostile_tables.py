"""Fits with hostile rows, as many as are asked for: how far one row moves what is released.

    python benchmarks/hostile_tables.py --cases 100000 --save hostile.json

Every case is a name, a seed and a number of rows, so that the worst ones can be run again. A case
that ends in an exception, or moves more than 1, fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import hostile_tables

SIZES = (64, 64, 64, 4096)


def main() -> int:
    """Run the cases and save the worst of each name, and all that fail."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="a part of the names of the cases")
    parser.add_argument("--save", type=Path)
    asked = parser.parse_args()
    fits = {k: v for k, v in hostile_tables.cases().items() if asked.only in k}
    worst: dict[str, tuple[float, int, int]] = {}
    failed: list[tuple[str, int, int, str]] = []
    for number in range(asked.cases):
        name, turn = list(fits)[number % len(fits)], number // len(fits)
        seed, n = asked.first + turn, SIZES[turn % len(SIZES)]
        try:
            move = hostile_tables.move_of(fits[name], seed, n)
        except Exception as error:
            failed.append((name, seed, n, f"{type(error).__name__}: {error}"[:120]))
            continue
        worst[name] = max(worst.get(name, (0.0, 0, 0)), (move, seed, n))
        if not move <= 1.0:
            failed.append((name, seed, n, f"moves {move:.6g}"))
    found = {"cases": asked.cases, "first": asked.first, "worst": worst, "failed": failed}
    if asked.save:
        asked.save.write_text(json.dumps(found, indent=1))
    print(f"{asked.cases} cases, {len(failed)} failed")
    for one in failed[:20]:
        print(*one)
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
