"""Standard normals as a function of (key, step, stream, size), whatever the threads.

    slab s of a stream = the normals of G consecutive steps, G = GROUP or what fits into a block
    slab s             = blocks 0, 1, 2, ... of BLOCK values each
    bits of block b    = SFC64 started from the 256-bit state BLAKE2b(s, b, size, stream; key)
    values of block b  = G > 1: ziggurat;  G = 1: Box-Muller, r = sqrt(-2 log u), (r cos a, r sin a)

Every block has its own hashed starting point, so blocks can be drawn by any thread in any order.
Noise does not depend on the data: while the model uses one slab, a background thread draws the
next, so a step pays for adding noise and not for drawing it. Small models share a slab between
steps, because waking a thread costs more than drawing a few thousand numbers.

Why two methods: Box-Muller in vector operations takes half the time, but each of its dozen
operations hands the interpreter back and forth between the threads, which a step of a small model
would notice. The ziggurat of numpy is one call.

Guarantee
---------
Each value of a slab belongs to one step, and blocks start from independent hashes, so a run never
uses a draw twice, and a resumed run draws the noise it would have drawn (the ledger names the
`method`, so that another one is refused). The tails reach beyond 8 standard deviations: the
outermost 2^-20 of the radii of Box-Muller take 64 more bits, and numpy's ziggurat has a tail of
its own. The generator is statistically strong but not cryptographic; the key must stay secret, for
whoever holds it can subtract the noise, and two runs must never share one.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import math
import os
import sys
import threading
import weakref
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from winsor.contract import Bounded, ConfigurationError
from winsor.mechanisms.protocol import DrawNormal
from winsor.tree import FlatTree

BLOCK = 1 << 18
GROUP = 64
AHEAD = 64 * BLOCK
"""Values drawn ahead at most: 64 MiB. A larger model draws the rest when it adds it."""
KEY_BYTES = 16
RARE = 1 << 11
"""Of 2^31 equally likely radii, the outermost ones, which take more bits."""

_thread = threading.local()


class NoiseSource:
    """Noise of one run. ``key`` is secret: at least 128 bits, from the system's entropy.

    With ``prefetch``, using slab s makes a background thread draw slab s + 1 of the same stream
    and size, or as much of it as AHEAD allows. Values do not depend on it.
    """

    def __init__(self, key: bytes | int, prefetch: bool = True) -> None:
        self._key = _as_bytes(key)
        self._prefetch = prefetch
        self._slabs: dict[str, tuple[tuple[int, int], Tensor]] = {}
        self._ahead: dict[str, _Request] = {}
        self._worker: _Worker | None = None
        self._process = os.getpid()

    def normal(self, step: int, stream: str, size: int) -> Tensor:
        """(size,) float32 standard normals of this step and stream. Do not change them in place."""
        drawn = self._drawn(step, stream, size)
        if len(drawn) == size:
            return drawn
        out = np.empty(size, dtype=np.float32)
        out[: len(drawn)] = drawn.numpy()
        _fill_blocks(out, len(drawn), self._key, step, stream, size)
        return torch.from_numpy(out)

    def add(self, step: int, stream: str, flat: Tensor, std: float) -> None:
        """``flat += std * normal(step, stream, len(flat))``, without all of it in memory at once
        where it is large."""
        size = flat.numel()
        drawn = self._drawn(step, stream, size)
        if drawn.numel() == size:
            flat.add_(_like(drawn, flat), alpha=std)
            return
        flat[: len(drawn)].add_(_like(drawn, flat), alpha=std)
        for start in range(len(drawn), size, BLOCK):
            piece = np.empty(min(BLOCK, size - start), dtype=np.float32)
            _fill(piece, _bits(self._key, step, start // BLOCK, size, stream))
            noise = _like(torch.from_numpy(piece), flat)
            flat[start : start + len(piece)].add_(noise, alpha=std)

    def _drawn(self, step: int, stream: str, size: int) -> Tensor:
        """The normals of this step as far as AHEAD allows; almost always all of them."""
        steps = group(size)
        slab, place = divmod(step, steps)
        known = self._slabs.get(stream)
        if known is None or known[0] != (slab, size):
            del known
            known = ((slab, size), self._fetch(slab, stream, size))
            if steps > 1:  # else nobody will ask for it again
                self._slabs[stream] = known
        return known[1][place * size : (place + 1) * size] if steps > 1 else known[1]

    def _fetch(self, slab: int, stream: str, size: int) -> Tensor:
        self._slabs.pop(stream, None)  # its memory may serve again
        if self._process != os.getpid():  # threads do not survive a fork
            self._ahead, self._worker, self._process = {}, None, os.getpid()
        request = self._ahead.pop(stream, None)
        if request is not None and request.what == (slab, stream, size):
            out = request.take(self._key)
        else:
            out = draw(self._key, slab, stream, size)
        if self._prefetch:
            if self._worker is None:
                self._worker = _Worker(self._key)
            self._ahead[stream] = self._worker.ask((slab + 1, stream, size))
        return out

    def close(self) -> None:
        """Stop the background thread. Later calls draw on their own, or start a new one."""
        worker, self._worker, self._ahead = self._worker, None, {}
        if worker is not None and self._process == os.getpid():
            worker.stop()

    def __del__(self) -> None:
        if getattr(self, "_worker", None) is not None:
            self.close()


class NoiseOfStep:
    """One step's noise from a source."""

    __slots__ = ("_source", "_step")

    def __init__(self, source: NoiseSource, step: int) -> None:
        self._source = source
        self._step = step

    def __call__(self, name: str, size: int) -> Tensor:
        return self._source.normal(self._step, name, size)

    def add(self, name: str, flat: Tensor, std: float) -> None:
        self._source.add(self._step, name, flat, std)


def add_normal(
    parts: Mapping[str, Bounded], std: Mapping[str, float], draw: DrawNormal
) -> dict[str, Any]:
    """Add Gaussian noise to every part in place, and return the values."""
    values: dict[str, Any] = {}
    for name, part in parts.items():
        values[name] = value = part.value
        if isinstance(value, FlatTree):
            draw.add(name, value.flat, std[name])
            continue
        leaves = list(value.values()) if isinstance(value, dict) else [value]
        sizes = [leaf.numel() for leaf in leaves]
        pieces = torch.split(draw(name, sum(sizes)), sizes)
        shaped = [_like(z.view(leaf.shape), leaf) for z, leaf in zip(pieces, leaves, strict=True)]
        torch._foreach_add_(leaves, shaped, alpha=std[name])
    return values


class _Request:
    """A slab to draw. Whoever claims it first draws it, so a busy machine never waits for a thread
    that has not begun."""

    def __init__(self, what: tuple[int, str, int]) -> None:
        self.what = what
        self.claim = threading.Lock()
        self.answer: SimpleQueue[Tensor] = SimpleQueue()

    def take(self, key: bytes) -> Tensor:
        if self.claim.acquire(blocking=False):
            return draw(key, *self.what)
        return self.answer.get()


class _Worker:
    """A thread that draws what is asked for, until told to stop. It does not know the source."""

    alive: ClassVar[weakref.WeakSet[_Worker]] = weakref.WeakSet()

    def __init__(self, key: bytes) -> None:
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(
            target=_work, args=(key, self._requests), name="winsor-noise", daemon=True
        )
        self._thread.start()
        self.alive.add(self)

    def ask(self, what: tuple[int, str, int]) -> _Request:
        request = _Request(what)
        self._requests.put(request)
        return request

    def stop(self) -> None:
        self._requests.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()
        self.alive.discard(self)


@atexit.register
def _stop_all() -> None:
    """A thread inside torch must not outlive the interpreter."""
    for worker in list(_Worker.alive):
        worker.stop()


def _work(key: bytes, requests: SimpleQueue[Any]) -> None:
    pool: list[np.ndarray] = []
    while (request := requests.get()) is not None:
        if request.claim.acquire(blocking=False):
            slab, stream, size = request.what
            buffer = _free(pool, ahead(size))
            request.answer.put(draw(key, slab, stream, size, buffer))
            del buffer
        del request


def _free(pool: list[np.ndarray], size: int) -> np.ndarray:
    """A buffer that nobody reads any more: fresh memory would cost a page fault per page."""
    for buffer in pool:
        if len(buffer) == size and sys.getrefcount(buffer) == 3:  # pool, loop, argument
            return buffer
    if len(pool) == 4:
        pool.pop(0)
    pool.append(np.empty(size, dtype=np.float32))
    return pool[-1]


def group(size: int) -> int:
    """How many steps share a slab."""
    return max(1, min(GROUP, BLOCK // max(1, size)))


def ahead(size: int) -> int:
    """How many values of a slab are drawn ahead: all of it, unless it is huge."""
    return min(group(size) * size, AHEAD)


def draw(key: bytes, slab: int, stream: str, size: int, buffer: np.ndarray | None = None) -> Tensor:
    """(ahead(size),) standard normals of one slab, here and now."""
    if buffer is None:
        buffer = np.empty(ahead(size), dtype=np.float32)
    _fill_blocks(buffer, 0, key, slab, stream, size)
    return torch.from_numpy(buffer)


def _fill_blocks(
    out: np.ndarray, start: int, key: bytes, slab: int, stream: str, size: int
) -> None:
    """Fill ``out`` from ``start``, which begins a block, with the normals of a slab."""
    shared = group(size) > 1
    for first in range(start, len(out), BLOCK):
        bits = _bits(key, slab, first // BLOCK, size, stream)
        piece = out[first : first + BLOCK]
        if shared:
            np.random.Generator(bits).standard_normal(dtype=np.float32, out=piece)
        else:
            _fill(piece, bits)


def _like(noise: Tensor, flat: Tensor) -> Tensor:
    same = noise.dtype is flat.dtype and noise.device == flat.device
    return noise if same else noise.to(flat)


def _bits(key: bytes, slab: int, block: int, size: int, stream: str) -> np.random.SFC64:
    """The bit generator of one block."""
    numbers = b"".join(number.to_bytes(16, "little") for number in (slab, block, size))
    digest = hashlib.blake2b(
        numbers + stream.encode(), key=key, digest_size=32, person=b"winsor-noise"
    ).digest()
    bits: np.random.SFC64 | None = getattr(_thread, "bits", None)
    if bits is None:
        bits = _thread.bits = np.random.SFC64(0)  # its own start is never used
    words = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
    bits.state = {
        "bit_generator": "SFC64",
        "state": {"state": words},
        "has_uint32": 0,
        "uinteger": 0,
    }
    return bits


def _fill(out: np.ndarray, bits: np.random.SFC64) -> None:
    """Box and Muller 1958, in vector operations that let other threads run.

    In numpy, not torch: its loops never start threads of their own, which would take the core that
    the model works on, and would not survive a fork.
    """
    half = -(-len(out) // 2)
    words = bits.random_raw(half).view(np.int32)
    whole = words[:half] & 0x7FFFFFFF
    rare = np.flatnonzero(whole < RARE)
    radius = whole.astype(np.float32)
    radius += 0.5
    radius *= 2.0**-31
    if len(rare):
        fine = (bits.random_raw(len(rare)) + 0.5) * 2.0**-64
        radius[rare] = (whole[rare] + fine) * 2.0**-31
    np.log(radius, out=radius)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    angle = words[half:].astype(np.float32)
    angle *= np.float32(math.pi * 2.0**-31)
    first, second = out[:half], out[half:]
    np.cos(angle, out=first)
    first *= radius
    np.sin(angle[: len(second)], out=second)
    second *= radius[: len(second)]


@functools.cache
def method() -> str:
    """Names how a key becomes noise, by values drawn under a public key.

    Were a resumed run to draw other noise for a step that it repeats, the step would be released
    twice under one entry of the ledger. Rounded, because the last digit of a logarithm may differ
    between machines, which does no harm.
    """
    key = bytes(KEY_BYTES)
    few = [draw(key, 0, "method", size)[:64] for size in (1, BLOCK // 2 + 1)]
    digits = np.round(torch.cat(few).numpy().astype(np.float64), 3) + 0.0  # no -0.0
    return hashlib.blake2b(digits.tobytes(), digest_size=8).hexdigest()


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
