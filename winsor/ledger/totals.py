"""What the ledgers of runs add up to, alone and together."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable

from dp_accounting.dp_event import DpEvent

from winsor.accounting import Spent, account, account_delta, event_from_json, event_to_json
from winsor.contract import Neighbouring
from winsor.ledger.ledger import Ledger


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
