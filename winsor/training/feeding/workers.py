"""Worker processes that load rows ahead of the model.

streaming      rows are drawn a few fragments ahead, not all at the start
randomness     augmentation draws from a seed of its own for each fragment, made from the run's
               key: the same after a resume, and for any number of workers; the user's own
               random streams are not touched
signals        Ctrl-C and SIGTERM are for the main process, which saves and then stops workers
orphans        die with the main process, and hold none of its locks (`ledger/chain.py`)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

Asked = list[int]
"""One fragment as a worker is told of it: the seed of its augmentation, then its rows."""

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


class SeededRows(Dataset[Any]):
    """The rows of a dataset, a fragment at a time, each fragment under its own seed."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __getitems__(self, asked: Asked) -> list[Any]:
        seed, *rows = asked
        torch.manual_seed(seed)
        np.random.seed(seed % (1 << 32))  # noqa: NPY002 - what a dataset may draw from
        random.seed(seed)
        together = getattr(self.dataset, "__getitems__", None)
        if together is not None:
            found: list[Any] = together(rows)
            return found
        return [self.dataset[row] for row in rows]


def stream_batches(
    dataset: Dataset[Any],
    fragments: Iterable[Asked],
    workers: int,
    collate_fn: Callable[[list[Any]], Any] | None,
) -> Iterator[Any]:
    """Yield the batches of ``fragments``, in order. Draws from ``fragments`` as workers become
    free."""
    loader: DataLoader[Any] = DataLoader(
        SeededRows(dataset),
        batch_sampler=fragments,
        num_workers=workers,
        collate_fn=collate_fn,
        worker_init_fn=_Start(os.getpid()),
        generator=torch.Generator(),  # or torch would draw from the stream that dropout uses
    )
    return iter(loader)


class _Start:
    """What a worker does first. A class, so that it can be sent to a new interpreter too."""

    def __init__(self, parent: int) -> None:
        self.parent = parent

    def __call__(self, worker: int) -> None:
        del worker
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if sys.platform == "linux":
            with contextlib.suppress(OSError, AttributeError):  # else torch notices, seconds later
                ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
            if os.getppid() != self.parent:
                os._exit(1)
