"""The image data sets of paper 1, from the user's own files.

Pixels become (value / 255 - mean) / deviation with *public* constants, the ones that everybody uses
for these benchmarks; nothing is computed from the rows that are trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from winsor.core.contract import ConfigurationError

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class ImageSource:
    """Files that may hold a data set (the first one found is read) and its public scaling."""

    files: tuple[str, ...]
    mean: float
    deviation: float


SOURCES = {
    "MNIST": ImageSource(("mnist.npz",), 0.1307, 0.3081),
    "Fashion-MNIST": ImageSource(("fashion_mnist.npz",), 0.2860, 0.3530),
    "CIFAR-10": ImageSource(("cifar10.npz", "cifar10_20k_5k.npz"), 0.4734, 0.2516),
}


@dataclass(frozen=True, eq=False)
class Images:
    """Standardised images (n, channels, height, width) and their labels."""

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    known_as: str = ""
    """As in `Problem`."""

    @property
    def classes(self) -> int:
        return int(self.y_test.max()) + 1


def load_images(name: str, folder: Path, *, rows: int | None = None) -> Images:
    """``name`` (a key of `SOURCES`) from ``folder``; only the first ``rows`` to train on."""
    source = SOURCES[name]
    path = next((folder / file for file in source.files if (folder / file).is_file()), None)
    if path is None:
        raise ConfigurationError(
            f"data must hold {' or '.join(source.files)} for {name}, a NumPy .npz file with the "
            f"arrays {', '.join(ARRAYS)}. Got {str(folder)!r} instead, which has no such file."
        )
    with np.load(path, allow_pickle=False) as archive:
        missing = [array for array in ARRAYS if array not in archive]
        if missing:
            raise ConfigurationError(
                f"{path.name} must hold the arrays {', '.join(ARRAYS)}. Got a file without "
                f"{', '.join(missing)} instead."
            )
        arrays = {array: archive[array] for array in ARRAYS}
    x, x_test = (_scaled(arrays[part], source) for part in ("x_train", "x_test"))
    y, y_test = (torch.from_numpy(arrays[part]).long() for part in ("y_train", "y_test"))
    return Images(name, x[:rows], y[:rows], x_test, y_test)


def _scaled(pixels: np.ndarray, source: ImageSource) -> Tensor:
    values = (torch.from_numpy(pixels).float() / 255 - source.mean) / source.deviation
    return values if values.ndim == 4 else values.unsqueeze(1)
