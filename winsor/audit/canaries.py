"""Canaries: records planted to find out whether training betrays them.

Default canaries are random inputs with random labels. Nothing in the data explains them, so their
gradients stay long (they are clipped, never fitted away by generalisation), and in many dimensions
they are nearly orthogonal to each other and to the data, so that they hardly interfere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate

from winsor.core.contract import ConfigurationError
from winsor.core.randomness import new_key, stream

LOOK = 2_048
"""Rows of the dataset that are looked at for the range of labels and inputs."""


@dataclass(frozen=True)
class Planted:
    """A dataset with each canary in or out, by its own fair coin."""

    dataset: Dataset[Any]
    canaries: Dataset[Any]
    coins: NDArray[np.bool_]


def plant(dataset: Dataset[Any], canaries: Dataset[Any], seed: int | None) -> Planted:
    """Toss one fair coin per canary and add the winners to the dataset."""
    coins = stream(new_key(seed), "canary coins", 0).random(size(canaries)) < 0.5
    chosen = [int(i) for i in np.flatnonzero(coins)]
    if isinstance(dataset, TensorDataset) and isinstance(canaries, TensorDataset):
        pairs = zip(dataset.tensors, canaries.tensors, strict=True)
        joined = TensorDataset(*(torch.cat([a, b[chosen]]) for a, b in pairs))
        return Planted(joined, canaries, coins)
    return Planted(ConcatDataset([dataset, Subset(canaries, chosen)]), canaries, coins)


def random_canaries(
    dataset: Dataset[Any], count: int, scale: float = 3.0, seed: int | None = None
) -> TensorDataset:
    """Return ``count`` records in the shape of the dataset's, filled with noise.

    Floating-point fields become Gaussian noise of ``scale`` times the field's root mean square,
    whole-number fields (labels, tokens) uniform draws from the range seen in the dataset.
    """
    if count < 1:
        raise ConfigurationError(f"canaries must be at least 1. Got {count!r} instead.")
    fields = rows(dataset, range(min(size(dataset), LOOK)))
    generator = torch.Generator().manual_seed(_seed_of(seed))
    return TensorDataset(*(_noise_like(field, count, scale, generator) for field in fields))


def rows(dataset: Dataset[Any], indices: range | list[int]) -> tuple[Tensor, ...]:
    """Return some rows of a dataset, collated into one tensor per field."""
    if isinstance(dataset, TensorDataset):
        return tuple(tensor[list(indices)] for tensor in dataset.tensors)
    batch = default_collate([dataset[i] for i in indices])
    fields = tuple(batch) if isinstance(batch, list | tuple) else (batch,)
    if not all(isinstance(field, Tensor) for field in fields):
        raise ConfigurationError(
            "canaries can be made for datasets whose rows are tensors or tuples of tensors. Got "
            f"{type(dataset[0]).__name__} instead. Give your own dataset of canaries."
        )
    return fields


def size(dataset: Dataset[Any]) -> int:
    """Return the number of rows of a dataset."""
    return len(dataset)  # type: ignore[arg-type]


def _noise_like(field: Tensor, count: int, scale: float, generator: torch.Generator) -> Tensor:
    shape = (count, *field.shape[1:])
    if field.is_floating_point():
        spread = scale * float(field.double().square().mean().sqrt().clamp_min(1e-6))
        return spread * torch.randn(shape, generator=generator, dtype=field.dtype)
    low, high = int(field.min()), int(field.max())
    return torch.randint(low, high + 1, shape, generator=generator).to(field.dtype)


def _seed_of(seed: int | None) -> int:
    return int(stream(new_key(seed), "canary inputs", 0).integers(2**62))
