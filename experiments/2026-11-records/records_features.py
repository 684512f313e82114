"""The features that the records are trained on: computed once, kept in ~/.cache/winsor.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/records_features.py --task cifar10_efficientnet

mnist, fashion_mnist      scattering (J = 2, 8 angles): 81 channels of 7 x 7; 1.2 ms per image
fashion_centred           the same, places of the averages centred
cifar10_scattering        the same of each colour, centred: 243 channels of 8 x 8
cifar10_opponent          the same of brightness and of two differences of colours
cifar10_efficientnet      EfficientNet-Lite0 at 224 pixels, means over positions of its last map
                          (1,280) and of the widened maps of blocks 12 and 13 (672 and 1,152);
                          18 ms per image where the package openvino is found

Extraction goes in parts of 1,000 images, each saved when it is done, so that it can be stopped, and
two processes can share it (--begin 25000 in one of them). The images of CIFAR-10 come from
../shared/data/full_cifar10.py. WINSOR_CACHE names another folder.
Files of features are transforms of the rows: as private as they are.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from winsor.features import MirrorShared, Scattering
from winsor.features.pretrained import CHUNK, efficientnet_lite0, frozen_features

CACHE = Path(os.environ.get("WINSOR_CACHE", Path.home() / ".cache" / "winsor"))
SHARED = Path(__file__).parents[2] / "shared" / "data"
PART = 1000
TASKS = (
    "mnist", "fashion_mnist", "fashion_centred", "cifar10_scattering", "cifar10_opponent",
    "cifar10_efficientnet",
)  # fmt: skip
CENTRED = ("fashion_centred", "cifar10_scattering", "cifar10_opponent")
SIDE, AT_ONCE = 224, CHUNK
FLOOR = 1e-3
"""Of scattering coefficients of pixels in [0, 1], before their logarithms."""
WIDENED = (11, 12)
"""Blocks, from 0, whose widened maps are kept beside the last one."""

Transform = Callable[[Tensor], Tensor]


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
        path = SHARED / f"{'mnist' if task == 'mnist' else 'fashion_mnist'}.npz"
    elif not (path := CACHE / "cifar10.npz").is_file():
        subprocess.run([sys.executable, SHARED / "full_cifar10.py", path], check=True)
    with np.load(path) as found:
        return {name: found[name] for name in found.files}


def stored(task: str, part: str) -> Path:
    """Where features are kept; a network's name has the side of its images."""
    name = task
    if task.endswith("efficientnet"):
        name = f"{task}_{SIDE}"
    elif task in CENTRED:
        name = f"{task.removesuffix('_centred')}_centred"
    return CACHE / "features" / f"{name}-{part}.npy"


def extract(task: str, part: str, pixels: np.ndarray, begin: int = 0) -> np.ndarray:
    """Features of all images, part by part, those from ``begin`` on first."""
    waves = Scattering(groups=None, centred=task in CENTRED)
    transform = network() if task.endswith("efficientnet") else waves
    folder = stored(task, part).with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    starts = range(0, len(pixels), PART)
    for first in sorted(starts, key=lambda first: (first < begin, first)):
        path = folder / f"{first:05d}.npy"
        if not path.is_file():
            begun = time.process_time()
            rows = torch.from_numpy(pixels[first : first + PART]).float() / 255
            rows = opponent(rows) if task.endswith("opponent") else rows
            np.save(fresh := path.with_suffix(".tmp.npy"), transform(rows).half().numpy())
            fresh.rename(path)
            print(f"{path}: {time.process_time() - begun:.1f} s", flush=True)
    return np.concatenate([np.load(folder / f"{first:05d}.npy") for first in starts])


def opponent(colours: Tensor) -> Tensor:
    """Red, green and blue in [0, 1] as brightness, red less green, and both less blue, in [0, 1].

    Edges of colour and edges of brightness are told apart before moduli are taken of them.
    """
    red, green, blue = colours.unbind(1)
    differences = (red - green) / 2, (red + green) / 4 - blue / 2
    return torch.stack([colours.mean(1), *(0.5 + one for one in differences)], dim=1)


@functools.cache
def network() -> Transform:
    """EfficientNet-Lite0 as the library has it, run by openvino where that is installed."""
    module = PooledMaps(efficientnet_lite0()).eval()
    if importlib.util.find_spec("openvino") is None:
        return lambda images: frozen_features(images, module, side=SIDE)
    import openvino

    example = torch.zeros(AT_ONCE, 3, SIDE, SIDE)
    converted = openvino.convert_model(module, example_input=example)
    converted.reshape(list(example.shape))
    options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(converted, "CPU", options).create_infer_request()

    def pooled(images: Tensor) -> Tensor:
        padded = F.pad(images, (0, 0, 0, 0, 0, 0, 0, AT_ONCE - len(images))).contiguous()
        (found,) = request.infer([padded.numpy()]).values()
        return torch.from_numpy(found.copy())[: len(images)]

    return lambda images: frozen_features(images, pooled, side=SIDE)


class PooledMaps(nn.Module):
    """Means over positions of the last map and of some widened ones: (n, 3,104, 1, 1)."""

    def __init__(self, extract: Transform) -> None:
        super().__init__()
        self.network = getattr(extract, "__self__")  # noqa: B009  (a bound method's module)
        self.widened: dict[int, Tensor] = {}
        for place in WIDENED:  # what goes into the narrow convolution at the end of a block
            narrow = self.network._blocks[place]._project_conv
            narrow.register_forward_pre_hook(functools.partial(self._keep, place))

    def _keep(self, place: int, module: nn.Module, inputs: tuple[Tensor]) -> None:
        del module
        self.widened[place] = inputs[0]

    def forward(self, images: Tensor) -> Tensor:
        last = self.network.extract_features(images)
        maps = [last, *(self.widened[place] for place in WIDENED)]
        return torch.cat([one.mean((2, 3)) for one in maps], 1)[:, :, None, None]


def load(task: str, begin: int = 0) -> Rows:
    """From the cache, or from nothing."""
    data = images(task)
    parts: dict[str, Tensor] = {}
    for part in ("train", "test"):
        kept = stored(task, part)
        if not kept.is_file():
            kept.parent.mkdir(parents=True, exist_ok=True)
            np.save(kept, extract(task, part, data[f"x_{part}"], begin))
        parts[f"x_{part}"] = torch.from_numpy(np.load(kept))
        parts[f"y_{part}"] = torch.from_numpy(data[f"y_{part}"].astype(np.int64))
    return Rows(**parts)


def by_chunks(x: Tensor, transform: object) -> Tensor:
    """A transform of each row in single precision, kept flat in half precision."""
    assert callable(transform)
    return torch.cat([transform(part.float()).flatten(1).half() for part in x.split(PART)])


def groups(x: Tensor) -> Tensor:
    """Groups of three channels."""
    return F.group_norm(x, x.shape[1] // 3)


def layer(x: Tensor) -> Tensor:
    """All channels together."""
    return F.layer_norm(x, x.shape[1:])


def unit_groups(x: Tensor) -> Tensor:
    """Groups of three channels, then all rows to one norm: coordinates of mean square 1."""
    rows = groups(x).flatten(1)
    return F.normalize(rows) * math.sqrt(rows.shape[1])


def unit(x: Tensor) -> Tensor:
    """Rows to one norm: coordinates of mean square 1."""
    rows = x.flatten(1)
    return (F.normalize(rows) * math.sqrt(rows.shape[1])).view(x.shape)


def unit_logarithms(x: Tensor) -> Tensor:
    """Logarithms, which bring coefficients of all sizes to alike spreads, then as unit."""
    return unit(layer((x.clamp_min(0) + FLOOR).log()))


def mirrored_logarithms(x: Tensor) -> Tensor:
    """The same, of what an image and its mirror image share."""
    return unit_logarithms(MirrorShared()(x))


def root_layer(x: Tensor) -> Tensor:
    """Square roots, which bring means of rectified maps to alike spreads, then all together."""
    return layer(x.clamp_min(0).sqrt())


PER_ROW: dict[str, Transform] = {
    "groups": groups,
    "layer": layer,
    "unit groups": unit_groups,
    "unit": unit,
    "unit logarithms": unit_logarithms,
    "mirrored logarithms": mirrored_logarithms,
    "root layer": root_layer,
}
"""Normalisations of each row by itself: nothing is released."""


def standardised(data: Rows, norm: str) -> tuple[Tensor, Tensor]:
    """For tuning outside epsilon only: row by row, or by exact moments of the training rows."""
    transform = PER_ROW.get(norm)
    if transform is None:
        axes = [axis for axis in range(data.x_train.dim()) if axis != 1]
        sample = data.x_train[:: max(1, len(data.x_train) // 5000)].float()
        shape = (-1, *[1] * (sample.dim() - 2))
        mean, deviation = sample.mean(axes).view(shape), sample.std(axes).view(shape)
        transform = lambda x: (x - mean) / (deviation + 1e-6)  # noqa: E731
    return by_chunks(data.x_train, transform), by_chunks(data.x_test, transform)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--begin", type=int, default=0)
    args = parser.parse_args()
    rows = load(args.task, args.begin)
    print(tuple(rows.x_train.shape), tuple(rows.x_test.shape))
