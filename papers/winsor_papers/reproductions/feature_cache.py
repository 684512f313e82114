"""Public features that were computed once, for every table that trains on top of them.

A file ``cifar10-efficientnet-lite0-PIXELS.npz`` holds ``x_train, y_train, x_test, y_test``: the
features of EfficientNet-Lite0 (ImageNet weights, 1,280 numbers) of the images of CIFAR-10 at that
edge, in their order. It is looked for in ``$WINSOR_FEATURES``, else in ~/.cache/winsor/features;
the largest edge is read. Files ``DATA-scattering-J2-L8-PART.npy`` hold scattering coefficients as
they are, without normalisation. All are transforms of the data: they lie outside any repository.

Where experiments/2026-11-records has kept maps of the same network, the first file is made from
them, without another pass over the images (`from_maps`):

    python -m winsor_papers.reproductions.feature_cache cifar10_efficientnet_224 cifar10.npz
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from winsor.core.contract import ConfigurationError

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
PATTERN = "cifar10-efficientnet-lite0-*.npz"
WIDTH = 1280
"""Features of EfficientNet-Lite0."""


def features_folder() -> Path:
    """Where features are kept on this machine."""
    named = os.environ.get("WINSOR_FEATURES")
    return Path(named) if named else Path.home() / ".cache" / "winsor" / "features"


@dataclass(frozen=True, eq=False)
class CachedFeatures:
    """Rows of unit length with their labels, and the edge of the images in pixels."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    pixels: int

    @property
    def known_as(self) -> str:
        """For the names of cells: no two processors agree in the last bits of the features."""
        return f"EfficientNet-Lite0 at {self.pixels}, unit length"

    def describe(self) -> str:
        return (
            f"CIFAR-10: a linear layer on features of EfficientNet-Lite0 (public ImageNet weights, "
            f"images at {self.pixels} pixels), rows of unit length: {len(self.train[1]):,} rows to "
            f"train on, {len(self.test[1]):,} to test on."
        )


def cifar_features(folder: Path | None = None) -> CachedFeatures | None:
    """The features with the largest edge in ``folder``; None where there are none."""
    found = sorted((folder or features_folder()).glob(PATTERN), key=_pixels)
    if not found:
        return None
    with np.load(found[-1], allow_pickle=False) as archive:
        missing = [name for name in ARRAYS if name not in archive]
        if missing:
            raise ConfigurationError(
                f"{found[-1].name} must hold the arrays {', '.join(ARRAYS)}. Got a file without "
                f"{', '.join(missing)} instead."
            )
        arrays = {name: torch.from_numpy(archive[name]) for name in ARRAYS}
    train, test = (
        (F.normalize(arrays[f"x_{part}"].float()), arrays[f"y_{part}"].long())
        for part in ("train", "test")
    )
    return CachedFeatures(train, test, _pixels(found[-1]))


def from_maps(maps: str, labels: Path, folder: Path | None = None) -> Path:
    """The file of features from kept maps ``MAPS-train.npy`` and ``MAPS-test.npy``.

    The first `WIDTH` numbers of a row are the means of the network's last map over the image, which
    are its features. Labels are those of ``labels``, in the same order.
    """
    place = folder or features_folder()
    arrays = {}
    with np.load(labels, allow_pickle=False) as archive:
        for part in ("train", "test"):
            rows = np.load(place / f"{maps}-{part}.npy", mmap_mode="r")
            y = archive[f"y_{part}"]
            if len(rows) != len(y) or rows[0].size < WIDTH:
                raise ConfigurationError(
                    f"{maps}-{part}.npy must hold {WIDTH} numbers or more for each of the {len(y)} "
                    f"labels of {labels.name}. Got shape {rows.shape} instead."
                )
            arrays[f"x_{part}"] = np.array(rows.reshape(len(rows), -1)[:, :WIDTH])
            arrays[f"y_{part}"] = y
    made = place / PATTERN.replace("*", maps.rsplit("_", 1)[-1])
    with open(partial := made.with_suffix(".partial"), "wb") as file:
        np.savez(file, **arrays)
    return partial.rename(made)


def kept_scattering(
    data: str, rows: tuple[int, int], folder: Path | None = None
) -> tuple[Tensor, Tensor] | None:
    """Coefficients of the first training and test images of ``data``; None where they are not kept
    or are fewer than ``rows``."""
    parts = []
    for part, count in zip(("train", "test"), rows, strict=True):
        path = (folder or features_folder()) / f"{data}-scattering-J2-L8-{part}.npy"
        if not path.is_file():
            return None
        found = np.load(path, mmap_mode="r")
        if len(found) < count:
            return None
        parts.append(torch.from_numpy(np.array(found[:count], dtype=np.float32)))
    return parts[0], parts[1]


def _pixels(path: Path) -> int:
    edge = path.stem.rsplit("-", 1)[-1]
    return int(edge) if edge.isdigit() else 0


if __name__ == "__main__":
    print(from_maps(sys.argv[1], Path(sys.argv[2])))
