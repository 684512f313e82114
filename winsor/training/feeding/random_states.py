"""The user's own random streams (torch, numpy, python): where they stand, as plain values.

Dropout and augmentation draw from them. winsor's batches and noise do not.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def random_states() -> dict[str, Any]:
    """Return tensors and numbers only, so that a checkpoint can be loaded with
    ``weights_only=True``."""
    version, words, gauss = random.getstate()
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
    }
    numpy = np.random.get_state()  # noqa: NPY002 - whatever augmentation draws from
    if isinstance(numpy, tuple):
        kind, key, place, has_gauss, cached = numpy
        words_of_numpy = torch.from_numpy(np.asarray(key).astype(np.int64))
        states["numpy"] = {
            "kind": kind, "words": words_of_numpy, "place": int(place),
            "has_gauss": int(has_gauss), "gauss": float(cached),
        }  # fmt: skip
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = list(torch.cuda.get_rng_state_all())
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    """Continue every stream where `random_states` saw it; all of them, or none."""
    of_python, of_numpy = states["python"], states.get("numpy")
    python = (of_python["version"], tuple(of_python["words"].tolist()), of_python["gauss"])
    random.Random().setstate(python)  # refuses what is malformed, before anything changes
    torch.Generator().set_state(states["torch"])
    numpy: Any = None
    if of_numpy is not None:
        words = of_numpy["words"].numpy().astype(np.uint32)
        place, has_gauss = of_numpy["place"], of_numpy["has_gauss"]
        numpy = (of_numpy["kind"], words, place, has_gauss, of_numpy["gauss"])
        np.random.RandomState().set_state(numpy)
    random.setstate(python)
    torch.set_rng_state(states["torch"])
    if numpy is not None:
        np.random.set_state(numpy)  # noqa: NPY002
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
