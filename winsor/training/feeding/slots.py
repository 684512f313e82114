"""Fixed shapes: every physical batch has a public number of slots, and rows take some of them.

A matrix product may treat a row by other code at another place, or in a batch of another size.

    capacity      rows beyond it are dropped: under 2^-40 in all planned steps, paid from delta
    injection     a drawn row takes a free slot by coins of the run's key; full batch: by its index
    empty slots   hold zeros, and are left out before anything looks at rows (`only_rows`)

Guarantee
---------
Given all coins but those of one row, every other row has the same slot in both worlds, or more rows
were drawn than there are slots, which `Sampler.overflow` pays for (docs/privacy.md, "Slots").
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from winsor.core.arithmetic.slack import most_drawn
from winsor.core.contract import ConfigurationError
from winsor.core.randomness import stream
from winsor.core.sampling.allocation import Allocation, Loader
from winsor.core.sampling.cyclic import CyclicPoisson
from winsor.core.sampling.samplers import FixedSize, FullBatch, Indices, Poisson, Sampler
from winsor.gradients.view import Engine, View

OVERFLOW = 2.0**-40
"""Chance that some planned step draws more rows than there are slots: this much of delta."""


@dataclass(frozen=True)
class Slots:
    """``batches`` physical batches of ``size`` slots for every logical batch."""

    batches: int
    size: int
    shuffled: bool = True  # False: every row is drawn at every step, and its index is its slot

    @staticmethod
    def of(sampler: Sampler, steps: int, limit: int | None) -> tuple[Slots, Sampler]:
        """Return slots for ``steps`` steps of ``sampler``, and the sampler that pays for draws
        that do not fit. ``limit`` is the largest number of slots of a physical batch."""
        kind, most = type(sampler), 0
        if kind in (FixedSize, FullBatch, Loader):
            most = int(sampler.expected_size)
        elif kind in (Poisson, Allocation, CyclicPoisson) and sampler.public_n:
            # Half: what is added up over steps need not be independent (epochs, groups).
            most = most_drawn(sampler.n, sampler.rate, OVERFLOW / steps / 2)
            if most < sampler.n:
                sampler = copy.copy(sampler)
                object.__setattr__(sampler, "overflow", OVERFLOW / steps)  # frozen dataclasses
        if not most:
            raise ConfigurationError(
                "fixed_shapes=True must come with a sampler whose batches have a public bound. Got "
                f"{sampler} instead. Use a sampler of winsor, without sampling_rate."
            )
        size = most if limit is None else min(limit, most)
        return Slots(-(-most // size), size, kind is not FullBatch), sampler

    def chosen(self, rows: Indices, key: bytes, step: int) -> list[tuple[Indices, Indices]]:
        """Return the rows of each physical batch, and their slots in it, by slot."""
        places, total = rows, self.batches * self.size
        if self.shuffled:
            # Where more rows than slots were drawn, those that land beyond the last are dropped.
            places = stream(key, "slots", step).permutation(max(total, len(rows)))[: len(rows)]
        order = np.argsort(places)
        rows, places = rows[order], places[order]
        ends = np.searchsorted(places, self.size * np.arange(self.batches + 1))
        return [
            (rows[a:b], places[a:b] - self.size * i)
            for i, (a, b) in enumerate(pairwise(ends.tolist()))
        ]

    def padded(self, batch: Any, like: Any, slots: Indices) -> Any:
        """Put the rows of ``batch`` into their ``slots`` and zeros into the others; ``like`` is a
        batch of one row, and ``batch`` is None if there is no row."""
        shapes, form = tree_flatten(like)
        leaves, found = (shapes, form) if batch is None else tree_flatten(batch)
        count = 1 if batch is None else len(slots)
        alike = found == form and all(
            isinstance(a, Tensor) and isinstance(b, Tensor) and a.dim() > 0
            and (b.shape, b.dtype) == ((count, *a.shape[1:]), a.dtype)
            for a, b in zip(shapes, leaves, strict=True)
        )  # fmt: skip
        if not alike:
            raise ConfigurationError(
                "rows must all make tensors of one shape and type, with one entry of the first "
                "axis each, where fixed_shapes=True. Got others instead. Pad or crop rows in the "
                "dataset, or return tensors from collate_fn."
            )
        index = torch.from_numpy(slots)
        full = [leaf.new_zeros((self.size, *leaf.shape[1:])) for leaf in shapes]
        if batch is not None:
            for out, leaf in zip(full, leaves, strict=True):
                out[index.to(out.device)] = leaf.detach()
        return tree_unflatten(full, form)


def only_rows(engine: Engine, losses: Tensor, slots: Indices) -> View:
    """Return the view of the rows in ``slots``. Losses and gradients of empty slots, whatever they
    are, reach nothing: neither norms, sums and votes nor the count of neutralised rows."""
    view = engine.view(losses)  # of all slots: that rows do not mix is checked on empty ones too
    with torch.no_grad():
        return view.select(torch.from_numpy(slots).to(losses.device))
