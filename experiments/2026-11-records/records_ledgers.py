"""The ledgers of the records, in the repository: packed byte for byte, and checked by anybody.

    .venv/bin/python benchmarks/records.py --verify

A cell of benchmarks/results/records.json names its files in benchmarks/results/ledgers, each with
the head of its chain: what was released before the steps, and the steps, or the tuning. They are
plain ledgers under xz (``xz -dc FILE`` shows one). The check reads every chain, compares its head
with the one in the cell, counts releases and rows, and computes epsilon anew from the files alone.

What it cannot show is that a model with that accuracy came of these releases: for that, run the
cell again. Its seed fixes all noise.
"""

from __future__ import annotations

import lzma
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from saving import FOLDER

from winsor.contract import LedgerError, Neighbouring
from winsor.ledger.guarantee import guarantee
from winsor.ledger.ledger import Ledger

KEPT = FOLDER / "ledgers"
PACKED = ".xz"
RELATION = Neighbouring.ADD_OR_REMOVE_ONE

Cell = dict[str, Any]


def name_of(task: str, way: str, seed: int | str) -> str:
    """What the files of a cell begin with."""
    return f"{task}-{way}-{seed}".replace(" ", "-")


def place_for(folder: Path, name: str) -> Path:
    """Where a cell is to write the ledger of its steps.

    What a try left that did not finish is deleted, for nothing of it was kept; a tuning that was
    killed goes on instead, and one that ended would be paid for twice in the same file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    steps = folder / f"{name}.ledger"
    for older in (steps, *folder.glob(f"{name}.*.ledger")):
        older.unlink(missing_ok=True)
    tuning = steps.with_suffix(".tuning")
    if tuning.is_dir() and not (tuning / "sealed").exists():
        shutil.rmtree(tuning)
    return steps


def written(folder: Path, name: str) -> dict[str, Path]:
    """The ledgers that a cell wrote, by the names they are kept under: of each release before the
    steps, and of the steps or of the tuning."""
    found = {path.name: path for path in sorted(folder.glob(f"{name}.*.ledger"))}
    last = {
        f"{name}.ledger": folder / f"{name}.ledger",
        f"{name}.tuning.ledger": folder / f"{name}.tuning" / "ledger.jsonl",
    }
    return {**found, **{kept: path for kept, path in last.items() if path.is_file()}}


def keep(folder: Path, name: str, kept: Path = KEPT) -> dict[str, str]:
    """Pack the ledgers of a cell; their names, each with the head of its chain."""
    kept.mkdir(parents=True, exist_ok=True)
    for older in kept.glob(f"{name}.*{PACKED}"):
        older.unlink()
    heads = {}
    for unpacked, path in written(folder, name).items():
        heads[unpacked] = Ledger.read(path).head
        packed = lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
        (kept / f"{unpacked}{PACKED}").write_bytes(packed)
    return heads


def is_kept(cell: Cell, kept: Path = KEPT) -> bool:
    """Whether a cell names ledgers, and they are here."""
    named = cell.get("ledgers", {})
    return bool(named) and all((kept / f"{name}{PACKED}").is_file() for name in named)


def unpack(cell: Cell, folder: Path, kept: Path = KEPT) -> Iterator[Path]:
    """The ledgers of a cell, written into ``folder``."""
    for name in cell.get("ledgers", {}):
        path = folder / name
        path.write_bytes(lzma.decompress((kept / f"{name}{PACKED}").read_bytes()))
        yield path


def disagreements(cell: Cell, kept: Path = KEPT) -> list[str]:
    """What the kept ledgers of a cell say otherwise than the cell, in words."""
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
    """What disagrees, cell by cell, and the cells that have no ledgers."""
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
