"""The same randomness in every run: keys, and the generators of torch, NumPy and Python.

Generators are set anew after each release, so that a batch with a row less, which draws fewer
numbers, does not shift what later steps draw. Dropout takes one number per call from torch's
generator, whatever the size of its input, and its mask of n - 1 rows is the beginning of its mask
of n rows: the rows that two batches share, share their masks.
"""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


class Coins:
    """All randomness of one run, as a function of ``seed`` and the number of releases so far."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._keys = 0
        self._generators = 0
        self.masked_rows: list[int] = []  # of each dropout since the last release

    def reset(self, releases: int) -> None:
        """Set every generator for the stretch up to the next release."""
        digest = self._bytes("generators", releases, 8)
        number = int.from_bytes(digest, "little")
        random.seed(number)
        np.random.seed(number % 2**32)  # noqa: NPY002  # the user's code may draw from it
        torch.default_generator.manual_seed(number % 2**63)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(number % 2**63)
        self.masked_rows = []

    def key(self, size: int | None = None) -> bytes:
        """Stand in for `secrets.token_bytes`."""
        self._keys += 1
        return self._bytes("key", self._keys, size or 32)

    def generator(self, seed: Any = None) -> np.random.Generator:
        """Stand in for `numpy.random.default_rng`, which would ask the operating system."""
        if seed is None:
            self._generators += 1
            seed = int.from_bytes(self._bytes("default_rng", self._generators, 16), "little")
        return _default_rng(seed)

    def dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Stand in for `torch.nn.functional.dropout`."""
        if not training or not 0 < p < 1:
            return _dropout(input, p, training, inplace)
        seed = int(torch.randint(2**62, ()))
        self.masked_rows.append(input.shape[0] if input.ndim else 0)
        uniform = np.random.Generator(np.random.Philox(seed)).random(tuple(input.shape))
        keep = torch.from_numpy(np.asarray(uniform >= p)).to(input)
        return input * keep / (1 - p)

    def state(self) -> bytes:
        """Return a name of how far every generator is."""
        digest = hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=16)
        digest.update(repr(random.getstate()).encode())
        _, words, *place = np.random.get_state()  # noqa: NPY002
        digest.update(np.asarray(words).tobytes() + repr(place).encode())
        return digest.digest()

    def _bytes(self, purpose: str, number: int, size: int) -> bytes:
        text = f"{purpose} {number} of replay {self._seed}"
        return hashlib.shake_256(text.encode()).digest(size)


_dropout = functional.dropout
_default_rng = np.random.default_rng


@contextmanager
def same_coins(coins: Coins) -> Iterator[None]:
    """Run under ``coins``; afterwards every generator is where it was."""
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(secrets, "token_bytes", coins.key))
        stack.enter_context(mock.patch.object(np.random, "default_rng", coins.generator))
        stack.enter_context(mock.patch.object(functional, "dropout", coins.dropout))
        coins.reset(0)
        try:
            yield
        finally:
            torch.set_rng_state(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
            random.setstate(before[2])


def coupled(first: list[int], second: list[int]) -> bool:
    """Return whether the masks of the rows that both runs share were the same."""
    gaps = {a - b for a, b in zip(first, second, strict=False)}
    return len(first) == len(second) and (gaps <= {0} or gaps == {1})
