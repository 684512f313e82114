"""What the ranks of a training agree on: before any of them reads a batch, and after uneven steps.

A rank without rows in a step does not come to the user's loop for it, so it cannot be told there to
save. Every rank knows who has no rows. Those wait for the word of rank 0, which has rows whenever
any rank has:

    SAVE     a checkpoint is made; another word follows
    GO_ON    the others draw their next batch
    STOP     they have left the loop
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset

from winsor import __version__
from winsor.core.contract import ProtocolError
from winsor.core.randomness import stream
from winsor.core.sampling.units import UnitRows
from winsor.training.checks.trial_pass import same_randomness
from winsor.training.ranks.ranks import Ranks, fingerprint_of
from winsor.training.saving.settings import Settings

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


SAVE, GO_ON, STOP = "save", "go on", "stop"


class UnevenSteps:
    """Who says what after a step that not every rank had rows for. Other steps cost nothing."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._due = False

    def begins(self, drawn: int) -> None:
        """Begin a step of ``drawn`` rows in all, of which this rank has some."""
        self._due = drawn < self._ranks.world

    def say(self, word: str) -> None:
        """Tell the ranks without rows in the current step what those with rows do."""
        if not self._due:
            return
        heard = self._ranks.from_first(word)
        if heard != word:
            raise ProtocolError(
                "all ranks must save, go on and leave the loop after the same steps. Got "
                f"{word!r} on rank {self._ranks.rank} and {heard!r} on rank 0 instead. Decide by "
                "private.steps_done, not by counting batches."
            )
        self._due = word == SAVE

    def follow(self, drawn: int, save: Callable[[], None]) -> bool:
        """Do as the others do after a step without rows here. False if they leave the loop."""
        if drawn == 0:
            return True  # nobody came to the loop
        while (word := self._ranks.from_first(None)) == SAVE:
            save()
        return bool(word == GO_ON)
