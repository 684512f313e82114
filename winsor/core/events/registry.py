"""Which events exist, how they are written down, and who knows what they cost.

An event says what was done, exactly as far as privacy needs it. Each *type* of event has one entry
in the registry: its name in a ledger, its JSON form, and its price,

- ``pld(event, relation, grid)``: a pessimistic privacy loss distribution of **one** application
  (a `dp_accounting` object) on the `Grid`;
- ``rdp(event, relation, orders)``: upper bounds on the Renyi divergence of **one** application;
- ``relaxations(event)``: other events, each of which is at least as revealing as this one. An
  event may thus offer several certified bounds; `winsor.core.accounting.spending` takes the best
  for the history as a whole;
- ``alone(event, delta, relation)``: epsilon of a history that is one application and nothing else,
  with the name of its accountant, where that is quicker than the ways above.

Any of the four may be missing. An event without an entry is refused: its privacy is unknown.

>>> from dp_accounting.dp_event import GaussianDpEvent
>>> event_to_json(GaussianDpEvent(1.1))
{'event': 'gaussian', 'noise_multiplier': 1.1}
>>> event_from_json({'event': 'gaussian', 'noise_multiplier': 1.1})
GaussianDpEvent(noise_multiplier=1.1)

What the numbers in an event mean
---------------------------------
``GaussianDpEvent(nm)`` and ``LaplaceDpEvent(nm)`` outside a sampling event always mean noise scale
over the *actual* shift between neighbouring datasets, under whichever relation is in force: who
writes the event has already used the sensitivity of that relation. Inside ``PoissonSampledDpEvent``
the multiplier is noise scale over the *add/remove* sensitivity, under both relations: replace-one
is then the pair of opposite shifts. Inside ``SampledWithoutReplacementDpEvent`` (replace-one only)
it is noise scale over the replace sensitivity.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from winsor.core.contract import ConfigurationError, Neighbouring, UnsupportedEvent

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

ENTRY_POINTS, FOLDERS = "winsor.events", "WINSOR_EVENTS"

History = Sequence[tuple[DpEvent, int]]
"""What was done: events with how often each happened. Order does not matter."""

ROUNDING = 1 + 1e-9
"""Deltas are raised by this factor before they are turned into laws."""

Orders = NDArray[np.float64]
Json = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """Grid that privacy losses are placed on: multiples of ``interval``.

    Losses whose probability adds up to at most ``tail`` may be called infinite, to save points; a
    handler is free to keep them.
    """

    interval: float
    tail: float = 1e-25


# The first argument is the event; its type is that of the entry, which Callable cannot express.
Pld = Callable[[Any, Neighbouring, Grid], "PrivacyLossDistribution"]
Rdp = Callable[[Any, Neighbouring, Orders], Orders]
Relaxations = Callable[[Any], Sequence[DpEvent]]
Alone = Callable[[Any, float, Neighbouring], tuple[float, str]]


@dataclass(frozen=True)
class Entry:
    """Everything winsor knows about one type of event."""

    event_type: type[DpEvent]
    name: str
    to_json: Callable[[Any], Json]
    from_json: Callable[[Json], DpEvent]
    pld: Pld | None = None
    rdp: Rdp | None = None
    relaxations: Relaxations | None = None
    alone: Alone | None = None


_BY_TYPE: dict[type[DpEvent], Entry] = {}
_BY_NAME: dict[str, Entry] = {}


def register(
    event_type: type[DpEvent],
    *,
    name: str,
    to_json: Callable[[Any], Json],
    from_json: Callable[[Json], DpEvent],
    pld: Pld | None = None,
    rdp: Rdp | None = None,
    relaxations: Relaxations | None = None,
    alone: Alone | None = None,
) -> None:
    """Make a type of event known. ``to_json`` gives the fields only; the name is added here.

    Handlers raise `UnsupportedRelation` where the event has no proven account under a relation.
    Registering a type or a name twice is refused: a price, once given, must not change silently.
    """
    if event_type in _BY_TYPE or name in _BY_NAME:
        raise ConfigurationError(
            f"{event_type.__name__} ({name!r}) must be a new type with a new name. Got one that is "
            "registered already instead. Register each event type once, at import."
        )
    entry = Entry(event_type, name, to_json, from_json, pld, rdp, relaxations, alone)
    _BY_TYPE[event_type] = entry
    _BY_NAME[name] = entry


def entry_of(event: DpEvent) -> Entry:
    """The registry entry of an event's exact type; a subclass has other privacy than its base."""
    entry = _BY_TYPE.get(type(event))
    if entry is None:
        raise UnsupportedEvent(
            f"event must be of a registered type ({', '.join(sorted(_BY_NAME))}). Got "
            f"{type(event).__name__}: {event!r} instead. Its privacy is unknown, so no epsilon can "
            "be given: describe the step with a registered event, or register a handler with "
            "winsor.core.accounting.register."
        )
    return entry


def registered() -> dict[str, Entry]:
    """All entries by name."""
    return dict(_BY_NAME)


def event_to_json(event: DpEvent) -> Json:
    """The JSON form of an event; floats keep every digit, so `event_from_json` gives it back."""
    entry = entry_of(event)
    return {"event": entry.name, **entry.to_json(event)}


def event_from_json(data: Mapping[str, Any]) -> DpEvent:
    """The event that `event_to_json` wrote."""
    name = data.get("event")
    entry = _BY_NAME.get(name) if isinstance(name, str) else None
    if entry is None and isinstance(name, str):
        load_plugins()
        entry = _BY_NAME.get(name)
    if entry is None:
        raise UnsupportedEvent(
            f"event must be one of {', '.join(sorted(_BY_NAME))}. Got {name!r} instead. The record "
            "was written by another version of winsor, or by a package that is not installed here: "
            "install it, or import the module that registers the event."
        )
    return entry.from_json({key: value for key, value in data.items() if key != "event"})


@functools.cache
def load_plugins() -> None:
    """Import the modules that register events from outside the core.

    They are named by entry points of the group ``winsor.events``, and by ``*.py`` files in the
    folders of the environment variable ``WINSOR_EVENTS``.
    """
    for point in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        point.load()
    for folder in filter(None, os.environ.get(FOLDERS, "").split(os.pathsep)):
        if not Path(folder).is_dir():
            raise ConfigurationError(
                f"{FOLDERS} must name folders with events. Got {folder!r} instead, which is none."
            )
        for path in sorted(Path(folder).glob("*.py")):
            spec = importlib.util.spec_from_file_location(f"winsor_events_{path.stem}", path)
            assert spec is not None and spec.loader is not None
            spec.loader.exec_module(importlib.util.module_from_spec(spec))


# -------------------------------------------------------------------------------- flat histories


def flatten(history: History) -> list[tuple[DpEvent, int]]:
    """Unfold compositions, drop what reveals nothing, and merge equal events.

    The order of a composition does not matter to any accountant here: all of them are proven for
    adaptive composition in any order.
    """
    merged: dict[str, tuple[DpEvent, int]] = {}
    for event, count in _unfolded(history):
        key = repr(event_to_json(event))  # events may hold lists, which cannot be hashed
        known, so_far = merged.get(key, (event, 0))
        merged[key] = (known, so_far + count)
    return list(merged.values())


def _unfolded(history: History) -> list[tuple[DpEvent, int]]:
    parts: list[tuple[DpEvent, int]] = []
    for event, count in history:
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
            raise ConfigurationError(
                f"count must be a whole number, 0 or more. Got {count!r} instead for {event!r}."
            )
        entry_of(event)
        if count == 0 or isinstance(event, dp_event.NoOpDpEvent):
            continue
        if isinstance(event, dp_event.SelfComposedDpEvent):
            parts += _unfolded([(event.event, int(count) * event.count)])
        elif isinstance(event, dp_event.ComposedDpEvent):
            parts += _unfolded([(inner, int(count)) for inner in event.events])
        else:
            parts.append((event, int(count)))
    return parts
