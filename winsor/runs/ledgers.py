"""Reading ledgers of runs, alone and together."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable
from pathlib import Path

from dp_accounting.dp_event import DpEvent

from winsor.accounting import Spent, account, account_delta, event_from_json, event_to_json
from winsor.contract import LedgerError, Neighbouring
from winsor.ledger import Ledger


def read_ledger(path: str | os.PathLike[str]) -> Ledger:
    """A ledger from disk, without locking or writing: the run may still be going on."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise LedgerError(f"cannot read the ledger {path}: {error.strerror or error}.") from error
    try:
        header = json.loads(content.split(b"\n", 1)[0])
        config = header["config"]
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{path} must begin with the header of a ledger. It does not.") from error
    ledger = Ledger(config)
    ledger.path = Path(path)
    ledger._load(content)
    return ledger


def spent_by(history: Iterable[tuple[DpEvent, int]], delta: float, relation: Neighbouring) -> Spent:
    """Epsilon of a history at ``delta``; those that recur (in a comparison) are done once."""
    return _epsilon(_text(history), delta, relation)


def delta_by(
    history: Iterable[tuple[DpEvent, int]], epsilon: float, relation: Neighbouring
) -> Spent:
    """Delta of a history at ``epsilon``, likewise."""
    return _delta(_text(history), epsilon, relation)


def _text(history: Iterable[tuple[DpEvent, int]]) -> str:
    return json.dumps([[event_to_json(event), count] for event, count in history])


def _events(text: str) -> list[tuple[DpEvent, int]]:
    return [(event_from_json(event), count) for event, count in json.loads(text)]


@functools.lru_cache(maxsize=1024)
def _epsilon(text: str, delta: float, relation: Neighbouring) -> Spent:
    return account(_events(text), delta, relation)


@functools.lru_cache(maxsize=1024)
def _delta(text: str, epsilon: float, relation: Neighbouring) -> Spent:
    return account_delta(_events(text), epsilon, relation)


def together(ledgers: Iterable[Ledger]) -> list[tuple[DpEvent, int]]:
    """The composition of several runs on the same rows, as one history."""
    counts: dict[str, int] = {}
    for ledger in ledgers:
        for event, count in ledger.history():
            text = json.dumps(event_to_json(event), sort_keys=True)
            counts[text] = counts.get(text, 0) + count
    return [(event_from_json(json.loads(text)), count) for text, count in counts.items()]
