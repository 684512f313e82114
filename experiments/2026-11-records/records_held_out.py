"""A look at settings for the records with axes, outside epsilon, on training rows held out.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/records_held_out.py --task cifar10_opponent
        [--rows 17000] [--powers 0.7,0.7 0.7,0.3] [--thresholds 4] [--lengths 2 4] [--steps 60]

Some training rows train a linear model, ``--held-out`` others say how good it is; no test row is
looked at. Noise is that which all rows of the record would bear, relative to their number, drawn
plainly: THIS IS NO PRIVATE TRAINING and nothing here enters a record. It is how the settings of
`benchmarks/records.py` for CIFAR-10 were found.

Axes are released once and rows are turned into their eigenvectors, so that trying other powers is a
matter of scales, and all thresholds and lengths stand side by side in one matrix product. Three
figures for each setting: of the last iterate, of the mean of the last 30 %, and of the last one
whose coordinates are shrunk by what the noise must have added to them (`shrunk`).

Saves benchmarks/results/records_held_out.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from records_features import PART, PER_ROW, TASKS, images, stored
from saving import FOLDER, save
from torch import Tensor
from torch.nn import functional as F

from winsor.features import PrivateAxes
from winsor.tails.guide import noise_multiplier

DELTA, CLASSES, MOMENTUM, TAIL, BLOCK, CHUNK = 1e-5, 10, 0.9, 0.3, 64, 2500


@dataclass(frozen=True)
class Turned:
    """Rows in the eigenvectors of channels and places, with their released eigenvalues."""

    maps: Tensor  # (n, channels, places)
    channels: Tensor
    places: Tensor

    def scaled(self, powers: tuple[float, float]) -> Tensor:
        """Rows flattened by these powers, each of norm sqrt(coordinates)."""
        scale = self.channels.pow(-powers[0] / 2)[:, None] * self.places.pow(-powers[1] / 2)
        rows = (self.maps * scale).flatten(1)
        return F.normalize(rows) * math.sqrt(rows.shape[1])


def first_rows(task: str, count: int) -> tuple[Tensor, Tensor, int]:
    """Features and labels of the first training rows, shuffled, and how many there are in all."""
    path, labels = stored(task, "train"), images(task)["y_train"].astype(np.int64)
    count = min(count, len(labels))
    if path.is_file():
        x = np.load(path, mmap_mode="r")[:count]
    else:
        names = [path.with_suffix("") / f"{first:05d}.npy" for first in range(0, count, PART)]
        x = np.concatenate([np.load(name) for name in names])[:count]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(5))
    return torch.from_numpy(x[order.numpy()]), torch.from_numpy(labels[:count])[order], len(labels)


def turned(x: Tensor, norm: str, train: int, noise: float, seed: int) -> Turned:
    """Axes of the first ``train`` rows, released with ``noise``, of all rows."""
    normalise = PER_ROW[norm]
    maps = torch.cat([normalise(part.float()).half() for part in x.split(PART)])
    axes = PrivateAxes(noise_multiplier=noise, delta=DELTA, power=1.0, seed=seed).fit(maps[:train])
    (left, right), sides = (_spectrum(axes.channels_), _spectrum(axes.places_)), []
    for part in maps.split(PART):
        centred = (part.float() - axes.mean_).flatten(2)
        sides.append(left[1].T @ centred @ right[1])
    return Turned(torch.cat(sides), left[0], right[0])


def _spectrum(root: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the matrix whose inverse root this is."""
    values, vectors = torch.linalg.eigh(root.double())
    return values.pow(-2).float(), vectors.float()


def descend(
    z: Tensor, y: Tensor, grid: list[tuple[float, float]], steps: int, noise: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Last weights and their mean at the end, (settings x classes, coordinates + 1) each; all rows
    in every step, ``noise`` over clipped means."""
    generator = torch.Generator().manual_seed(seed)
    d, settings = z.shape[1], len(grid)
    cut = torch.tensor([threshold for threshold, _ in grid])
    length = torch.tensor([size for _, size in grid]).repeat_interleave(CLASSES)[:, None]
    weights, velocity, average = (torch.zeros(settings * CLASSES, d + 1) for _ in range(3))
    for step in range(steps):
        gradient = torch.zeros_like(weights)
        for rows, labels in zip(z.split(CHUNK), y.split(CHUNK), strict=True):
            logits = torch.addmm(weights[:, d], rows, weights[:, :d].T)
            residual = logits.view(len(rows), settings, CLASSES).softmax(2)
            residual[torch.arange(len(rows)), :, labels] -= 1
            norms = residual.norm(dim=2) * math.sqrt(d + 1)
            residual /= torch.maximum(norms, cut)[:, :, None]  # already over the threshold
            flat = residual.flatten(1)
            gradient[:, :d].addmm_(flat.T, rows)
            gradient[:, d] += flat.sum(0)
        gradient /= len(z)
        gradient.add_(torch.randn(gradient.shape, generator=generator), alpha=noise)
        velocity.mul_(MOMENTUM).add_(gradient)
        weights -= (1 - step / steps) * length * velocity
        if step >= (1 - TAIL) * steps:
            average += weights
    return weights, average  # its scale does not move the largest logit


def in_weights(steps: int) -> float:
    """Deviation of the last weights for noise 1 in every step and length 1."""
    reach = 0.0
    total = 0.0
    for step in reversed(range(steps)):
        reach = (1 - step / steps) + MOMENTUM * reach
        total += reach**2
    return math.sqrt(total)


def shrunk(weights: Tensor, grid: list[tuple[float, float]], noise: float, prior: Tensor) -> Tensor:
    """Weights of coordinates of alike ``prior`` variance, times the share that is not noise."""
    d = len(prior)
    order = prior.argsort(descending=True)
    found = weights.clone().view(len(grid), CLASSES, d + 1)
    for one, (_, length) in zip(found, grid, strict=True):
        for block in order.split(BLOCK):
            energy = one[:, block].square().mean()
            one[:, block] *= (1 - (noise * length) ** 2 / energy).clamp_min(0.0)
    return found.view_as(weights)


def accuracies(weights: Tensor, z: Tensor, y: Tensor) -> list[float]:
    d, hits = z.shape[1], torch.zeros(len(weights) // CLASSES)
    for rows, labels in zip(z.split(CHUNK), y.split(CHUNK), strict=True):
        logits = torch.addmm(weights[:, d], rows, weights[:, :d].T)
        hits += (logits.view(len(rows), -1, CLASSES).argmax(2) == labels[:, None]).float().sum(0)
    return [round(100 * hit / len(z), 2) for hit in hits.tolist()]


def look(args: argparse.Namespace) -> dict[str, list[float]]:
    """Every setting that ``args`` names."""
    x, y, n = first_rows(args.task, args.rows)
    train = len(y) - args.held_out
    rows = turned(x, args.norm, train, args.axes * train / n, args.seed)
    del x
    found = {}
    spent = noise_multiplier(n, n, args.steps, args.epsilon, DELTA) / math.sqrt(args.steps)
    left = 1 / math.sqrt(spent**-2 - args.axes**-2)  # what the axes leave for the training
    noise = left * math.sqrt(args.steps) / n
    grid = list(itertools.product(args.thresholds, args.lengths))
    for powers in args.powers:
        begun = time.process_time()
        z = rows.scaled(powers)
        weights, average = descend(z[:train], y[:train], grid, args.steps, noise, args.seed)
        prior = (rows.channels[:, None].pow(1 - powers[0]) * rows.places.pow(1 - powers[1])).ravel()
        less = shrunk(weights, grid, noise * in_weights(args.steps), prior)
        held = [accuracies(w, z[train:], y[train:]) for w in (weights, average, less)]
        head = f"{args.task} {args.norm} rows={train} axes={args.axes:g} powers={powers} "
        for place, (threshold, length) in enumerate(grid):
            key = head + f"steps={args.steps} threshold={threshold:g} length={length:g}"
            found[f"{key} seed={args.seed}"] = [one[place] for one in held]
            print(key, found[f"{key} seed={args.seed}"], flush=True)
        print(f"  {time.process_time() - begun:.0f} s", flush=True)
    return found


def pair(text: str) -> tuple[float, float]:
    channels, places = text.split(",")
    return float(channels), float(places)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, default="cifar10_opponent")
    parser.add_argument("--norm", choices=PER_ROW, default="mirrored logarithms")
    parser.add_argument("--rows", type=int, default=17_000)
    parser.add_argument("--held-out", type=int, default=5000)
    parser.add_argument("--axes", type=float, default=10.0)
    parser.add_argument("--powers", type=pair, nargs="+", default=[(0.7, 0.7)])
    parser.add_argument("--thresholds", type=float, nargs="+", default=[4.0])
    parser.add_argument("--lengths", type=float, nargs="+", default=[4.0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = look(args)
    path = FOLDER / "records_held_out.json"
    kept: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    save("records_held_out", {**kept, **found})


if __name__ == "__main__":
    main()
