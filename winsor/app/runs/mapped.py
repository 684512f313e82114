"""An .npy file as the source of a run: its rows stay on disk
(`winsor.training.feeding.mapped.MappedRows`).

One pass over the files comes first: it names their content, for resuming, and checks every row as
rows of other files are checked, a few megabytes at a time. After that only drawn rows are read.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from winsor.app.runs.config import DataSettings
from winsor.core.contract import ConfigurationError
from winsor.training.feeding.mapped import MappedRows

Checked = Callable[..., tuple[Tensor, ...]]


def mapped_source(
    source: str, settings: DataSettings, checked: Checked
) -> tuple[MappedRows, None, str, NDArray[Any] | None]:
    """The rows, no held-out ones, their digest, and whose they are."""
    files = [Path(source)]
    if settings.task != "language":
        files.append(_beside(source, settings.target, "data.target"))
    convert = functools.partial(checked, settings)
    rows = MappedRows(*files, convert=convert)
    digest = hashlib.blake2b(digest_size=16)
    for piece in rows.pieces():
        for array in piece:
            digest.update(np.ascontiguousarray(array).data)
        convert(*piece)  # refuses what a run could not use
    unit = None
    if settings.unit is not None:
        unit = np.load(_beside(source, settings.unit, "data.unit"), allow_pickle=False)
    return rows, None, digest.hexdigest(), unit


def _beside(source: str, name: str, setting: str) -> Path:
    """The .npy file called ``name`` in the folder of ``source``."""
    file = Path(source).parent / (name if name.lower().endswith(".npy") else f"{name}.npy")
    if not file.is_file():
        raise ConfigurationError(
            f"{setting} must name an .npy file in the folder of data.source. Got {name!r} instead: "
            f"{file} is not there."
        )
    return file
