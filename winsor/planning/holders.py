"""Who holds a ledger: estimators, training runs, means, and what else spent on some rows."""

from __future__ import annotations

from typing import Any

from winsor.core.contract import ConfigurationError, Guarantee, Neighbouring
from winsor.core.ledger.guarantee import about_of
from winsor.core.ledger.ledger import Ledger


def ledger_of(thing: Any) -> Ledger | None:
    """``ledger_`` of what was fitted, ``ledger`` of a run or a result, or None."""
    for name in ("ledger_", "ledger"):
        found = getattr(thing, name, None)
        if isinstance(found, Ledger):
            return found
    return None


def guarantee_of(thing: Any) -> Guarantee:
    """What a holder of a ledger certifies by itself, so far."""
    for name in ("guarantee_", "guarantee"):
        found = getattr(thing, name, None)
        if isinstance(found, Guarantee):
            return found
    found = thing.spent()
    assert isinstance(found, Guarantee)
    return found


def relation_of(thing: Any) -> Neighbouring:
    """Return the neighbouring relation of a holder of a ledger."""
    found = getattr(thing, "relation", None)
    return found if isinstance(found, Neighbouring) else guarantee_of(thing).relation


def earlier_ledgers(things: Any, relation: Neighbouring, unit: str = "row") -> list[Ledger]:
    """The ledgers of what has already been spent on the rows of a run that is planned."""
    found = []
    for thing in things:
        ledger = ledger_of(thing)
        if ledger is None:
            raise ConfigurationError(
                "after must list what has a ledger: fitted estimators, PrivateNorm, means, runs. "
                f"Got {thing!r:.80} instead."
            )
        if relation_of(thing) is not relation:
            raise ConfigurationError(
                f"after must list releases under the run's relation, {relation.value}. Got "
                f"{relation_of(thing).value} instead."
            )
        about_of([ledger], unit=unit, relation=relation.value)
        found.append(ledger)
    return found
