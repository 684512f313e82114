"""The compiled kernel of `_noise.c`, where it can be had (`winsor/core/compiled.py`).

Before it is used it must report AES and AVX2 and reproduce bits of the pure path. Whatever fails,
the pure path draws the same noise: only slower.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from winsor.core import compiled
from winsor.core.noise import lattice
from winsor.core.noise import laws as tables

SOURCE = Path(__file__).with_name("_noise.c")


class _LawTables(ctypes.Structure):
    _fields_ = [
        ("flat", ctypes.c_void_p),
        ("residual_from", ctypes.c_int64),
        ("slope", ctypes.c_void_p),
        ("edge", ctypes.c_void_p),
        ("steep", ctypes.c_void_p),
        ("curve", ctypes.c_double),
        ("alias_bits", ctypes.c_int64),
        ("alias_limit", ctypes.c_void_p),
        ("alias_symbol", ctypes.c_void_p),
        ("band_start", ctypes.c_void_p),
        ("band_upto", ctypes.c_void_p),
        ("cells", ctypes.c_int64),
    ]


class Kernel:
    """Calls into the library. The arrays must be contiguous, and belong to nobody else meanwhile:
    other threads run during a call."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        number, real, pointer = ctypes.c_uint64, ctypes.c_double, ctypes.c_void_p
        size, bits, text = ctypes.c_int64, ctypes.c_int, ctypes.c_char_p
        where = (pointer, text, number, number, size, bits)
        add, apply = (None, *where, real, real, pointer), (None, pointer, size, real, real, pointer)
        self._draw, self._add_f32, self._add_f64, self.apply_f32, self.apply_f64, self.gmac = (
            compiled.functions(
                self._library,
                needs="AES and AVX2",
                draw=(None, *where, size, pointer),
                add_f32=add,
                add_f64=add,
                apply_f32=apply,
                apply_f64=apply,
                gmac=(ctypes.c_int, text, text, pointer, size, bits, pointer),
            )
        )
        self._laws: dict[str, tuple[_LawTables, Any]] = {}

    def draw(
        self,
        law: tables.Law,
        key: bytes,
        entry: int,
        first: int,
        count: int,
        bits: int,
        out: np.ndarray,
        entries: int = 1,
    ) -> None:
        """Draw noise as `lattice.draw` does."""
        address = _check(out, "d", count * entries)
        where = (self._tables(law), _checked(key), entry, first, count, bits)
        self._draw(*where, entries, address)

    def release(
        self,
        law: tables.Law,
        key: bytes,
        entry: int,
        first: int,
        bits: int,
        gamma: float,
        x: np.ndarray,
    ) -> None:
        """Release ``x`` as `lattice.release` does, with all its steps in one pass over memory:
        cipher, law, rounding and sum."""
        address, size = _check(x, "fd", len(x)), len(x)
        add = self._add_f32 if x.dtype.char == "f" else self._add_f64
        where = (self._tables(law), _checked(key), entry, first, size, bits)
        add(*where, gamma, 1.0 / gamma, address)

    def apply(self, noise: np.ndarray, gamma: float, x: np.ndarray) -> None:
        """Apply drawn noise as `lattice.apply` does."""
        size = len(x)
        source, target = _check(noise, "d", size), _check(x, "fd", size)
        apply = self.apply_f32 if x.dtype.char == "f" else self.apply_f64
        apply(source, size, gamma, 1.0 / gamma, target)

    def _tables(self, law: tables.Law) -> Any:
        known = self._laws.get(law.name)
        if known is None:
            arrays = [
                np.ascontiguousarray(a)
                for a in (
                    law.flat.astype(np.int16),
                    law.slope,
                    law.edge,
                    law.steep,
                    law.alias_limit,
                    law.alias_symbol,
                    law.band_start,
                    law.band_upto,
                )
            ]
            flat, slope, edge, steep, limit, symbol, start, upto = (a.ctypes.data for a in arrays)
            record = _LawTables(
                flat, law.residual_from, slope, edge, steep, law.curve, law.alias_bits,
                limit, symbol, start, upto, len(law.slope),
            )  # fmt: skip
            known = self._laws[law.name] = (record, arrays)
        return ctypes.byref(known[0])


def _check(array: np.ndarray, kinds: str, count: int) -> int:
    """The address of the values, which must be a contiguous, writeable vector."""
    flags = array.flags
    fits = array.dtype.char in kinds and array.ndim == 1 and len(array) >= count
    if not (fits and flags.c_contiguous and flags.writeable):
        raise ValueError(
            f"the kernel must get a contiguous, writeable vector of kind {kinds} and {count} "
            f"values. Got {array.dtype} of shape {array.shape} instead."
        )
    address: int = array.ctypes.data
    return address


def _checked(key: bytes) -> bytes:
    if len(key) != 32:
        raise ValueError(f"an AES-256 key must have 32 bytes. Got {len(key)} instead.")
    return key


@functools.cache
def load() -> Kernel | None:
    """The kernel, or None where there is none that draws the bits of the pure path."""
    return compiled.load(SOURCE, Kernel, agrees)


def agrees(kernel: Kernel) -> bool:
    """Return whether the kernel computes what the pure path does, on a public key."""
    key, count = bytes(range(32)), 3001
    for law in (tables.gaussian(), tables.laplace()):
        ours, theirs = np.empty(count), np.empty(count)
        lattice.draw(law, key, 5, 1, count, 30, ours)
        kernel.draw(law, key, 5, 1, count, 30, theirs)
        if not np.array_equal(ours, theirs):
            return False
    for kind in (np.float32, np.float64):
        x = np.linspace(-3.0, 3.0, count).astype(kind)
        y = x.copy()
        lattice.release(tables.gaussian(), key, 6, 0, 30, 0.37 * 2.0**-30, x)
        kernel.release(tables.gaussian(), key, 6, 0, 30, 0.37 * 2.0**-30, y)
        if x.tobytes() != y.tobytes():
            return False
        nonce, mac = bytes(range(12)), AESGCM(key[:16])
        tag, size = ctypes.create_string_buffer(16), x.itemsize
        kernel.gmac(key[:16], nonce, x.ctypes.data, count * size, size, tag)
        if tag.raw != mac.encrypt(nonce, b"", x.tobytes()):
            return False
    return True
