"""Poisson batches drawn many steps at a time.

Lay the coin flips of B consecutive steps, n each, in one row: the heads are at the partial sums of
independent Geometric(q) gaps. So a block of batches is one vector of gaps, one cumulative sum and
one division with remainder: a few nanoseconds per drawn record, and each batch comes out sorted,
which reads memory in order.

Guarantee
---------
Each record joins each batch independently with probability q, as `winsor.core.sampling.Poisson`
says and accounts for; a batch is a function of (key, step) only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.core.arithmetic.rows import summed
from winsor.core.prepaid import Receipt
from winsor.core.randomness import stream
from winsor.core.sampling.samplers import FullBatch, Indices, Poisson, Sampler
from winsor.tables.design import DesignRows, clip_residuals
from winsor.tables.linear.task import LinearTask

Array = NDArray[np.float64]
_BLOCK_PICKS = 1 << 16


def sampler_of(n: int, batch_size: float) -> Sampler:
    """Return Poisson batches of this expected size, or all records if that is all of them."""
    return FullBatch(n) if batch_size >= n else BlockPoisson.of_batch_size(n, batch_size)


def batches_of(sampler: Sampler, key: bytes, first: int, steps: int) -> Iterator[Indices]:
    """Return the batches of steps first, first + 1, ... in turn."""
    if isinstance(sampler, BlockPoisson):
        return sampler.batches(key, first, steps)
    return (sampler.indices(key, step) for step in range(first, first + steps))


def batch_sums(
    task: LinearTask, sampler: Sampler, receipt: Receipt, key: bytes, limits: Array | None = None
) -> Callable[[Array], Array]:
    """Return a function that gives the sum of per-sample gradients over the next batch. Private.

    ``limits`` bounds the residuals row by row, and with them the gradients.
    """

    def whole(theta: Array) -> Array:
        chunks = task.design.chunks()
        return summed(pulled(task, rows, piece, theta, limits) for piece, rows in chunks)

    if isinstance(sampler, FullBatch):
        return whole
    batches = batches_of(sampler, key, receipt.first, receipt.left)

    def sampled(theta: Array) -> Array:
        picked = next(batches)
        return pulled(task, task.design.rows(picked), picked, theta, limits)

    return sampled


def pulled(
    task: LinearTask, rows: DesignRows, own: Indices | slice, theta: Array, limits: Array | None
) -> Array:
    """Return the sum of the gradients of ``rows``, whose numbers are ``own``, within ``limits``."""
    residual = task.loss.residual(rows.scores(theta), task.y[own])
    return rows.pull(residual if limits is None else clip_residuals(residual, limits[own]))


@dataclass(frozen=True)
class BlockPoisson(Poisson):
    """`Poisson` with another way to draw; the same law and the same account."""

    @staticmethod
    def of_batch_size(n: int, batch_size: float) -> BlockPoisson:
        """Return the sampler with this expected batch size."""
        plain = Poisson.of_batch_size(n, batch_size)
        return BlockPoisson(plain.n, plain.q)

    @property
    def drawn_together(self) -> int:
        """Steps that are drawn together."""
        return max(1, int(_BLOCK_PICKS / max(1.0, self.expected_size)))

    def indices(self, key: bytes, step: int) -> Indices:
        """Return the batch of one step."""
        number, offset = divmod(step, self.drawn_together)
        return self._draw(key, number)[offset]

    def batches(self, key: bytes, first: int, steps: int) -> Iterator[Indices]:
        """Return the batches of steps first, first + 1, ... in turn."""
        step, end = first, first + steps
        while step < end:
            number, offset = divmod(step, self.drawn_together)
            drawn = self._draw(key, number)[offset : offset + end - step]
            yield from drawn
            step += len(drawn)

    def _draw(self, key: bytes, number: int) -> list[Indices]:
        generator = stream(key, "poisson block", number)
        flips = self.drawn_together * self.n
        expected = flips * self.q
        ask = int(expected + 6 * np.sqrt(expected)) + 16
        heads, last = [], -1
        while last < flips:
            gaps = generator.geometric(self.q, size=ask)
            heads.append(last + np.cumsum(gaps))
            last = int(heads[-1][-1])
        positions = np.concatenate(heads)
        positions = positions[: np.searchsorted(positions, flips)]
        starts = np.arange(1, self.drawn_together) * self.n
        pieces = np.split(positions, np.searchsorted(positions, starts))
        return [piece - step * self.n for step, piece in enumerate(pieces)]
