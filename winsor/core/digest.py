"""The keyed digest that binds noise to the value it covers: GMAC (NIST SP 800-38D) under a subkey.

The same value, the same digest; to whoever does not know the key it is random. The compiled kernel
and the library `cryptography` give the same tags; a value that is not finite has none.
"""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from winsor.core.buffers import KINDS
from winsor.core.noise import kernel


class Digest:
    """Tags of arrays under one key of 16 bytes; a nonce is used for one value."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._mac = AESGCM(key)
        self._kernel = kernel.load()

    def tag(self, nonce: bytes, array: Any) -> bytes | None:
        """Return the 16 bytes that name the values of ``array``; None if one is not finite."""
        kind = KINDS[type(array)]
        place = None if self._kernel is None else kind.place(array)
        if self._kernel is not None and place is not None:
            return self._kernel.gmac(self._key, nonce, *place)
        contents = kind.contents(array)
        return None if contents is None else self._mac.encrypt(nonce, b"", contents)
