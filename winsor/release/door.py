"""The one door: bound, record, noise, in one act.

Every value computed from private rows leaves through `Door.release`. It checks the bounds it is
given, derives the noise and the event from the very same numbers, writes the event to the ledger,
and only then draws the noise. Updates accept only what this door released, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dp_accounting import dp_event

from winsor.contract import Bounded, Neighbouring, Released, UnsoundRelease
from winsor.ledger.ledger import Ledger
from winsor.mechanisms.gaussian import DrawNormal
from winsor.mechanisms.noise import NoiseOfStep, NoiseSource
from winsor.randomness import fingerprint
from winsor.sampling.samplers import LocalEvent, Sampler


class Mechanism(Protocol):
    """Adds noise, and states the event from the very standard deviations it uses."""

    def std(self, parts: Mapping[str, Bounded]) -> dict[str, float]: ...
    def event(self, parts: Mapping[str, Bounded], step: int = 0) -> LocalEvent: ...
    def add_noise(
        self, parts: Mapping[str, Bounded], std: Mapping[str, float], draw: DrawNormal
    ) -> dict[str, Any]: ...
    def config(self) -> dict[str, Any]: ...


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
        self._token = object()
        self._last: tuple[LocalEvent, dp_event.DpEvent] | None = None
        self.use_key(key)

    def use_key(self, key: bytes) -> None:
        """Draw noise and sign ledger entries under ``key`` (a resumed run brings its own)."""
        self.run = fingerprint(key)
        self.noise = NoiseSource(key)
        self._redeemed = -1

    def event(self, parts: Mapping[str, Bounded], step: int = 0) -> dp_event.DpEvent:
        """What one step costs. Depends on bounds, noise and sampler; never on values."""
        given_batch = self.mechanism.event(parts, step)
        if self._last is None or self._last[0] != given_batch:  # steps are usually alike
            self._last = given_batch, self.sampler.amplify(given_batch, self.relation)
        return self._last[1]

    def release(self, step: int, parts: Mapping[str, Bounded]) -> Released:
        """Noise ``parts`` jointly as step ``step``. Their tensors are overwritten."""
        if not parts or not all(isinstance(part, Bounded) for part in parts.values()):
            raise UnsoundRelease(
                "only Bounded values pass the door: state the sensitivity of each part. Got "
                f"{ {name: type(part).__name__ for name, part in parts.items()} } instead."
            )
        std = self.mechanism.std(parts)
        entry = self.ledger.record(self.run, step, self.event(parts, step))
        values = self.mechanism.add_noise(parts, std, NoiseOfStep(self.noise, step))
        return Released(values, std, entry, self._token)

    def redeem(self, released: Released) -> Released:
        """Accept a released value for an update: it came from here, is recorded, and is new."""
        genuine = isinstance(released, Released) and released._seal is self._token
        if not genuine or not self.ledger.has(self.run, released.entry):
            raise UnsoundRelease(
                "an update accepts only values that this run's door released and its ledger "
                "records. Got something else: do not build gradients by hand."
            )
        if released.entry <= self._redeemed:
            raise UnsoundRelease(f"the release of step {released.entry} was already used.")
        self._redeemed = released.entry
        return released
