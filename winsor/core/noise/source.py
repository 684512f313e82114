"""Noise of one run: lattice noise by (entry, stream, size), drawn ahead while the model works.

    key of a stream     = BLAKE2b(stream, size, law, bits; the run's key): an AES-256 key
    noise of an entry   = lattice.py with that key and the entry's number

Noise does not depend on the data, so a background thread draws the next entries while the model
uses these. Small models draw many entries at once, because waking a thread costs more than drawing
a few thousand numbers. How entries are grouped, who draws them and in what order changes no value.

Who owns a buffer: the source, until it hands it to a request; the request, until it is taken back.
No buffer ever leaves this file: `add` works in place and `normal` returns memory of its own.

Guarantee
---------
An element's noise is a function of (key, stream, size, law, bits, entry, place), and no two of
these share cipher blocks: entry, place and domain are different fields of the counter, and the rest
have keys of their own. `add` refuses in a forked process: parent and child would cover
different sums with the same noise.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from winsor.core.accounting.lattice import LEAST_BITS, MOST_BITS, bits_for
from winsor.core.buffers import KINDS, FlatTree, leaves_of
from winsor.core.contract import Bounded, ConfigurationError, UnsoundRelease
from winsor.core.noise import kernel, lattice
from winsor.core.noise.ahead import Request, Slab, Worker, fill
from winsor.core.noise.laws import LAWS
from winsor.core.noise.protocol import DrawNoise
from winsor.core.randomness import HoldsKey

BLOCK = 1 << 18
GROUP = 64
AHEAD = 1 << 23
"""Values drawn ahead at most: 64 MiB. A larger model draws the rest when it adds it."""
KEY_BYTES = 16


class _Stream:
    """One stream of one size: how its noise is drawn, and what is drawn already."""

    __slots__ = (
        "address",
        "ahead",
        "bits",
        "entries",
        "key",
        "law",
        "request",
        "size",
        "slab",
        "slabbed",
    )

    def __init__(self, key: bytes, law: str, bits: int, size: int) -> None:
        self.key = key
        self.law = law
        self.bits = bits
        self.size = size
        self.entries = group(size)
        self.ahead = min(size, AHEAD)
        self.slabbed = False
        """Whether entries are drawn in slabs at all."""
        self.slab: tuple[Slab, np.ndarray] | None = None
        self.address = 0
        """Of the slab's first value, while there is a slab."""
        self.request: Request | None = None


class NoiseSource(HoldsKey):
    """Noise of one run, for one thread. ``key`` is secret: at least 128 bits of entropy.

    ``prefetch`` draws ahead in the background; without the kernel only for large tensors, because
    each operation of the pure path hands the interpreter back and forth between the threads.
    ``use_kernel=False`` draws the same values in numpy.
    """

    def __init__(self, key: bytes | int, prefetch: bool = True, use_kernel: bool = True) -> None:
        self._key = _as_bytes(key)
        self._prefetch = prefetch
        self._draw: Any = (kernel.load() if use_kernel else None) or lattice
        self.compiled = self._draw is not lattice
        self._streams: dict[tuple[str, int, str, int | None], _Stream] = {}
        self._worker: Worker | None = None
        self._process = os.getpid()

    def add(
        self,
        entry: int,
        stream: str,
        flat: Any,
        std: float,
        *,
        law: str = "gaussian",
        bits: int | None = None,
    ) -> None:
        """Replace the sum ``flat`` by its release, in place: rounded to the grid of std 2^-bits,
        plus noise, in float64, then in its own dtype. ``std`` is the scale for "laplace"."""
        self.add_leaves(entry, stream, [flat], std, law=law, bits=bits)

    def add_leaves(
        self,
        entry: int,
        stream: str,
        leaves: Sequence[Any],
        std: float,
        *,
        law: str = "gaussian",
        bits: int | None = None,
    ) -> None:
        """One vector in several arrays: as `add` on their concatenation."""
        whole = sum([KINDS[type(leaf)].size(leaf) for leaf in leaves])
        self.add_slice(entry, stream, leaves, std, 0, whole, law=law, bits=bits)

    def add_slice(
        self,
        entry: int,
        stream: str,
        leaves: Sequence[Any],
        std: float,
        first: int,
        size: int,
        *,
        law: str = "gaussian",
        bits: int | None = None,
    ) -> None:
        """``leaves`` are elements [first, ...) of a vector of ``size``: the slice of one rank."""
        if self._process != os.getpid():
            raise UnsoundRelease(
                "a noise source must add noise in the process that built it. Got a forked process "
                "instead, whose parent would add the same noise. Build the run in this process."
            )
        drawn_from = self._stream(entry, std, stream, size, law, bits)
        gamma = std * 2.0**-drawn_from.bits
        drawn = self._drawn(drawn_from, entry)
        for leaf in leaves:
            first += self._release(leaf, drawn_from, entry, first, gamma, drawn)

    def normal(self, entry: int, stream: str, size: int, law: str = "gaussian") -> np.ndarray:
        """(size,) float64 draws of unit std (scale) on the grid 2^-bits, in memory of their own."""
        drawn_from = self._stream(entry, 1.0, stream, size, law, None)
        drawn = self._drawn(drawn_from, entry)
        out = np.empty(size)
        out[: len(drawn)] = drawn
        rest, bits = out[len(drawn) :], drawn_from.bits
        if len(rest):
            start, key = len(drawn), drawn_from.key
            self._draw.draw(LAWS[law](), key, entry, start, len(rest), bits, rest)
        out *= 2.0**-bits
        return out

    def close(self) -> None:
        """Stop the background thread. Later calls draw on their own, or start a new one."""
        worker, self._worker = self._worker, None
        for each in self._streams.values():
            each.slab = each.request = None
        if worker is not None:
            worker.stop()

    def _release(
        self,
        leaf: Any,
        stream: _Stream,
        entry: int,
        first: int,
        gamma: float,
        drawn: np.ndarray,
    ) -> int:
        """Release one leaf, whose values begin at ``first``, and return how many it has."""
        kind = KINDS[type(leaf)]
        place = kind.place(leaf)
        if place is None:
            copy = kind.doubles(leaf)
            self._release(copy, stream, entry, first, gamma, drawn)
            kind.write(leaf, copy)
            return len(copy)
        address, size, width = place
        if self.compiled and first + size <= len(drawn):
            # Straight into the kernel: short steps notice every call in between.
            noise = stream.address + 8 * (entry % stream.entries * stream.ahead + first)
            apply = self._draw.apply_f32 if width == 4 else self._draw.apply_f64
            apply(noise, size, gamma, 1.0 / gamma, address)
            return size
        x = kind.view(leaf)
        ready = min(max(0, len(drawn) - first), len(x))
        if ready:
            self._draw.apply(drawn[first : first + ready], gamma, x[:ready])
        if ready < len(x):
            law, start = LAWS[stream.law](), first + ready
            self._draw.release(law, stream.key, entry, start, stream.bits, gamma, x[ready:])
        return size

    def _drawn(self, stream: _Stream, entry: int) -> np.ndarray:
        """The noise of this entry as far as it was drawn ahead; perhaps none of it."""
        if not stream.slabbed:
            return np.empty(0)
        place = entry % stream.entries
        known = stream.slab
        if known is None or known[0].entry != entry - place:
            start = entry - place
            what = Slab(stream.key, stream.law, stream.bits, start, stream.entries, stream.ahead)
            known = stream.slab = (what, self._fetch(stream, what))
            stream.address = known[1].ctypes.data
        return known[1][place * stream.ahead : (place + 1) * stream.ahead]

    def _draws_ahead(self, size: int) -> bool:
        return self._prefetch and (self.compiled or size > BLOCK // 2)

    def _fetch(self, stream: _Stream, what: Slab) -> np.ndarray:
        """The slab's noise; and ask for the next one, into the buffer of the one before."""
        here = self._process == os.getpid()
        if not here:  # threads do not survive a fork
            stream.request = self._worker = None
        free = None if stream.slab is None else stream.slab[1]
        request, stream.request, stream.slab = stream.request, None, None
        out = request.take() if request is not None and request.what == what else None
        if out is None:
            out = free if free is not None else np.empty(what.entries * what.size)
            free = None
            fill(self._draw, what, out)
        if here and self._draws_ahead(stream.size):
            if self._worker is None:
                self._worker = Worker()
                weakref.finalize(self, self._worker.stop)
            buffer = free if free is not None else np.empty(len(out))
            following = what._replace(entry=what.entry + what.entries)
            stream.request = self._worker.ask(Request(following, buffer, self._draw))
        return out

    def _stream(
        self, entry: int, std: float, stream: str, size: int, law: str, bits: int | None
    ) -> _Stream:
        if not (0 <= entry < 1 << 63 and 1e-200 < std < 1e200):
            raise ConfigurationError(
                "noise must have an entry number below 2^63 and a positive finite std. Got "
                f"{entry!r} and {std!r} instead."
            )
        name = (stream, size, law, bits)
        known = self._streams.get(name)
        if known is None:
            chosen = _checked(size, law, bits)
            key = hashlib.blake2b(
                f"{law}\0{chosen}\0{size}\0{stream}".encode(),
                key=self._key,
                digest_size=32,
                person=b"winsor-lattice",
            ).digest()
            known = self._streams[name] = _Stream(key, law, chosen, size)
            at_once = size <= BLOCK // 2 and not self.compiled
            known.slabbed = at_once or self._draws_ahead(size)
        return known


class NoiseOfStep:
    """One entry's noise from a source; ``bits`` says how fine the grid of each part is."""

    __slots__ = ("_bits", "_entry", "_source")

    def __init__(self, source: NoiseSource, entry: int, bits: Mapping[str, int]) -> None:
        self._source = source
        self._entry = entry
        self._bits = bits

    def add(self, name: str, leaves: Sequence[Any], scale: float, law: str) -> None:
        """Add the noise of this entry, as `DrawNoise.add` does."""
        bits = self._bits[name]
        self._source.add_leaves(self._entry, name, leaves, scale, law=law, bits=bits)


def add_gaussian(
    parts: Mapping[str, Bounded], std: Mapping[str, float], draw: DrawNoise
) -> dict[str, Any]:
    """Release every part with Gaussian noise, in place, and return the values."""
    return _released(parts, std, draw, "gaussian")


def add_laplace(
    parts: Mapping[str, Bounded], std: Mapping[str, float], draw: DrawNoise
) -> dict[str, Any]:
    """Release every part with Laplace noise of scale std / sqrt(2), in place."""
    scale = {name: value / math.sqrt(2) for name, value in std.items()}
    return _released(parts, scale, draw, "laplace")


def _released(
    parts: Mapping[str, Bounded], scale: Mapping[str, float], draw: DrawNoise, law: str
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, part in parts.items():
        values[name] = value = part.value
        leaves = [value.flat] if isinstance(value, FlatTree) else leaves_of(value)
        draw.add(name, leaves, scale[name], law)
    return values


def group(size: int) -> int:
    """How many entries share a slab."""
    return max(1, min(GROUP, BLOCK // max(1, size)))


@functools.cache
def method() -> str:
    """Names how a key becomes noise, by values drawn under a public key.

    Were a resumed run to draw other noise for a step that it repeats, the step would be released
    twice under one entry of the ledger. Values are exact, so this is too.
    """
    digest = hashlib.blake2b(digest_size=8)
    for law in LAWS:
        out = np.empty(20_000)
        lattice.draw(LAWS[law](), bytes(range(32)), 3, 1, len(out), 31, out)
        digest.update(out.astype("<f8").tobytes())
    return digest.hexdigest()


def _checked(size: int, law: str, bits: int | None) -> int:
    """How many bits the grid has."""
    if law not in LAWS or not 0 <= size < 1 << 47:
        raise ConfigurationError(
            f"noise must have a law of {sorted(LAWS)} and fewer than 2^47 values. Got {law!r} and "
            f"{size!r} instead."
        )
    chosen = bits_for(size, law == "laplace") if bits is None else bits
    if not LEAST_BITS <= chosen <= MOST_BITS:
        raise ConfigurationError(
            f"the grid must have {LEAST_BITS} to {MOST_BITS} bits. Got {bits} instead."
        )
    return chosen


def _as_bytes(key: bytes | int) -> bytes:
    if isinstance(key, int):
        if key < 0:
            raise ConfigurationError(f"a noise key must not be negative. Got {key!r} instead.")
        key = key.to_bytes(max(KEY_BYTES, (key.bit_length() + 7) // 8), "little")
    if not KEY_BYTES <= len(key) <= 64:
        raise ConfigurationError(
            f"a noise key must have {KEY_BYTES} to 64 bytes. Got {len(key)} instead. Use "
            "secrets.token_bytes(32)."
        )
    return key
