"""The kept ledgers of the records: checked against every figure, and shown as pages.

    .venv/bin/python benchmarks/records.py --verify     # every cell against its ledgers
    .venv/bin/python benchmarks/records.py --report     # an HTML page for each record

A cell of benchmarks/results/records.json names its files in benchmarks/results/ledgers, each with
the head of its chain: what was released before the steps, and the steps, or the tuning. They are
plain ledgers under xz (``xz -dc FILE`` shows one). The check reads every chain, compares its head
with the one in the cell, counts releases and rows, and computes epsilon anew from the files alone.

It cannot show that a model with that accuracy came of these releases. The programs that trained the
models are in experiments/2026-11-records, with the commit at which to run them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import statistics
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from saving import FOLDER

from winsor.charts.notebook_html import card, folded, pairs, sentence, table
from winsor.core.contract import LedgerError, Neighbouring
from winsor.core.ledger.guarantee import guarantee
from winsor.core.ledger.ledger import Ledger

KEPT = FOLDER / "ledgers"
PACKED = ".xz"
RELATION = Neighbouring.ADD_OR_REMOVE_ONE
PAGES = Path(os.environ.get("WINSOR_CACHE", Path.home() / ".cache" / "winsor")) / "records"
RAN_AT = "c6c108f"
"""The last commit at which the programs that made the records were in benchmarks/."""
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<body style="margin:2em">{card}</body></html>
"""

Cell = dict[str, Any]


def unpack(cell: Cell, folder: Path, kept: Path = KEPT) -> Iterator[Path]:
    """Write the ledgers of a cell into ``folder``."""
    for name in cell.get("ledgers", {}):
        path = folder / name
        path.write_bytes(lzma.decompress((kept / f"{name}{PACKED}").read_bytes()))
        yield path


def is_kept(cell: Cell, kept: Path = KEPT) -> bool:
    """Say whether a cell names ledgers and all of them are kept."""
    named = cell.get("ledgers", {})
    return bool(named) and all((kept / f"{name}{PACKED}").is_file() for name in named)


def disagreements(cell: Cell, kept: Path = KEPT) -> list[str]:
    """List, in words, where the kept ledgers of a cell disagree with the cell."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            ledgers = [Ledger.read(path) for path in unpack(cell, Path(folder), kept)]
        total = guarantee(ledgers, cell["delta"], RELATION)
    except (LedgerError, OSError, lzma.LZMAError) as error:
        return [str(error)]
    heads = {ledger.path.name: ledger.head for ledger in ledgers if ledger.path}
    read = {"ledgers": heads, "releases": total.steps, "epsilon": round(total.epsilon, 4)}
    rows = {ledger.config["n"] for ledger in ledgers if "n" in ledger.config}
    found = [*read.items(), *(("rows", each) for each in sorted(rows))]
    return [
        f"{key}: the cell says {cell[key]}, its files {value}"
        for key, value in found
        if cell[key] != value
    ]


def verify(results: dict[str, Any], kept: Path = KEPT) -> tuple[list[str], list[str]]:
    """List what disagrees, cell by cell, and the cells that have no ledgers."""
    cells = {key: cell for key, cell in results.items() if key.count(" | ") == 2}
    without = [key for key, cell in cells.items() if "ledgers" not in cell]
    wrong = [
        f"{key}: {line}"
        for key, cell in cells.items()
        if "ledgers" in cell
        for line in disagreements(cell, kept)
    ]
    named = {f"{name}{PACKED}" for cell in cells.values() for name in cell.get("ledgers", {})}
    strangers = sorted({path.name for path in kept.glob(f"*{PACKED}")} - named)
    return [*wrong, *(f"{name}: no cell names it" for name in strangers)], without


def write(results: dict[str, Any], folder: Path, packed: Path = KEPT) -> Iterator[Path]:
    """Write TASK-WAY.html for every (task, way) with a finished cell, and its ledgers beside it."""
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
        body = _page(task, way, cells, kept, _audited(results.get("audit", {})))
        opened = body.replace("<details", "<details open")  # a page has room, a notebook has not
        path.write_text(PAGE.format(title=escape(f"{task}, {way}"), card=opened))
        yield path


def _audited(found: dict[str, Any]) -> str:
    """Sum up the replay of small versions of all records."""
    failed = [name for name, one in found.items() if not one["passed"]]
    passed = f"{len(found) - len(failed)} of {len(found)} small versions of the trainings passed"
    return passed + (f"; FAILED: {', '.join(failed)}" if failed else "")


def _page(
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
        f"again, at commit {RAN_AT}": again,
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
                 "training rows (winsor.total); beside it is that of the ledgers below, read and "
                 "checked when this page was written."),
        pairs(facts),
        table("Seeds", [*headers, "epsilon of the files"], rows),
        folded("Ledgers (Ledger.read checks one)", listed),
    )  # fmt: skip


def _epsilon(paths: list[Path], delta: float) -> str:
    """Epsilon of everything that the files of a cell hold."""
    if not paths:
        return ""
    return f"{guarantee(map(Ledger.read, paths), delta, RELATION).epsilon:.4f}"


def _file(path: Path) -> str:
    ledger = Ledger.read(path)
    found = hashlib.blake2b(path.read_bytes(), digest_size=12).hexdigest()
    return f"{path.name}, {len(ledger)} releases, head of the chain {ledger.head}, blake2b {found}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--verify", action="store_true", help="check every cell")
    wanted.add_argument("--report", action="store_true", help=f"write pages to {PAGES}")
    args = parser.parse_args()
    results = json.loads((FOLDER / "records.json").read_text())
    if args.report:
        for written in write(results, PAGES):
            print(written)
        return
    wrong, without = verify(results)
    checked = sum(key.count(" | ") == 2 for key in results) - len(without)
    print(f"{checked} cells checked against their ledgers; without ledgers: {without or 'none'}")
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
