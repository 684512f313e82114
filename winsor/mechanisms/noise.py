"""Standard normals as a function of (key, step, stream, size), whatever the threads.

    slab s of a stream = the normals of G consecutive steps, G = GROUP or what fits into a block
    slab s             = blocks 0, 1, 2, ... of BLOCK values each
    bits of block b    = SFC64 started from the 256-bit state BLAKE2b(s, b, size, stream; key)
    values of block b  = Box-Muller: r = sqrt(-2 log u), (r cos a, r sin a)

Every block has its own hashed starting point, so blocks can be drawn by any thread in any order.
Noise does not depend on the data: while the model uses one slab, a background thread draws the
next, so a step pays for adding noise and not for drawing it. Small models share a slab between
steps, because waking a thread costs more than drawing a few thousand numbers.

Guarantee
---------
Each value of a slab belongs to one step, and blocks start from independent hashes, so a run never
uses a draw twice, and a resumed run draws the noise it would have drawn. Radii come from 31 random
bits with a resolution that grows towards the tail, which reaches 6.6 standard deviations. The
generator is statistically strong but not cryptographic; the key must stay secret, for whoever
holds it can subtract the noise, and two runs must never share one.
"""

from __future__ import annotations

import atexit
import hashlib
import math
import os
import sys
import threading
import weakref
from queue import SimpleQueue
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from winsor.contract import ConfigurationError

BLOCK = 1 << 18
GROUP = 64
KEY_BYTES = 16

_thread = threading.local()


class NoiseSource:
    """Noise of one run. ``key`` is secret: at least 128 bits, from the system's entropy.

    With ``prefetch``, using slab s makes a background thread draw slab s + 1 of the same stream
    and size. Values do not depend on it.
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
        slab, place = divmod(step, group(size))
        known = self._slabs.get(stream)
        if known is None or known[0] != (slab, size):
            known = self._slabs[stream] = ((slab, size), self._fetch(slab, stream, size))
        return known[1][place * size : (place + 1) * size]

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
            buffer = _free(pool, size * group(size))
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


def draw(key: bytes, slab: int, stream: str, size: int, buffer: np.ndarray | None = None) -> Tensor:
    """(group(size) * size,) standard normals of one slab, here and now."""
    if buffer is None:
        buffer = np.empty(group(size) * size, dtype=np.float32)
    for block, start in enumerate(range(0, len(buffer), BLOCK)):
        _fill(buffer[start : start + BLOCK], _bits(key, slab, block, size, stream))
    return torch.from_numpy(buffer)


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
    radius = (words[:half] & 0x7FFFFFFF).astype(np.float32)
    radius += 0.5
    radius *= 2.0**-31
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
