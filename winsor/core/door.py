"""The one door: bound, record, noise, in one act.

Every value computed from private rows leaves through `Door.release`:

    price     the event and the noise, from the bounds, the mechanism and the sampler alone
    digest    a keyed digest of the value before noise, so that noise is bound to what it covers
    record    event and digest, in the ledger and on disk
    noise     drawn for this entry and no other, added on a grid

Updates accept only what a door released, once. The order matters: a crash loses value, never
honesty; and a step that is repeated with another value is refused before its noise is drawn.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from dp_accounting import dp_event

from winsor.core.accounting.lattice import MOST_VALUES, on_grid
from winsor.core.buffers import KINDS, FlatTree, leaves_of, values_in
from winsor.core.contract import (
    NOT_FINITE,
    Bounded,
    BudgetExceeded,
    Neighbouring,
    Released,
    UnsoundRelease,
)
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise import kernel
from winsor.core.noise.protocol import Correlated, LocalEvent, Mechanism
from winsor.core.noise.source import NoiseOfStep, NoiseSource
from winsor.core.randomness import HoldsKey, fingerprint, subkey
from winsor.core.sampling.samplers import Sampler


class Digest:
    """Keyed digests of arrays: GMAC (NIST SP 800-38D) under a key of 16 bytes.

    The same value has the same tag; to whoever does not know the key it is random. A nonce is used
    for one value. The compiled kernel and the library `cryptography` give the same tags.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._mac = AESGCM(key)
        self._kernel = kernel.load() if len(key) == 16 else None

    def tag(self, nonce: bytes, array: Any) -> bytes | None:
        """Return the 16 bytes that name the values of ``array``; None if one is not finite."""
        kind = KINDS[type(array)]
        place = None if self._kernel is None else kind.place(array)
        if self._kernel is not None and place is not None and len(nonce) == 12:
            # Straight into the kernel: short steps notice every call in between.
            (address, count, width), tag = place, ctypes.create_string_buffer(16)
            size = count * width
            finite = self._kernel.gmac(self._key, nonce, address, size, width, tag)
            return tag.raw if finite else None
        contents = kind.contents(array)
        return None if contents is None else self._mac.encrypt(nonce, b"", contents)


class Door(HoldsKey):
    """Releases bounded values of one run under one key, and pays for them in one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        mechanism: Mechanism,
        sampler: Sampler,
        relation: Neighbouring,
        key: bytes,
        source: Callable[[bytes], NoiseSource] | None = None,
    ) -> None:
        ledger.be_about(relation=relation.value)
        self.ledger = ledger
        self._source = NoiseSource if source is None else source
        self.mechanism = mechanism
        self._correlated = mechanism if isinstance(mechanism, Correlated) else None
        self.sampler = sampler
        self.relation = relation
        self._priced: list[Any] = []  # what the price below was asked for
        self._steps = range(0)  # and the steps for which it holds
        self._price: tuple[dict[str, float], dict[str, int], dp_event.DpEvent]
        self._named = b""  # the parts' names, types and shapes: noise depends on them
        self._values = 0
        self.seal = object()
        """Carried by what this door released, and by nothing else."""
        self._block: tuple[int, LocalEvent] | None = None
        self.use_key(key)

    def use_key(self, key: bytes, past: Mapping[str, Any] | None = None) -> None:
        """Draw noise and sign ledger entries under ``key`` (a resumed run brings its own).

        Correlated noise goes on from ``past`` (`noise_state`), or begins anew without it.
        """
        self.run = fingerprint(key)
        self.noise = self._source(key)
        if self._correlated is not None:
            if past:
                self._correlated.load_state(past)
            else:
                self._correlated.restart()
        self._mac = Digest(subkey(key, "digest").to_bytes(16, "little"))

    def noise_state(self) -> dict[str, Any]:
        """What correlated noise remembers; as secret as the key. Empty for other noise."""
        return {} if self._correlated is None else self._correlated.state()

    @property
    def conditions(self) -> list[str]:
        """What the guarantee rests on beside the proofs."""
        return [f"at most {MOST_VALUES:.0e} noise values, from AES-256 under a secret key"]

    def event(self, parts: Mapping[str, Bounded], step: int = 0) -> dp_event.DpEvent:
        """What a release of ``parts`` costs."""
        return price(self.mechanism, self.sampler, self.relation, parts, step)

    def release(self, step: int, parts: Mapping[str, Bounded]) -> Released:
        """Noise ``parts`` jointly as step ``step``. Their arrays are overwritten."""
        asked: list[Any] = []
        leaves: list[list[Any]] = []
        for name, part in parts.items():
            if not isinstance(part, Bounded):
                raise _unbounded(parts)
            value = part.value
            own = [value.flat] if isinstance(value, FlatTree) else leaves_of(value)
            asked += (name, part.sensitivity, part.share, part.coordinate_bound)
            asked += [(KINDS[type(leaf)], leaf.dtype, leaf.shape) for leaf in own]
            leaves.append(own)
        if asked != self._priced or step not in self._steps:  # steps are usually alike
            self._set_price(step, parts, asked)
        std, bits, event = self._price
        if self._correlated is not None:  # its noise covers other values
            covered = self._correlated.covered(parts, std, step)
            leaves = [leaves_of(covered[name]) for name in parts]
        entry = self.ledger.record(self.run, step, event, self._digest(step, leaves))
        values = self.mechanism.add_noise(parts, std, NoiseOfStep(self.noise, entry, bits))
        if self._correlated is not None:
            growth = self._correlated.growth(step)
            std = {name: growth * own for name, own in std.items()}
        return Released(values, std, entry, self.seal)

    def _set_price(self, step: int, parts: Mapping[str, Bounded], asked: list[Any]) -> None:
        if not parts:
            raise _unbounded(parts)
        sizes = {name: values_in(part.value) for name, part in parts.items()}
        std, bits = on_grid(self.mechanism, parts, sizes)
        self._price = std, bits, self.event(parts, step)
        steps, alike = stretch(self.mechanism.phases, step), self.sampler.alike(step)
        forms = {
            name: [(str(leaf.dtype), tuple(leaf.shape)) for leaf in leaves_of(part.value)]
            for name, part in parts.items()
        }
        self._priced, self._named = asked, repr(forms).encode()
        self._steps = range(max(steps.start, alike.start), min(steps.stop, alike.stop))
        self._refuse_change_in_block(step, self.mechanism.event(parts, step))
        self._values = sum(sizes.values())

    def _refuse_change_in_block(self, step: int, local: LocalEvent) -> None:
        """A block of steps is paid for with its first: the others must not cost more."""
        if self.sampler.block == 1:
            return
        block = step // self.sampler.block
        known = self._block if self._block is not None and self._block[0] == block else None
        if step % self.sampler.block and known is not None and known[1] != local:
            raise UnsoundRelease(
                "every step of an epoch must have the event that was paid for with its first. Got "
                f"{local} after {known[1]}: use a rule and a mechanism that do not change within "
                "an epoch, or Poisson sampling."
            )
        self._block = (block, local)

    def _digest(self, step: int, parts: list[list[Any]]) -> str:
        """A keyed digest (GMAC) of names, types, shapes and values before noise.

        To whoever does not know the key it is random. Rules give finite sums for any rows; a value
        that is not finite is an error of the rule, and no row may lead here.
        """
        tags = []
        for number, leaves in enumerate(parts):
            for place, leaf in enumerate(leaves):
                nonce = step.to_bytes(6, "little") + number.to_bytes(2, "little")
                tag = self._mac.tag(nonce + place.to_bytes(4, "little"), leaf)
                if tag is None:
                    raise UnsoundRelease(NOT_FINITE)
                tags.append(tag)
        if self._values * (step + 1) > MOST_VALUES:
            raise BudgetExceeded(
                f"a run may draw at most {MOST_VALUES:.0e} noise values: that many are in its "
                "account. Start a new run with a ledger of its own."
            )
        return hashlib.blake2b(self._named + b"".join(tags), digest_size=16).hexdigest()


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
    return sampler.event(mechanism.event(parts, step), relation, step)


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
