"""The other files of a run, bound to its ledger: who knows the head of the chain knows them all.

    when the run begins    the ledger notes the digest of config.json
    when it is finished    result.json names the digests of the metrics and of the model, and the
                           ledger notes the digest of the result, after its last entry

What a repetition of the same run would have otherwise (seconds, and the head itself) is left out:
a run that was killed and resumed ends with the same seal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from winsor.core.contract import LedgerError
from winsor.core.ledger.ledger import Ledger

CONFIG, RESULT = "config.json", "result.json"
VARIES = ("seconds", "ledger_head")


def bind_config(ledger: Ledger, path: Path) -> None:
    """Note the configuration when a run begins; when it goes on, it must be the same."""
    digest = of_bytes((path / CONFIG).read_bytes())
    if CONFIG in ledger.notes and ledger.notes[CONFIG][0] != digest:
        raise LedgerError(
            f"{path / CONFIG} must be the file that the run began with. It was changed: the ledger "
            "names another. Restore it from a copy, or start a new run."
        )
    if CONFIG not in ledger.notes:
        ledger.note(CONFIG, digest)


def seal(
    result: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], path: Path, ledger: Ledger
) -> dict[str, Any]:
    """The result with the digests of the other files and the head of the sealed ledger."""
    sealed = {**result, "files": digests(rows, path)}
    ledger.note(RESULT, of_result(sealed))
    return {**sealed, "ledger_head": ledger.head}


def digests(rows: Iterable[Mapping[str, Any]], path: Path) -> dict[str, str | None]:
    """Of the metrics, without their times, and of the model; None if there is no such file."""
    model = path / "model.pt"
    return {
        "metrics.jsonl": of_table([_steady(row) for row in rows]),
        "model.pt": of_bytes(model.read_bytes()) if model.exists() else None,
    }


def of_result(result: Mapping[str, Any]) -> str:
    return of_table(_steady(result))


def of_table(table: Any) -> str:
    return of_bytes(json.dumps(table, sort_keys=True).encode())


def of_bytes(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def _steady(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in VARIES}
