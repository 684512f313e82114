"""From ledgers to a `Guarantee`: the one place where records become a certified number.

Several ledgers of the same rows compose as one history: equal events are merged and counted.
Histories that recur (in a comparison, in a report) are accounted for once.

Guarantee
---------
Sequential composition of everything in the ledgers, right for any overlap of their records.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable

from dp_accounting.dp_event import DpEvent

from winsor.core.accounting import Spent, certify, certify_delta, event_from_json, event_to_json
from winsor.core.contract import Guarantee, LedgerError, Neighbouring
from winsor.core.ledger.ledger import Ledger, agree


def guarantee(
    ledgers: Iterable[Ledger],
    delta: float,
    relation: Neighbouring,
    samplers: Iterable[str] = (),
    conditions: Iterable[str] = (),
) -> Guarantee:
    """What all ``ledgers`` together certify at ``delta``, released yet or not.

    ``samplers`` and ``conditions`` say how rows were drawn and what the proof rests on; each is
    named once.

    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> ledger = Ledger({"n": 100})
    >>> _ = ledger.record_many("key", GaussianDpEvent(10.0), 4)
    >>> print(guarantee([ledger], 1e-5, Neighbouring.ADD_OR_REMOVE_ONE, ["full batch"]))
    (epsilon=0.7255, delta=1e-05)-DP, add or remove one, 4 steps, full batch, certified by PLD
    """
    ledgers = list(ledgers)
    about_of(ledgers, relation=relation.value)
    spent = spent_by(together(ledgers), delta, relation)
    return Guarantee(
        epsilon=spent.epsilon,
        delta=delta,
        relation=relation,
        accountant=spent.accountant,
        steps=sum(map(len, ledgers)),
        sampler=", ".join(dict.fromkeys(samplers)),
        conditions=tuple(dict.fromkeys(conditions)),
    )


def together(ledgers: Iterable[Ledger]) -> list[tuple[DpEvent, int]]:
    """The composition of several runs on the same rows, as one history."""
    found: dict[str, tuple[DpEvent, int]] = {}
    ledgers = list(ledgers)
    refuse_shared_keys(ledgers)
    about_of(ledgers)
    for ledger in ledgers:
        for event, count in ledger.history():
            text = json.dumps(event_to_json(event), sort_keys=True)  # events may be unhashable
            found[text] = (event, found[text][1] + count if text in found else count)
    return list(found.values())


def about_of(ledgers: Iterable[Ledger], **known: str) -> dict[str, str]:
    """Return what the sum of ``ledgers`` is about; refuse ledgers of which there is none."""
    for ledger in ledgers:
        known = agree(known, ledger.about)
    return known


def refuse_shared_keys(ledgers: Iterable[Ledger]) -> None:
    """Runs add up only if their noise is independent: no key may stand in two ledgers."""
    seen: dict[str, Ledger] = {}
    for ledger in ledgers:
        for run in ledger.runs:
            if seen.setdefault(run, ledger) is not ledger:
                raise LedgerError(
                    "ledgers that are added up must have keys of their own. Got one key in two of "
                    "them: their noise is the same, and cancels in the difference of what they "
                    "released. Use another seed or random_state for each, or none."
                )


def spent_by(history: Iterable[tuple[DpEvent, int]], delta: float, relation: Neighbouring) -> Spent:
    """Epsilon of a history at ``delta``."""
    return _epsilon(_text(history), delta, relation)


def delta_by(
    history: Iterable[tuple[DpEvent, int]], epsilon: float, relation: Neighbouring
) -> Spent:
    """Delta of a history at ``epsilon``."""
    return _delta(_text(history), epsilon, relation)


def _text(history: Iterable[tuple[DpEvent, int]]) -> str:
    return json.dumps([[event_to_json(event), count] for event, count in history])


def _events(text: str) -> list[tuple[DpEvent, int]]:
    return [(event_from_json(event), count) for event, count in json.loads(text)]


@functools.lru_cache(maxsize=1024)
def _epsilon(text: str, delta: float, relation: Neighbouring) -> Spent:
    return certify(_events(text), delta, relation)


@functools.lru_cache(maxsize=1024)
def _delta(text: str, epsilon: float, relation: Neighbouring) -> Spent:
    return certify_delta(_events(text), epsilon, relation)
