"""The keyed digest that binds noise to the value it covers: GMAC (NIST SP 800-38D) under a subkey.

The same value, the same digest; to whoever does not know the key it is random. The compiled kernel
and the library `cryptography` give the same tags; a value that is not finite has none.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from torch import Tensor

from winsor.core.noise import kernel

_WIDTHS = {torch.float32: 4, torch.float64: 8}


class Digest:
    """Tags of tensors under one key of 16 bytes; a nonce is used for one value."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._mac = AESGCM(key)
        self._kernel = kernel.load()

    def tag(self, nonce: bytes, leaf: Tensor) -> bytes | None:
        """16 bytes, or None if a value is not finite."""
        width = _WIDTHS.get(leaf.dtype)
        if self._kernel is not None and width is not None and leaf.device.type == "cpu":
            flat = leaf if leaf.is_contiguous() else leaf.contiguous()
            return self._kernel.gmac(self._key, nonce, flat.data_ptr(), flat.numel(), width)
        flat = leaf.detach().reshape(-1)
        if not math.isfinite(flat.sum().item()) and not torch.isfinite(flat).all():
            return None
        return self._mac.encrypt(nonce, b"", _bytes(flat))


def _bytes(flat: Tensor) -> memoryview:
    """The memory of a vector; for what numpy cannot name, through its bytes."""
    flat = flat.cpu().contiguous()
    if flat.dtype is torch.bfloat16:
        flat = flat.view(torch.uint8)
    return flat.numpy().view(np.uint8).data
