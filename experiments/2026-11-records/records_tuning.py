"""A look at thresholds and step lengths for the records, outside epsilon, many settings at once.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/records_tuning.py --task fashion_mnist
        [--norm groups] [--steps 200] [--batch 8192] [--epsilon 3] [--quantiles 0.5 0.8]

All settings of the grid see the same batches: their weights stand side by side, so that one matrix
product serves all of them. Batches are consecutive rows of one shuffle, the noise is that of
`winsor` at the same epsilon but drawn plainly, quantiles are exact: THIS IS NO PRIVATE TRAINING and
nothing here enters a record. It is how the settings of `benchmarks/records.py` were found, on the
test rows: tuning outside epsilon, as the published records have it, and said beside each of them.

A threshold is a number or, with --quantiles, that quantile of the norms of the batch, as the recipe
has it. Saves benchmarks/results/records_tuning.json, one line per setting: the accuracy of the last
iterate, and that of the mean over the last 30 % of them.
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

DELTA, MOMENTUM, CLASSES, TAIL = 1e-5, 0.9, 10, 0.3

Grid = list[tuple[str, float, float]]
"""("threshold" or "quantile", its value, length of a step)."""


def thresholds(grid: Grid, norms: Tensor) -> Tensor:
    """One threshold for each setting, from the (rows, settings) norms of a batch."""
    fixed = torch.tensor([value for _, value, _ in grid])
    for place, (kind, level, _) in enumerate(grid):
        if kind == "quantile":
            fixed[place] = norms[:, place].quantile(level)
    return fixed


def train_grid(x: Tensor, y: Tensor, grid: Grid, args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """The last weights and their mean over the end: (settings * classes, features) each."""
    n, d = x.shape
    generator = torch.Generator().manual_seed(args.seed)
    noise = noise_multiplier(n, args.batch, args.steps, args.epsilon, DELTA)
    lengths = torch.tensor([length for *_, length in grid]).repeat_interleave(CLASSES)[:, None]
    weights = torch.zeros(len(grid) * CLASSES, d)
    velocity, average, fresh = (torch.zeros_like(weights) for _ in range(3))
    first = n
    for step in range(args.steps):
        first = 0 if first + args.batch > n else first
        rows, labels = x[first : first + args.batch], y[first : first + args.batch]
        first += args.batch
        residual = (rows @ weights.T).view(len(rows), len(grid), CLASSES).softmax(2)
        residual[torch.arange(len(rows)), :, labels] -= 1
        norms = residual.norm(dim=2) * rows.norm(dim=1, keepdim=True)
        residual /= torch.maximum(norms, thresholds(grid, norms))[:, :, None]  # already over C
        gradient = residual.flatten(1).T @ rows
        gradient.add_(fresh.normal_(generator=generator), alpha=noise)
        velocity.mul_(MOMENTUM).add_(gradient, alpha=1 / args.batch)
        weights -= (1 - step / args.steps) * lengths * velocity
        if step >= (1 - TAIL) * args.steps:
            average += weights
    return weights, average  # its scale does not move the largest logit


def accuracies(weights: Tensor, x: Tensor, y: Tensor) -> list[float]:
    found = torch.zeros(len(weights) // CLASSES)
    for rows, labels in zip(x.split(2000), y.split(2000), strict=True):
        outputs = (rows @ weights.T).view(len(rows), -1, CLASSES)
        found += (outputs.argmax(2) == labels[:, None]).float().sum(0)
    return (100 * found / len(x)).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, default="fashion_mnist")
    parser.add_argument("--thresholds", type=float, nargs="*", default=[0.1, 8.0])
    parser.add_argument("--quantiles", type=float, nargs="*", default=[])
    parser.add_argument("--lengths", type=float, nargs="+", default=[2.0, 4.0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--norm", default="channels")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    begun = time.process_time()
    data = load(args.task)
    shuffled = torch.randperm(len(data.y_train), generator=torch.Generator().manual_seed(args.seed))
    x, held_out = standardised(data, args.norm)
    x, held_out = (F.pad(part.float(), (0, 1), value=1.0) for part in (x[shuffled], held_out))
    grid = [
        (kind, value, length)
        for kind, values in (("threshold", args.thresholds), ("quantile", args.quantiles))
        for value, length in itertools.product(values, args.lengths)
    ]
    last, average = train_grid(x, data.y_train[shuffled], grid, args)
    found = zip(*(accuracies(w, held_out, data.y_test) for w in (last, average)), strict=True)
    path = FOLDER / "records_tuning.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    head = f"{args.task} {args.norm} steps={args.steps} batch={args.batch} epsilon={args.epsilon:g}"
    for (kind, value, length), both in zip(grid, found, strict=True):
        key = f"{head} {kind}={value:g} length={length:g} seed={args.seed}"
        results[key] = [round(accuracy, 2) for accuracy in both]
        print(key, results[key], flush=True)
    results[f"{head} processor_seconds"] = round(time.process_time() - begun, 1)
    save("records_tuning", results)


if __name__ == "__main__":
    main()
