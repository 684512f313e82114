"""An HTML page for each record: what was done, what it cost, its ledgers and how to check them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from winsor.cards import card, folded, pairs, sentence, table

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<body style="margin:2em">{card}</body></html>
"""


def write(results: dict[str, Any], ledgers: Path) -> Iterator[Path]:
    """Beside the ledgers, TASK-WAY.html for every (task, way) with a finished cell."""
    grouped: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for key, cell in results.items():
        if key.count(" | ") == 2:
            task, way, seed = key.split(" | ")
            grouped.setdefault((task, way), {})[seed] = cell
    for (task, way), cells in grouped.items():
        name = f"{task}-{way}".replace(" ", "-")
        path = ledgers / f"{name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        body = one(task, way, cells, {seed: ledgers / f"{name}-{seed}.ledger" for seed in cells})
        path.write_text(PAGE.format(title=escape(f"{task}, {way}"), card=body))
        yield path


def one(task: str, way: str, cells: dict[str, dict[str, Any]], kept: dict[str, Path]) -> str:
    first = next(iter(cells.values()))
    shown = ("accuracy", "rarest_three", "epsilon", "releases", "processor_seconds", "commit")
    again = f"benchmarks/records.py --task {task} --ways '{way}' --seeds {len(cells)}"
    if first.get("features") == "pixels":
        again = f"benchmarks/records_cnn.py --seeds {len(cells)}"
    facts = {
        "way": way,
        "normalisation": f"{first.get('norm')}, whitening multiplier {first.get('white')}, "
        f"axes (multiplier, power) {first.get('axes')}",
        "setting": str(first.get("setting")),
        "rows": f"{first['rows']:,}",
        "guarantee": first["guarantee"],
        "again": again,
    }
    rows = [[seed, *(str(cell.get(name, "")) for name in shown)] for seed, cell in cells.items()]
    files = [f"seed {seed}: {_file(path)}" for seed, path in kept.items()]
    return card(
        f"{task}, {way}",
        sentence("Accuracy is on the test rows. Epsilon is of every release that touched the "
                 "training rows (winsor.total)."),
        pairs(facts),
        table("Seeds", ["seed", *(name.replace("_", " ") for name in shown)], rows),
        folded("Ledgers of the steps (Ledger.read checks one)", files),
    )  # fmt: skip


def _file(path: Path) -> str:
    if not path.is_file():
        return f"{path} is not on this machine"
    return f"{path}, blake2b {hashlib.blake2b(path.read_bytes(), digest_size=12).hexdigest()}"
