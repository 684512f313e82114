"""Every random draw of a run is a function of one secret key, a purpose and a step number.

Counter-based streams (Philox) make a resumed run draw the same batches and the same noise as one
that was never interrupted, without storing generator states, and independent of thread counts.

The key is as sensitive as the data: whoever holds it can subtract the noise.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
from typing import Any

import numpy as np

from winsor.core.contract import ConfigurationError, UnsoundRelease

KEY_BYTES = 32


class HoldsKey:
    """Refuses to be copied or pickled: two holders of a key would put the same noise on two sums.

    (`copy.copy`, `copy.deepcopy` and `pickle` all ask here.)
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UnsoundRelease(
            f"{type(self).__name__} must not be copied or pickled: the copy would draw the same "
            "noise as the original, and the difference of two values under it has none. Build a "
            "run of its own; to continue this one later, private.save(path)."
        )


def new_key(seed: int | None = None) -> bytes:
    """A fresh secret key, or a reproducible (hence not secret) one from ``seed``."""
    if seed is None:
        return secrets.token_bytes(KEY_BYTES)
    return hashlib.blake2b(f"winsor seed {seed}".encode(), digest_size=KEY_BYTES).digest()


def fingerprint(key: bytes) -> str:
    """Names a key without revealing it."""
    return hashlib.blake2b(key, digest_size=8, person=b"winsor-id").hexdigest()


def bound_key(key: bytes, *things: Any) -> bytes:
    """A key that belongs to ``things`` (arrays, texts): other data or settings, another key.

    For keys that come from a seed, which people reuse: equal noise must not cover different sums.
    """
    digest = hashlib.blake2b(key=key, digest_size=KEY_BYTES, person=b"winsor-bound")
    for thing in things:
        if isinstance(thing, np.ndarray):
            digest.update(f"{thing.dtype}{thing.shape}".encode())
            digest.update(np.ascontiguousarray(thing).view(np.uint8).reshape(-1).data)
        else:
            text = str(thing).encode()
            digest.update(f"{len(text)}:".encode() + text)
    return digest.digest()


def key_for(random_state: Any, spent: int | None, *bound_to: Any) -> bytes:
    """Return the key of one fit: fresh and secret for None, reproducible from a seed otherwise.

    A key from a seed belongs to ``bound_to`` (data and settings): people reuse seeds, and equal
    noise must not cover different sums. It protects nobody who knows the seed.

    Parameters
    ----------
    random_state
        None, an integer, a NumPy ``RandomState`` (it gives a seed) or a secret key of bytes.
    spent
        Steps that the ledger held before this fit of an estimator, so that a continued fit draws
        other noise; integers then seed a ``RandomState``, as in scikit-learn. None for a statistic
        that is computed once: an integer is the seed, and bytes are the key itself.
    bound_to
        Arrays, and settings in words.
    """
    if random_state is None:
        return new_key()
    if isinstance(random_state, bytes):
        return random_state if spent is None else bound_key(random_state, spent)
    if spent is None and isinstance(random_state, int | np.integer):
        return bound_key(new_key(int(random_state)), *bound_to)
    seed = int(_random_state(random_state).randint(2**31 - 1))
    return bound_key(new_key(seed + ((spent or 0) << 32)), *bound_to)


def _random_state(given: Any) -> Any:
    if isinstance(given, int | np.integer):
        return np.random.RandomState(int(given))
    if isinstance(given, np.random.RandomState) or given is np.random:
        return given
    raise ConfigurationError(
        "random_state must be None (a fresh secret key), an int (reproducible), a RandomState or a "
        f"key of bytes. Got {given!r} instead."
    )


@functools.lru_cache(maxsize=256)  # asked for at every step
def subkey(key: bytes, purpose: str) -> int:
    """128 bits that belong to one purpose; streams of different purposes are independent."""
    digest = hashlib.blake2b(purpose.encode(), key=key, digest_size=16).digest()
    return int.from_bytes(digest, "little")


def stream(key: bytes, purpose: str, step: int) -> np.random.Generator:
    """The generator for one purpose at one step. The step sits in the high counter words, so
    streams of different steps cannot overlap before 2**128 draws."""
    counter = step << 128
    return np.random.Generator(np.random.Philox(key=subkey(key, purpose), counter=counter))
