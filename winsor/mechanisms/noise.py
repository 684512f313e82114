"""Standard normals as a function of (key, step, stream): the same values whatever the threads.

    normals of (key, step, stream) = blocks 0, 1, 2, ... of BLOCK values each,
    block b from Philox4x64 with key = BLAKE2b(stream; key) and counter = (step, b, 0)

Philox is counter-based (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), so
every block can be drawn on its own, by any thread, in any order.

Guarantee
---------
Blocks of different (step, stream) never share counter values, and keys of different streams are
independent under BLAKE2b as a keyed hash. A run that is resumed draws the noise it would have
drawn. Two runs must never share a key: whoever holds it can subtract the noise.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from winsor.contract import ConfigurationError

BLOCK = 1 << 16
KEY_BYTES = 16


class NoiseSource:
    """Noise of one run. ``key`` is secret: at least 128 bits, from the system's entropy."""

    def __init__(self, key: bytes | int) -> None:
        self._key = _as_bytes(key)
        self._stream_keys: dict[str, int] = {}

    def normal(self, step: int, stream: str, size: int) -> Tensor:
        """(size,) float32 standard normals of this step and stream."""
        out = np.empty(size, dtype=np.float32)
        key = self._stream_key(stream)
        for block, start in enumerate(range(0, size, BLOCK)):
            counter = (step << 128) | (block << 64)
            generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
            generator.standard_normal(dtype=np.float32, out=out[start : start + BLOCK])
        return torch.from_numpy(out)

    def _stream_key(self, stream: str) -> int:
        key = self._stream_keys.get(stream)
        if key is None:
            digest = hashlib.blake2b(
                stream.encode(), key=self._key, digest_size=16, person=b"winsor-noise"
            ).digest()
            key = self._stream_keys[stream] = int.from_bytes(digest, "little")
        return key


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
