"""Gaussian and Laplace noise on a lattice, as a function of (key, entry, element), in numpy.

    word of element e     = half of AES-256(key; entry, e div 2): counter mode, big-endian counters
    14 bits               -> a cell of the law, or "residual" (2 %)
    lowest bits           -> the slot inside the cell: equally likely
    residual              -> cell and slot from blocks of their own, by rejection (see tables.py)
    noise                 = +-(cell 2^w + slot + 1/2), w = bits - 5, in units of gamma = std 2^-bits

    release of a sum S    = gamma * (round(S / gamma) + noise), in float64, then the tensor's dtype

Any element can be drawn by any thread or rank in any order, and none depends on how many are drawn
together. Every operation is on whole numbers or one IEEE operation, so the compiled kernel
(`_noise.c`) draws the same bits.

Guarantee
---------
The noise is a Gaussian (Laplace) of the stated std (scale) rounded to the lattice, up to a relative
error of at most `ETA` per lattice point and the mass beyond the law's reach; the cost of both, and
of rounding S, is that of `winsor/core/accounting/lattice.py`. The bits are as good as AES-256 under
a secret key.
"""

from __future__ import annotations

import functools
import math
import threading
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from winsor.core.noise.laws import CELL_BITS, INDEX_BITS, LAWS, Law

LIMIT = 2.0**50
"""Sums are cut off here, in units of gamma: beyond, float64 would lose whole numbers."""
CHUNK = 1 << 15
PIECES = 16
"""Pieces whose residuals are drawn together."""
TOGETHER = PIECES * CHUNK
INDEX_SHIFT = np.uint64(64 - INDEX_BITS)
SIGN_SHIFT = np.uint64(64 - INDEX_BITS - 1)
DOMAIN_SHIFT = 48
FAR_DOMAIN = 0x8000
TAYLOR = [(-1) ** n / math.factorial(n) for n in range(14)]
_HALF = np.uint64(11)
_thread = threading.local()
_Piece = tuple[int, int, int, int]
"""Entry, first element, count, and how many consecutive entries."""


def draw(
    law: Law,
    key: bytes,
    entry: int,
    first: int,
    count: int,
    bits: int,
    out: np.ndarray,
    entries: int = 1,
) -> None:
    """Write the noise of elements [first, first + count) of ``entries`` consecutive entries, in
    units of gamma, to the float64 array ``out``, entry by entry."""
    cipher = _Cipher.of(key)
    if count <= CHUNK:
        step = max(1, CHUNK // max(1, count))
        whole = [
            (e, first, count, min(step, entry + entries - e))
            for e in range(entry, entry + entries, step)
        ]
    else:
        whole = [
            (e, first + s, min(CHUNK, count - s), 1)
            for e in range(entry, entry + entries)
            for s in range(0, count, CHUNK)
        ]
    done = 0
    for i in range(0, len(whole), PIECES):
        pieces = whole[i : i + PIECES]
        size = sum(n * rows for _, _, n, rows in pieces)
        _draw_pieces(law, cipher, pieces, bits, out[done : done + size])
        done += size


def release(
    law: Law, key: bytes, entry: int, first: int, bits: int, gamma: float, x: np.ndarray
) -> None:
    """Replace the sum ``x`` (float32 or float64, contiguous) by its release."""
    noise = np.empty(min(len(x), TOGETHER))
    for start in range(0, len(x), TOGETHER):
        piece = x[start : start + TOGETHER]
        draw(law, key, entry, first + start, len(piece), bits, noise[: len(piece)])
        apply(noise[: len(piece)], gamma, piece)


def apply(noise: np.ndarray, gamma: float, x: np.ndarray) -> None:
    """Round ``x`` to the lattice, add ``noise``, and return to units of ``x``, in place."""
    value = np.empty(min(len(x), CHUNK))
    inverse = 1.0 / gamma
    for start in range(0, len(x), CHUNK):
        piece = x[start : start + CHUNK]
        v = value[: len(piece)]
        v[...] = piece
        v *= inverse
        low, high = float(piece.min()) * inverse, float(piece.max()) * inverse
        if not (low >= -LIMIT and high <= LIMIT):  # also not-a-number
            np.clip(v, -LIMIT, LIMIT, out=v)
        np.rint(v, out=v)
        v += noise[start : start + CHUNK]
        v *= gamma
        piece[...] = v


def _draw_pieces(
    law: Law, cipher: _Cipher, pieces: list[_Piece], bits: int, out: np.ndarray
) -> None:
    """The flat part piece by piece, so that it stays in the cache; what is left all at once."""
    mask = np.uint64((1 << (bits - CELL_BITS)) - 1)
    table = _scaled(law.name, bits - CELL_BITS)
    threshold = np.uint64(law.residual_from << (64 - INDEX_BITS))
    late: list[tuple[np.ndarray, ...]] = []
    done = 0
    for entry, first, count, rows in pieces:
        words, spare = cipher.words(entry, first, count, rows)
        part = out[done : done + len(words)]
        index = np.right_shift(words, INDEX_SHIFT, out=spare).view(np.int64)
        np.take(table, index, out=part, mode="clip")
        left = np.flatnonzero(words >= threshold)
        row, column = np.divmod(left, count) if rows > 1 else (0, left)
        entries = np.full(len(left), entry, dtype=np.uint64) + np.uint64(row)
        elements = column.astype(np.uint64) + np.uint64(first)
        late.append((left + done, entries, elements, words[left]))
        part += np.bitwise_and(words, mask, out=spare).view(np.int64)
        done += len(words)
    places, entries, elements, chosen = (np.concatenate(each) for each in zip(*late, strict=True))
    out[places] = _residual(law, cipher, entries, elements, chosen, bits)


def _residual(
    law: Law,
    cipher: _Cipher,
    entries: np.ndarray,
    elements: np.ndarray,
    words: np.ndarray,
    bits: int,
) -> np.ndarray:
    """Rest and wedges: see tables.py."""
    slot_bits = bits - CELL_BITS
    mask = np.uint64((1 << slot_bits) - 1)
    slots = words & mask
    chosen, second = cipher.scattered(entries, 1, elements)
    symbols = _symbols(law, cipher, entries, elements, chosen)
    cells = symbols >> 1
    waiting, domain = np.flatnonzero(symbols & 1), 2
    tried = np.minimum(slots[waiting], second[waiting] & mask)
    while len(waiting):
        heights, _ = cipher.scattered(entries[waiting], domain, elements[waiting])
        slots[waiting] = tried
        waiting = waiting[~_accepted(law, cells[waiting], tried, heights, bits)]
        first, second = cipher.scattered(entries[waiting], domain + 1, elements[waiting])
        tried = np.minimum(first & mask, second & mask)
        domain += 2
    size = ((cells << slot_bits) + slots.view(np.int64)).astype(np.float64)
    size += 0.5
    negative = (words >> SIGN_SHIFT) & np.uint64(1) != 0
    return np.where(negative, -size, size)


def _symbols(
    law: Law, cipher: _Cipher, entries: np.ndarray, elements: np.ndarray, words: np.ndarray
) -> np.ndarray:
    rest = 64 - law.alias_bits
    column = (words >> np.uint64(rest)).view(np.int64)
    other = (words & np.uint64((1 << rest) - 1)) >= law.alias_limit[column]
    symbols: np.ndarray = law.alias_symbol.reshape(-1)[column + (other << law.alias_bits)]
    for i in np.flatnonzero(symbols < 0):
        symbols[i] = _far_symbol(law, cipher, entries[i : i + 1], elements[i : i + 1])
    return symbols


def _far_symbol(law: Law, cipher: _Cipher, entry: np.ndarray, element: np.ndarray) -> int:
    """A symbol further out: each band is reached through the one before."""
    band = 0
    while True:
        first, last = law.band_start[band : band + 2]
        word = cipher.scattered(entry, FAR_DOMAIN + band, element)[0][0]
        place = int(np.searchsorted(law.band_upto[first:last], word))
        if place < last - first:
            return int(first) + place
        band += 1


def _accepted(
    law: Law, cells: np.ndarray, slots: np.ndarray, heights: np.ndarray, bits: int
) -> np.ndarray:
    t = slots.astype(np.float64)
    t += 0.5
    t *= 2.0**-bits
    y = law.curve * t
    y += law.slope[cells]
    y *= t
    wedge = decay(y)
    wedge -= law.edge[cells]
    np.subtract(2.0**-CELL_BITS, t, out=t)
    t *= law.steep[cells]
    t *= (heights >> _HALF).astype(np.float64)
    accepted: np.ndarray = t < wedge
    return accepted


def decay(y: np.ndarray) -> np.ndarray:
    """exp(-y) for 0 <= y < 0.41: Taylor to degree 13, by Horner's rule."""
    total = np.full_like(y, TAYLOR[-1])
    for coefficient in TAYLOR[-2::-1]:
        total *= y
        total += coefficient
    return total


@functools.lru_cache(maxsize=16)
def _scaled(name: str, slot_bits: int) -> np.ndarray:
    table: np.ndarray = LAWS[name]().flat * 2.0**slot_bits + 0.5
    return table


class _Cipher:
    """AES-256 of counter blocks under one key, for one thread, with memory of its own."""

    def __init__(self, key: bytes) -> None:
        self._run: Any = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._single: Any = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        words = CHUNK + 2
        self._zeros = np.zeros(words, dtype=np.uint64)
        self._out = np.empty(words + 2, dtype=np.uint64)  # the library asks for one block more
        self._rows = np.empty(CHUNK, dtype=np.uint64)
        self._spare = np.empty(CHUNK, dtype=np.uint64)

    @staticmethod
    def of(key: bytes) -> _Cipher:
        known: dict[bytes, _Cipher] | None = getattr(_thread, "ciphers", None)
        if known is None:
            known = _thread.ciphers = {}
        if key not in known:
            if len(known) == 4:
                known.pop(next(iter(known)))
            known[key] = _Cipher(key)
        return known[key]

    def words(
        self, entry: int, first: int, count: int, rows: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """(rows * count,) words of consecutive elements of consecutive entries, and as much memory
        to work in. Both are valid until the next call."""
        odd = first & 1
        words = (count + odd + 1) // 2 * 2
        place = (first >> 1).to_bytes(8, "big")
        zeros, out = _raw(self._zeros[:words]), _raw(self._out[: words + 2])
        for row in range(rows):
            self._run.reset_nonce((entry + row).to_bytes(8, "big") + place)
            self._run.update_into(zeros, out)
            if rows > 1:
                self._rows[row * count : (row + 1) * count] = self._out[odd : odd + count]
        whole = self._rows[: rows * count] if rows > 1 else self._out[odd : odd + count]
        return whole, self._spare[: rows * count]

    def scattered(
        self, entries: np.ndarray, domain: int, elements: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Both words of one block per element, from a domain of counters of its own."""
        counters = np.empty((len(elements), 2), dtype=np.uint64)
        counters[:, 0] = entries.byteswap()
        counters[:, 1] = (elements | np.uint64(domain << DOMAIN_SHIFT)).byteswap()
        out = np.empty(2 * len(elements) + 2, dtype=np.uint64)
        self._single.update_into(_raw(counters.reshape(-1)), _raw(out))
        return out[:-2:2], out[1:-1:2]


def _raw(words: np.ndarray) -> np.ndarray:
    return words.view(np.uint8)
