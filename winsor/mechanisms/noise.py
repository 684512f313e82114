"""Standard normals as a function of (key, step, stream): the same values whatever the threads.

    normals of (key, step, stream) = blocks 0, 1, 2, ... of BLOCK values each,
    bits of block b   = SFC64 started from the 256-bit state BLAKE2b(step, b, stream; key)
    values of block b = Box-Muller: r = sqrt(-2 log u), (r cos a, r sin a)

Every block has its own hashed starting point, so blocks can be drawn by any thread in any order.
Noise does not depend on the data: while the model works on step t, a background thread draws the
noise of step t + 1, so a step pays for adding noise and not for drawing it.

Guarantee
---------
Blocks of different (step, stream, b) start from independent hashes, so a run never uses a draw
twice, and a resumed run draws the noise it would have drawn. Radii come from 31 random bits with
a resolution that grows towards the tail, which reaches 6.6 standard deviations. The generator is
statistically strong but not cryptographic; the key must stay secret, for whoever holds it can
subtract the noise, and two runs must never share one.
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

BLOCK = 1 << 16
KEY_BYTES = 16

_thread = threading.local()

Request = tuple[int, str, int]  # step, stream, size


class NoiseSource:
    """Noise of one run. ``key`` is secret: at least 128 bits, from the system's entropy.

    With ``prefetch``, asking for step t makes a background thread draw step t + 1 of the same
    stream and size. Values do not depend on it.
    """

    def __init__(self, key: bytes | int, prefetch: bool = True) -> None:
        self._key = _as_bytes(key)
        self._prefetch = prefetch
        self._ahead: dict[str, tuple[Request, SimpleQueue[Tensor]]] = {}
        self._worker: _Worker | None = None
        self._process = 0

    def normal(self, step: int, stream: str, size: int) -> Tensor:
        """(size,) float32 standard normals of this step and stream."""
        if self._process != os.getpid():  # first use, or a fork: threads do not survive forks
            self._ahead, self._worker, self._process = {}, None, os.getpid()
        request, answer = self._ahead.pop(stream, (None, None))
        if answer is not None and request == (step, stream, size):
            out = answer.get()
        else:
            out = draw(self._key, step, stream, size)
        if self._prefetch:
            self._ask((step + 1, stream, size))
        return out

    def _ask(self, request: Request) -> None:
        if self._worker is None:
            self._worker = _Worker(self._key)
        answer: SimpleQueue[Tensor] = SimpleQueue()
        self._ahead[request[1]] = request, answer
        self._worker.requests.put((request, answer))

    def close(self) -> None:
        """Stop the background thread. Later calls draw on their own, or start a new one."""
        worker, self._worker, self._ahead = self._worker, None, {}
        if worker is not None and self._process == os.getpid():
            worker.stop()

    def __del__(self) -> None:
        if getattr(self, "_worker", None) is not None:
            self.close()


class _Worker:
    """A thread that draws what is asked for, until told to stop. It does not know the source."""

    alive: ClassVar[weakref.WeakSet[_Worker]] = weakref.WeakSet()

    def __init__(self, key: bytes) -> None:
        self.requests: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(
            target=_work, args=(key, self.requests), name="winsor-noise", daemon=True
        )
        self._thread.start()
        self.alive.add(self)

    def stop(self) -> None:
        self.requests.put(None)
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
    while (item := requests.get()) is not None:
        (step, stream, size), answer = item
        answer.put(draw(key, step, stream, size, _free(pool, size)))
        del answer, item


def _free(pool: list[np.ndarray], size: int) -> np.ndarray:
    """A buffer that nobody reads any more: fresh memory would cost a page fault per page."""
    for buffer in pool:
        if len(buffer) == size and sys.getrefcount(buffer) == 3:  # pool, loop, argument
            return buffer
    if len(pool) == 4:
        pool.pop(0)
    pool.append(np.empty(size, dtype=np.float32))
    return pool[-1]


def draw(key: bytes, step: int, stream: str, size: int, buffer: np.ndarray | None = None) -> Tensor:
    """(size,) float32 standard normals, here and now."""
    out = torch.empty(size) if buffer is None else torch.from_numpy(buffer)
    with torch.inference_mode(False), torch.no_grad():
        for block, start in enumerate(range(0, size, BLOCK)):
            _fill(out[start : start + BLOCK], _bits(key, step, stream, block))
    return out


def _bits(key: bytes, step: int, stream: str, block: int) -> np.random.SFC64:
    """The bit generator of one block."""
    message = step.to_bytes(16, "little") + block.to_bytes(8, "little") + stream.encode()
    digest = hashlib.blake2b(message, key=key, digest_size=32, person=b"winsor-noise").digest()
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


def _fill(out: Tensor, bits: np.random.SFC64) -> None:
    """Box and Muller 1958, in vector operations that let other threads run."""
    half = -(-len(out) // 2)
    words = torch.from_numpy(bits.random_raw(half).view(np.int32))
    radius = words[:half].bitwise_and(0x7FFFFFFF).float()
    radius.add_(0.5).mul_(2.0**-31).log_().mul_(-2.0).sqrt_()
    angle = words[half:].float().mul_(math.pi * 2.0**-31)
    first, second = out[:half], out[half:]
    torch.cos(angle, out=first).mul_(radius)
    torch.sin(angle[: len(second)], out=second).mul_(radius[: len(second)])


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
