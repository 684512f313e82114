"""Events declared by their fields: JSON and refusals follow from the kind of each.

    @event("allocation", pld=_pld, rdp=_rdp)
    @attr.s(frozen=True, auto_attribs=True)
    class AllocationDpEvent(DpEvent):
        steps: int = whole(1)
        noise_multiplier: float = positive()

A field is checked when it is written and when it is read: what a ledger holds is inside the range
for which the event has a price. `declare` does the same for classes of `dp_accounting`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import attr
from dp_accounting.dp_event import DpEvent

from winsor.core import checks
from winsor.core.contract import ConfigurationError, Neighbouring, UnsupportedRelation
from winsor.core.events.registry import Json, event_from_json, event_to_json, register

Check = Callable[[str, Any], Any]
_KIND = "winsor kind"


@dataclass(frozen=True)
class Kind:
    """How a field is written, read and checked; ``key`` is its name in JSON, if that is another."""

    write: Check
    read: Check
    key: str | None = None


def number_kind(high: float = math.inf, key: str | None = None) -> Kind:
    """A finite number from 0 to ``high``."""

    def check(name: str, value: Any) -> float:
        if not (isinstance(value, (int, float)) and math.isfinite(value) and 0 <= value <= high):
            top = "" if math.isinf(high) else f" and at most {high:g}"
            raise ConfigurationError(
                f"{name} of an event must be a finite number, at least 0{top}. Got {value!r} "
                "instead."
            )
        return float(value)

    return Kind(check, check, key)


def whole_kind(low: int, key: str | None = None) -> Kind:
    """A whole number, at least ``low``."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ConfigurationError(
                f"{name} of an event must be a whole number, at least {low}. Got {value!r} instead."
            )
        return value

    return Kind(check, check, key)


def inner_kind() -> Kind:
    """Another event, called ``inner`` in JSON."""
    return Kind(
        lambda _, event: event_to_json(event), lambda _, data: event_from_json(data), "inner"
    )


def several_kind(least: int = 0, build: Callable[[Any], Any] = list) -> Kind:
    """A sequence of at least ``least`` events."""

    def write(name: str, events: Any) -> list[Json]:
        if len(events) < least:
            raise ConfigurationError(
                f"{name} must name at least {least} event(s). Got none instead."
            )
        return [event_to_json(one) for one in events]

    return Kind(write, lambda _, data: build(map(event_from_json, data)))


def _field(kind: Kind) -> Any:
    return attr.ib(metadata={_KIND: kind})


def whole(low: int) -> Any:
    """Declare a field that holds a whole number, at least ``low``."""
    return _field(whole_kind(low))


def positive() -> Any:
    """Declare a field that holds a finite number above 0."""
    return _field(Kind(checks.positive, checks.positive))


def probability() -> Any:
    """Declare a field that holds a number strictly between 0 and 1."""
    return _field(Kind(checks.probability, checks.probability))


def rate() -> Any:
    """Declare a field that holds a number from 0 to 1."""
    return _field(number_kind(1.0))


def alternatives() -> Any:
    """Declare a field that holds one or more events."""
    return _field(several_kind(1, tuple))


def only(relation: Neighbouring, wanted: Neighbouring, what: str) -> None:
    """Refuse every relation but the one under which ``what`` has a bound."""
    if relation is not wanted:
        raise UnsupportedRelation(
            f"relation must be {wanted.value} for {what}. Got {relation.value} instead, for which "
            f"no bound is proven. Account under {wanted.value}, or use Poisson sampling."
        )


def declare(
    event_type: type[DpEvent], name: str, kinds: Mapping[str, Kind], **handlers: Any
) -> None:
    """Register a type of event whose attributes have these kinds; handlers as in `register`."""

    def to_json(event: Any) -> Json:
        return {
            kind.key or field: kind.write(field, getattr(event, field))
            for field, kind in kinds.items()
        }

    def from_json(data: Json) -> DpEvent:
        return event_type(
            **{field: kind.read(field, data[kind.key or field]) for field, kind in kinds.items()}
        )

    register(event_type, name=name, to_json=to_json, from_json=from_json, **handlers)


def event(name: str, **handlers: Any) -> Callable[[type], type]:
    """Register an attrs class of event under ``name``, by the kinds of its fields."""

    def registered(event_type: type) -> Any:
        kinds = {field.name: field.metadata[_KIND] for field in attr.fields(event_type)}
        declare(event_type, name, kinds, **handlers)
        return event_type

    return registered
