"""The features that the records are trained on: computed once, kept in ~/.cache/winsor/features.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/records_features.py --task cifar10_efficientnet

fashion_mnist, mnist      scattering (J = 2, 8 angles): 81 channels of 7 x 7; 1.2 ms per image
cifar10_scattering        the same of each colour: 243 channels of 8 x 8
cifar10_efficientnet      the last map of EfficientNet-Lite0 at 224 pixels: 1,280; 25 ms per image

Extraction goes in parts of 1,000 images, each saved when it is done, so that it can be stopped. The
images of CIFAR-10 come from ../shared/data/full_cifar10.py. Files of features are transforms of the
rows: as private as they are.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from winsor.features import Pretrained, Scattering

CACHE = Path.home() / ".cache" / "winsor"
SHARED = Path(__file__).parents[2] / "shared" / "data"
PART = 1000
TASKS = ("mnist", "fashion_mnist", "cifar10_scattering", "cifar10_efficientnet")


@dataclass(frozen=True)
class Rows:
    """Features (n, channels, ...) in half precision, labels, of training and test rows."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def images(task: str) -> dict[str, np.ndarray]:
    """Pixels and labels as they come."""
    if not task.startswith("cifar10"):
        path = SHARED / f"{task}.npz"
    elif not (path := CACHE / "cifar10.npz").is_file():
        subprocess.run([sys.executable, SHARED / "full_cifar10.py", path], check=True)
    with np.load(path) as found:
        return {name: found[name] for name in found.files}


def extract(task: str, part: str, pixels: np.ndarray) -> np.ndarray:
    """Features of all images, part by part."""
    transform = Pretrained() if task.endswith("efficientnet") else Scattering(groups=None)
    folder = CACHE / "features" / f"{task}-{part}"
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for first in range(0, len(pixels), PART):
        path = folder / f"{first:05d}.npy"
        if not path.is_file():
            begun = time.process_time()
            rows = torch.from_numpy(pixels[first : first + PART]).float() / 255
            np.save(fresh := path.with_suffix(".tmp.npy"), transform(rows).half().numpy())
            fresh.rename(path)
            print(f"{path}: {time.process_time() - begun:.1f} s", flush=True)
        found.append(np.load(path))
    return np.concatenate(found)


def load(task: str) -> Rows:
    """From the cache, or from nothing."""
    stem = {"cifar10_scattering": "cifar10"}.get(task, task)
    name = f"{stem}-scattering-J2-L8"
    if task.endswith("efficientnet"):
        name = "cifar10-efficientnet-lite0-224"
        if (whole := CACHE / "features" / f"{name}.npz").is_file():
            with np.load(whole) as found:
                return Rows(**{key: torch.from_numpy(found[key]) for key in found.files})
    data = images(task)
    parts: dict[str, Tensor] = {}
    for part in ("test", "train"):
        kept = CACHE / "features" / f"{name}-{part}.npy"
        if not kept.is_file():
            kept.parent.mkdir(parents=True, exist_ok=True)
            np.save(kept, extract(task, part, data[f"x_{part}"]))
        parts[f"x_{part}"] = torch.from_numpy(np.load(kept))
        parts[f"y_{part}"] = torch.from_numpy(data[f"y_{part}"].astype(np.int64))
    return Rows(**parts)


def by_chunks(x: Tensor, transform: object) -> Tensor:
    """A transform of each row in single precision, kept flat in half precision."""
    assert callable(transform)
    return torch.cat([transform(part.float()).flatten(1).half() for part in x.split(PART)])


def standardised(data: Rows, norm: str) -> tuple[Tensor, Tensor]:
    """For tuning outside epsilon only: by exact moments of the training rows ("channels"), by
    groups of channels, to unit length, or not at all."""
    if norm == "channels":
        axes = [axis for axis in range(data.x_train.dim()) if axis != 1]
        sample = data.x_train[:: max(1, len(data.x_train) // 5000)].float()
        shape = (-1, *[1] * (sample.dim() - 2))
        mean, deviation = sample.mean(axes).view(shape), sample.std(axes).view(shape)
        transform = lambda x: (x - mean) / (deviation + 1e-6)  # noqa: E731
    elif norm == "groups":
        transform = lambda x: F.group_norm(x, x.shape[1] // 3)  # noqa: E731
    elif norm == "unit":
        transform = lambda x: F.normalize(x.flatten(1))  # noqa: E731
    else:
        transform = lambda x: x  # noqa: E731
    return by_chunks(data.x_train, transform), by_chunks(data.x_test, transform)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, required=True)
    rows = load(parser.parse_args().task)
    print(tuple(rows.x_train.shape), tuple(rows.x_test.shape))
