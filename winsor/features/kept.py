"""Features that were computed once are kept on disk, under the content of their rows.

The file is a transform of the rows: keep it as safe as the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

Features = Callable[[Tensor], Tensor]


def kept(name: str, features: Features, rows: Tensor, folder: str | Path | None) -> Tensor:
    """``features(rows)``, from ``folder`` if they are there, and put there if not."""
    if folder is None:
        return features(rows)
    folder = Path(folder)
    content = hashlib.blake2b(rows.contiguous().numpy().tobytes(), digest_size=12)
    path = folder / f"{name}-{len(rows)}-{content.hexdigest()}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with open(partial := path.with_suffix(".partial"), "wb") as file:
            np.save(file, features(rows).numpy())
        partial.rename(path)
    return torch.from_numpy(np.load(path))
