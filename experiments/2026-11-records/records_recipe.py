"""What the recipe's own choices cost on features, outside epsilon, on training rows held out.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/records_recipe.py --task mnist
        --plans quantile:0.9:0.5:400:0.1 threshold:4:1.4:100:0.2 ...

A plan is kind (a private quantile of the norms as the recipe has it, or a fixed threshold), its
value, the length of a step, the steps and the share of all rows in a batch. Models are trained on
25,000 training rows and judged on 8,000 others; no test row is looked at. Steps are of 1,500 rows
with the noise that means of whole batches would have: the noise of sampling stays small beside it,
and all plans of as many steps stand side by side in one matrix product. Noise is drawn plainly and
quantiles are counted exactly: THIS IS NO PRIVATE TRAINING and nothing here enters a record.

Saves benchmarks/results/records_recipe.json: the mean over seeds of the last iterate's accuracy,
and of the mean of the last 30 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from records import RECORDS
from records_features import by_chunks
from records_held_out import first_rows
from records_inside import left_of
from records_normalised import normalised, released_with
from records_training import CLASSES, DELTA
from records_tuning import accuracies
from saving import FOLDER, save
from torch import Tensor
from torch.nn import functional as F

from winsor.tails.guide import START, noise_multiplier

TRAIN, HELD_OUT, ROWS, MOMENTUM, RATE, TAIL = 25_000, 8000, 1500, 0.9, 0.3, 0.3


@dataclass(frozen=True)
class Plan:
    kind: str
    value: float
    length: float
    steps: int
    share: float

    @staticmethod
    def of(text: str) -> Plan:
        kind, value, length, steps, share = text.split(":")
        return Plan(kind, float(value), float(length), int(steps), float(share))

    def noise(self, n: int, epsilon: float) -> float:
        """Of the mean of a batch, in units of the threshold."""
        batch = round(self.share * n)
        return noise_multiplier(n, batch, self.steps, epsilon, DELTA) / batch


def descend(
    x: Tensor, y: Tensor, plans: list[Plan], noises: list[float], seed: int
) -> tuple[Tensor, Tensor, list[float]]:
    """Last weights and their mean at the end, (plans x classes, coordinates) each, and the last
    thresholds; ``plans`` have one number of steps."""
    generator = torch.Generator().manual_seed(seed)
    steps, count = plans[0].steps, len(plans)
    target = torch.tensor([plan.value for plan in plans])
    follows = torch.tensor([plan.kind == "quantile" for plan in plans])
    cut = torch.where(follows, torch.tensor(START), target)
    length = torch.tensor([plan.length for plan in plans]).repeat_interleave(CLASSES)[:, None]
    noise = torch.tensor(noises).repeat_interleave(CLASSES)[:, None]
    weights, velocity, average = (torch.zeros(count * CLASSES, x.shape[1]) for _ in range(3))
    size = x.norm(dim=1, keepdim=True)
    for step in range(steps):
        drawn = torch.randint(len(y), (ROWS,), generator=generator)
        rows = x[drawn]
        residual = (rows @ weights.T).view(ROWS, count, CLASSES).softmax(2)
        residual[torch.arange(ROWS), :, y[drawn]] -= 1
        norms = residual.norm(dim=2) * size[drawn]
        residual /= torch.maximum(norms, cut)[:, :, None]  # already over the threshold
        gradient = residual.flatten(1).T @ rows / ROWS
        gradient += noise * torch.randn(gradient.shape, generator=generator)
        moved = cut * torch.exp(-RATE * ((norms <= cut).float().mean(0) - target))
        cut = torch.where(follows, moved, cut)
        velocity.mul_(MOMENTUM).add_(gradient)
        weights -= (1 - step / steps) * length * velocity
        if step >= (1 - TAIL) * steps:
            average += weights
    return weights, average, cut.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=RECORDS, required=True)
    parser.add_argument("--plans", nargs="+", type=Plan.of, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    begun = time.process_time()
    record = RECORDS[args.task]
    x, y, n = first_rows(record.features, TRAIN + HELD_OUT)
    less: dict[str, Any] = {}  # noise of the releases, relative to the number of rows
    if record.white is not None:
        less["white"] = record.white * TRAIN / n
    if record.axes is not None:
        less["axes"] = (record.axes[0] * TRAIN / n, *record.axes[1:])
    norm, _ = normalised(x[:TRAIN], replace(record, **less), {"delta": DELTA, "seed": 0})
    z = F.pad(by_chunks(x, norm).float(), (0, 1), value=1.0)
    del x
    print(f"rows: {time.process_time() - begun:.0f} s", flush=True)
    epsilon = left_of(record.epsilon, DELTA, released_with(record))
    path = FOLDER / "records_recipe.json"
    for _, group in itertools.groupby(args.plans, key=lambda plan: plan.steps):
        plans, begun = list(group), time.process_time()
        noises = [plan.noise(n, epsilon) for plan in plans]
        found = torch.zeros(len(plans), 2)
        for seed in range(args.seeds):
            last, average, cut = descend(z[:TRAIN], y[:TRAIN], plans, noises, seed)
            held = [accuracies(w, z[TRAIN:], y[TRAIN:]) for w in (last, average)]
            found += torch.tensor(held).T / args.seeds
        results = json.loads(path.read_text()) if path.is_file() else {}
        for plan, both, threshold in zip(plans, found.tolist(), cut, strict=True):
            key = f"{args.task} {plan} seeds={args.seeds}"
            results[key] = [*(round(one, 2) for one in both), round(threshold, 2)]
            print(key, results[key], flush=True)
        save("records_recipe", results)
        print(f"  {time.process_time() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
