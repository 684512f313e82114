"""Poisson batches drawn many steps at a time.

Lay the coin flips of B consecutive steps, n each, in one row: the heads are at the partial sums of
independent Geometric(q) gaps. So a block of batches is one vector of gaps, one cumulative sum and
one division with remainder: a few nanoseconds per drawn record, and each batch comes out sorted,
which reads memory in order.

Guarantee
---------
Each record joins each batch independently with probability q, as `winsor.sampling.Poisson` says
and accounts for; a batch is a function of (key, step) only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from winsor.randomness import stream
from winsor.sampling.samplers import FullBatch, Indices, Poisson, Sampler

_BLOCK_PICKS = 1 << 16


def sampler_of(n: int, batch_size: float) -> Sampler:
    """Poisson batches of this expected size, or all records if that is all of them."""
    return FullBatch(n) if batch_size >= n else BlockPoisson.of_batch_size(n, batch_size)


@dataclass(frozen=True)
class BlockPoisson(Poisson):
    """`Poisson` with another way to draw; the same law and the same account."""

    @staticmethod
    def of_batch_size(n: int, batch_size: float) -> BlockPoisson:
        plain = Poisson.of_batch_size(n, batch_size)
        return BlockPoisson(plain.n, plain.q)

    @property
    def block(self) -> int:
        """Steps that are drawn together."""
        return max(1, int(_BLOCK_PICKS / max(1.0, self.expected_size)))

    def indices(self, key: bytes, step: int) -> Indices:
        number, offset = divmod(step, self.block)
        return self._draw(key, number)[offset]

    def batches(self, key: bytes, first: int, steps: int) -> Iterator[Indices]:
        """The batches of steps first, first + 1, ... in turn."""
        step, end = first, first + steps
        while step < end:
            number, offset = divmod(step, self.block)
            drawn = self._draw(key, number)[offset : offset + end - step]
            yield from drawn
            step += len(drawn)

    def _draw(self, key: bytes, number: int) -> list[Indices]:
        generator = stream(key, "poisson block", number)
        flips = self.block * self.n
        expected = flips * self.q
        ask = int(expected + 6 * np.sqrt(expected)) + 16
        heads, last = [], -1
        while last < flips:
            gaps = generator.geometric(self.q, size=ask)
            heads.append(last + np.cumsum(gaps))
            last = int(heads[-1][-1])
        positions = np.concatenate(heads)
        positions = positions[: np.searchsorted(positions, flips)]
        starts = np.arange(1, self.block) * self.n
        pieces = np.split(positions, np.searchsorted(positions, starts))
        return [piece - step * self.n for step, piece in enumerate(pieces)]
