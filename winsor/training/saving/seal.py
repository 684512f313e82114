"""What a checkpoint is bound to: a fingerprint of the rows, and a MAC of its content.

Both are made under the run's key. Who could forge what: without that key, nobody. The key of most
runs is in the checkpoint, so whoever reads one can write another; a key file beside it would be
read by the same hands, so there is none. They could change weights and counts, but save nothing: a
step that is in a ledger on disk is repeated for the same sums only. The key of ModelMix is kept
elsewhere: there the MAC holds against everybody who has only the checkpoint. Shards hold what was
released, and are not under the MAC.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from winsor.core.contract import ConfigurationError, LedgerError
from winsor.core.randomness import name_of, stream, subkey
from winsor.training.checks.trial_pass import same_randomness
from winsor.training.feeding.feed import Feed

LOOKED_AT = 64
"""Rows of a dataset that is not in memory whole; the key draws them."""


def mac(key: bytes, content: Any) -> str:
    """Return the MAC of nested plain values and tensors."""
    digest = hashlib.blake2b(key=subkey(key, "checkpoint").to_bytes(16, "little"), digest_size=16)

    def take(value: Any) -> None:
        if isinstance(value, Tensor):
            digest.update(f"tensor {value.dtype} {tuple(value.shape)}".encode())
            if not value.is_meta:
                flat = value.detach().cpu().contiguous().reshape(-1)
                digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
        elif isinstance(value, np.ndarray):
            digest.update(name_of(np.asarray(value)).encode())
        elif isinstance(value, Mapping):
            digest.update(f"mapping {len(value)}".encode())
            for pair in value.items():
                take(pair)
        elif isinstance(value, list | tuple | set):
            digest.update(f"{type(value).__name__} {len(value)}".encode())
            for each in sorted(value, key=repr) if isinstance(value, set) else value:
                take(each)
        else:
            text = repr(value) if isinstance(value, torch.dtype) else _name(value)
            digest.update(f"{len(text)}:{text}".encode())

    take(content)
    return digest.hexdigest()


def _name(value: Any) -> str:
    try:
        return name_of(value)
    except ConfigurationError:  # an image, say: of no known form, told by its kind alone
        return type(value).__qualname__


def sealed(key: bytes, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``state`` with its MAC."""
    content = {name: value for name, value in state.items() if name != "mac"}
    return content | {"mac": mac(key, content)}


def refuse_changed(key: bytes, state: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that is not as it was saved."""
    if not hmac.compare_digest(sealed(key, state)["mac"], str(state.get("mac"))):
        raise LedgerError(
            "the checkpoint must be as private.save wrote it. Got one that was changed or damaged. "
            "Nothing was changed here. Use an intact copy."
        )


def fingerprint_of_rows(feed: Feed, key: bytes) -> str:
    """Name the rows under ``key``: all of tensors in memory, `LOOKED_AT` of another dataset.

    Rows that are drawn anew each time they are read have their number for a name.
    """
    n = feed.sampler.n if feed.units is None else feed.units.n_rows
    dataset: Any = feed.dataset
    places = np.arange(n)
    while isinstance(dataset, Subset):
        places, dataset = np.asarray(dataset.indices)[places], dataset.dataset
    if isinstance(dataset, TensorDataset):
        return mac(key, [n, places, *dataset.tensors])
    drawn = stream(key, "fingerprint of rows", 0).choice(n, min(n, LOOKED_AT), replace=False)

    def read(seed: int) -> str:
        with same_randomness(seed):
            return mac(key, [n, [feed.dataset[int(i)] for i in sorted(drawn)]])

    first = read(0)
    return first if first == read(0) == read(1) else mac(key, n)
