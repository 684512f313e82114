"""What the ranks of a training must agree on before any of them reads a batch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset

from winsor import __version__
from winsor.core.randomness import stream
from winsor.core.sampling.units import UnitRows
from winsor.training.ranks.ranks import Ranks, fingerprint_of
from winsor.training.rehearsal import same_randomness
from winsor.training.settings import Settings

LOOKED_AT = 8
"""Rows that are compared between ranks: by a digest under the run's key, which tells nothing."""


def agree_to_train(
    ranks: Ranks,
    config: Mapping[str, Any],
    parameters: Mapping[str, Tensor],
    dataset: Dataset[Any],
    key: bytes,
    optimizer: Settings,
    units: UnitRows | None,
) -> None:
    """Refuse ranks with another version, configuration, model, optimiser, dataset or units."""
    ranks.agree(
        version_of_winsor=__version__,
        version_of_torch=torch.__version__,
        configuration=dict(config),
        number_of_rows=len(dataset),  # type: ignore[arg-type]
        weights_at_the_start=fingerprint_of(parameters),
        settings_of_the_optimiser=optimizer,
        units=None if units is None else units.fingerprint(key),
        dataset=_digest(dataset, key),
    )


def _digest(dataset: Dataset[Any], key: bytes) -> str:
    n = len(dataset)  # type: ignore[arg-type]
    coins = stream(key, "rows that ranks compare", 0)
    digest = hashlib.blake2b(key=key, digest_size=16)
    with same_randomness(int(coins.integers(1 << 31))):
        for row in coins.choice(n, min(n, LOOKED_AT), replace=False):
            for place, leaf in enumerate(tree_leaves(dataset[int(row)])):
                held = isinstance(leaf, Tensor)
                text = fingerprint_of({str(place): leaf}) if held else repr(leaf)
                digest.update(text.encode())
    return digest.hexdigest()
