"""An HTML page for each record: what was done, what it cost, its ledgers and how to check them.

From what is in the repository alone: the ledgers are unpacked beside the pages.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from records_ledgers import KEPT, RELATION, Cell, is_kept, unpack

from winsor.cards import card, folded, pairs, sentence, table
from winsor.ledger.guarantee import guarantee
from winsor.ledger.ledger import Ledger

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<body style="margin:2em">{card}</body></html>
"""


def write(results: dict[str, Any], folder: Path, packed: Path = KEPT) -> Iterator[Path]:
    """In ``folder``, TASK-WAY.html for every (task, way) with a finished cell, and its ledgers."""
    folder.mkdir(parents=True, exist_ok=True)
    grouped: dict[tuple[str, str], dict[str, Cell]] = {}
    for key, cell in results.items():
        if key.count(" | ") == 2:
            task, way, seed = key.split(" | ")
            grouped.setdefault((task, way), {})[seed] = cell
    for (task, way), cells in grouped.items():
        path = folder / f"{task}-{way}.html".replace(" ", "-")
        kept = {
            seed: list(unpack(cell, folder, packed)) if is_kept(cell, packed) else []
            for seed, cell in cells.items()
        }
        body = one(task, way, cells, kept, audited(results.get("audit", {})))
        opened = body.replace("<details", "<details open")  # a page has room, a notebook has not
        path.write_text(PAGE.format(title=escape(f"{task}, {way}"), card=opened))
        yield path


def audited(found: dict[str, Any]) -> str:
    """What the replay of small versions of all records said."""
    failed = [name for name, one in found.items() if not one["passed"]]
    passed = f"{len(found) - len(failed)} of {len(found)} small versions of the trainings passed"
    return passed + (f"; FAILED: {', '.join(failed)}" if failed else "")


def one(
    task: str, way: str, cells: dict[str, Cell], kept: dict[str, list[Path]], audit: str
) -> str:
    first = next(iter(cells.values()))
    shown = ("accuracy", "rarest_three", "epsilon", "releases", "processor_seconds", "commit")
    again = f"benchmarks/records.py --task {task} --ways '{way}' --seeds {len(cells)}"
    if first.get("features") == "pixels":
        again = f"benchmarks/records_cnn.py --ways '{way}' --seeds {len(cells)}"
    headers = ["seed", *(name.replace("_", " ") for name in shown)]
    accuracies = [cell["accuracy"] for cell in cells.values()]
    facts = {
        "way": way,
        "accuracy": f"{statistics.mean(accuracies):.2f} %, mean of {len(cells)} seeds",
        "normalisation": f"{first.get('norm')}, whitening multiplier {first.get('white')}, "
        f"axes (multiplier, power) {first.get('axes')}",
        "setting": str(first.get("setting")),
        "rows": f"{first['rows']:,}",
        "guarantee": first["guarantee"],
        "replay audit": audit,
        "again": again,
        "check": "benchmarks/records.py --verify",
    }
    rows = [
        [seed, *(str(cell.get(name, "")) for name in shown), _epsilon(kept[seed], cell["delta"])]
        for seed, cell in cells.items()
    ]
    listed = [f"seed {seed}: {_file(path)}" for seed, paths in kept.items() for path in paths]
    listed += [f"seed {seed}: none kept" for seed, paths in kept.items() if not paths]
    return card(
        f"{task}, {way}",
        sentence("Accuracy is on the test rows. Epsilon is of every release that touched the "
                 "training rows (winsor.total); beside it that of the ledgers below, read and "
                 "checked when this page was written."),
        pairs(facts),
        table("Seeds", [*headers, "epsilon of the files"], rows),
        folded("Ledgers (Ledger.read checks one)", listed),
    )  # fmt: skip


def _epsilon(paths: list[Path], delta: float) -> str:
    """Of everything that the files of a cell hold."""
    if not paths:
        return ""
    return f"{guarantee(map(Ledger.read, paths), delta, RELATION).epsilon:.4f}"


def _file(path: Path) -> str:
    ledger = Ledger.read(path)
    found = hashlib.blake2b(path.read_bytes(), digest_size=12).hexdigest()
    return f"{path.name}, {len(ledger)} releases, head of the chain {ledger.head}, blake2b {found}"
