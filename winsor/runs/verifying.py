"""Do the files of a run agree with each other? Asked before any of them is believed.

    ledger          the chain of its lines, its header, its events
    result.json     steps, epsilon, delta, relation, noise and the head of the chain, all against
                    the ledger; epsilon is computed anew
    checkpoint.pt   its key and its steps against the ledger
    key files       none may be left once the run is finished

What this proves: that the files were not damaged, and not changed one by one. What it cannot: that
somebody who can write all of them has not written all of them anew. For that, compare the head of
the chain with one that was noted elsewhere (``--head``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from winsor.contract import LedgerError, Neighbouring, WinsorError
from winsor.ledger.guarantee import spent_by
from winsor.ledger.ledger import Ledger
from winsor.runs.directory import RunDirectory, RunError

HOLDS_KEY = ("checkpoint.pt", ".checkpoint.pt.new", "ledger.key", ".ledger.key.new")


def disagreements(path: str | Path, head: str | None = None, leftovers: bool = True) -> list[str]:
    """What does not fit, in words; nothing if all is well. ``leftovers`` are files with the key."""
    return list(_disagreements(RunDirectory(path), head, leftovers))


def refuse_disagreements(path: str | Path, leftovers: bool = True) -> None:
    """Raise if anything does not fit."""
    found = disagreements(path, leftovers=leftovers)
    if found:
        raise RunError(
            f"the files of {path} do not agree: {'; '.join(found)}. Restore them from a copy. "
            "Nothing was changed or deleted."
        )


def _disagreements(run: RunDirectory, head: str | None, leftovers: bool) -> Iterator[str]:
    try:
        config = run.config()
    except WinsorError as error:
        yield f"config.json: {error}"
        return
    try:
        ledger = Ledger.read(run.ledger)
    except LedgerError as error:
        yield f"ledger.jsonl: {error}"
        return
    if head is not None and ledger.head != head.lower():
        yield f"the ledger's head is {ledger.head}, not {head}"
    try:
        result = run.result()
    except RunError as error:
        yield f"result.json: {error}"
        return
    if result is not None:
        yield from _result(result, ledger)
        if leftovers and not config.record.keep_checkpoint:
            for name in HOLDS_KEY:
                if (run.path / name).exists():
                    yield f"{name} is left although the run is finished: it holds the noise key"


def _result(result: Any, ledger: Ledger) -> Iterator[str]:
    if not isinstance(result, dict):
        yield "result.json: it is not a table"
        return
    claims = {
        "steps": len(ledger),
        "ledger_head": ledger.head,
        "noise_multiplier": ledger.config.get("noise_multiplier"),
        "delta": ledger.config.get("delta"),
        "relation": ledger.config.get("relation"),
    }
    for name, truth in claims.items():
        if result.get(name) != truth:
            yield f"result.json says {name} = {result.get(name)!r}, the ledger says {truth!r}"
            return
    relation = Neighbouring(ledger.config["relation"])
    spent = spent_by(ledger.history(), float(ledger.config["delta"]), relation)
    claimed = result.get("epsilon")
    if not (
        isinstance(claimed, float | int) and math.isclose(claimed, spent.epsilon, rel_tol=1e-6)
    ):
        yield f"result.json says epsilon = {claimed!r}, the ledger spends {spent.epsilon:.6g}"
