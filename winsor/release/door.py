"""The one door: bound, record, noise, in one act.

Every value computed from private rows leaves through `Door.release`. It checks the bounds it is
given, derives the noise and the event from the very same numbers, writes the event to the ledger,
and only then draws the noise. Updates accept only what a door released, once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dp_accounting import dp_event

from winsor.contract import Bounded, Neighbouring, Released, UnsoundRelease
from winsor.ledger.ledger import Ledger
from winsor.mechanisms.noise import NoiseOfStep, NoiseSource
from winsor.mechanisms.protocol import Mechanism
from winsor.randomness import fingerprint
from winsor.sampling.samplers import Sampler

SEAL = object()
"""Carried by what a door released, and by nothing else."""


class Door:
    """Releases bounded values of one run under one key, and pays for them in one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        mechanism: Mechanism,
        sampler: Sampler,
        relation: Neighbouring,
        key: bytes,
    ) -> None:
        self.ledger = ledger
        self.mechanism = mechanism
        self.sampler = sampler
        self.relation = relation
        self._priced: list[Any] = []  # what the price below was asked for
        self._steps = range(0)  # and the steps for which it holds
        self._price: tuple[dict[str, float], dp_event.DpEvent] = {}, dp_event.NoOpDpEvent()
        self.use_key(key)

    def use_key(self, key: bytes) -> None:
        """Draw noise and sign ledger entries under ``key`` (a resumed run brings its own)."""
        self.run = fingerprint(key)
        self.noise = NoiseSource(key)

    def event(self, parts: Mapping[str, Bounded], step: int = 0) -> dp_event.DpEvent:
        """What a release of ``parts`` costs."""
        return price(self.mechanism, self.sampler, self.relation, parts, step)

    def release(self, step: int, parts: Mapping[str, Bounded]) -> Released:
        """Noise ``parts`` jointly as step ``step``. Their tensors are overwritten."""
        asked: list[Any] = []
        for name, part in parts.items():
            if not isinstance(part, Bounded):
                raise _unbounded(parts)
            asked += (name, part.sensitivity, part.share, part.coordinate_bound)
        if asked != self._priced or step not in self._steps:  # steps are usually alike
            if not parts:
                raise _unbounded(parts)
            self._price = self.mechanism.std(parts), self.event(parts, step)
            self._priced, self._steps = asked, stretch(self.mechanism.phases, step)
        std, event = self._price
        entry = self.ledger.record(self.run, step, event)
        values = self.mechanism.add_noise(parts, std, NoiseOfStep(self.noise, step))
        return Released(values, std, entry, SEAL)


def price(
    mechanism: Mechanism,
    sampler: Sampler,
    relation: Neighbouring,
    parts: Mapping[str, Bounded],
    step: int = 0,
) -> dp_event.DpEvent:
    """The event of a release: a function of bounds, mechanism and sampler, never of values.

    Plans ask here, and so does the door: what is planned is what is recorded.
    """
    return sampler.amplify(mechanism.event(parts, step), relation)


def stretch(phases: Sequence[int], step: int) -> range:
    """The steps around ``step`` between two of ``phases``: they cost the same."""
    later = [phase for phase in phases if phase > step]
    first = max((phase for phase in phases if phase <= step), default=0)
    return range(first, min(later, default=sys.maxsize))


def _unbounded(parts: Mapping[str, Any]) -> UnsoundRelease:
    kinds = {name: type(part).__name__ for name, part in parts.items()}
    return UnsoundRelease(
        "only Bounded values pass the door: state the sensitivity of each part. Got "
        f"{kinds} instead."
    )
