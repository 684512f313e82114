"""Every random draw of a run is a function of one secret key, a purpose and a step number.

Counter-based streams (Philox) make a resumed run draw the same batches and the same noise as one
that was never interrupted, without storing generator states, and independent of thread counts.

The key is as sensitive as the data: whoever holds it can subtract the noise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import math
import secrets
import sys
from typing import Any

import numpy as np

from winsor.core.contract import ConfigurationError, UnsoundRelease

KEY_BYTES = 32
_LITERALS = (type(None), bool, int, float, complex, str, bytes)
_ARRAYS = (np.ndarray, np.memmap)


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
    """A key that belongs to ``things`` (arrays, settings): other values or types, another key.

    For keys that come from a seed, which people reuse: equal noise must not cover different sums.
    """
    digest = hashlib.blake2b(key=key, digest_size=KEY_BYTES, person=b"winsor-bound")
    for thing in things:
        if type(thing) in _ARRAYS and not thing.dtype.hasobject:
            digest.update(f"{thing.dtype}{thing.shape}".encode())
            digest.update(np.ascontiguousarray(thing).view(np.uint8).reshape(-1).data)
        else:
            plain = isinstance(thing, str) and not _reads_as_value(thing)
            text = str(thing).encode() if plain else name_of(thing).encode()
            digest.update(f"{len(text)}:".encode() + text)
    return digest.digest()


def _reads_as_value(text: str) -> bool:
    """Whether a text could be the name of something that is not a text."""
    with contextlib.suppress(ValueError):
        return not math.isinf(float(text)) or True
    return text in ("None", "True", "False") or text[-1:] in (")", "]", "}", ">", "'", '"')


def name_of(value: Any) -> str:
    """A text that nothing else has: literals of plain values, digests of all bytes of arrays."""
    kind = type(value)
    if kind in _LITERALS or isinstance(value, np.dtype):
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"<{kind.__name__}.{value.name}: {name_of(value.value)}>"
    if isinstance(value, np.generic):
        exact = value.dtype.kind in "biufcSU" and type(value.item()) in _LITERALS
        return f"np.{kind.__name__}({value.item()!r})" if exact else name_of(np.asarray(value))
    if kind in (list, tuple):
        inside = ", ".join(map(name_of, value))
        return f"[{inside}]" if kind is list else f"({inside}{',' * (len(value) == 1)})"
    if kind is dict:
        return f"{{{', '.join(f'{name_of(k)}: {name_of(v)}' for k, v in value.items())}}}"
    if kind in (set, frozenset):
        return f"{kind.__name__}({sorted(map(name_of, value))})"
    if kind in _ARRAYS:
        content = value.tolist() if value.dtype.hasobject else bound_key(bytes(KEY_BYTES), value)
        return f"array({value.dtype}, {value.shape}, {name_of(content)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = "__dataclass_fields__" in vars(kind)  # a plain subclass may keep more
        names = [field.name for field in dataclasses.fields(value)] if own else vars(value)
        named = ((name, getattr(value, name)) for name in names)
        return f"{kind.__qualname__}({', '.join(f'{n}={name_of(v)}' for n, v in named)})"
    return f"<{kind.__module__}.{kind.__qualname__} {name_of(_parts(value))}>"


def _parts(value: Any) -> Any:
    """What makes up a generator, a table, or a class or function of a module."""
    if isinstance(value, np.random.RandomState) or value is np.random:
        return value.get_state()
    if hasattr(value, "__array__") and not isinstance(value, np.ndarray):
        items = getattr(value, "items", None)  # of pandas: columns with names, values with labels
        with contextlib.suppress(TypeError, RuntimeError):
            content = np.asarray(value) if items is None else list(items())
            return str(getattr(value, "dtype", "")), getattr(value, "name", None), content
    home = sys.modules.get(getattr(value, "__module__", None) or "__main__")
    name = getattr(value, "__qualname__", "")
    if home is not sys.modules["__main__"] and name and getattr(home, name, None) is value:
        return f"{value.__module__}.{name}"
    raise ConfigurationError(
        "what a seeded key belongs to must be named by its value: numbers, texts, arrays, and "
        f"containers and dataclasses of them. Got {type(value).__name__} instead. Use "
        "random_state=None, or settings of those kinds."
    )


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
        Arrays and settings: what `name_of` names by its value.
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
