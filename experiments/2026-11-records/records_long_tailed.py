"""A look at flat clipping for the long-tailed record, outside epsilon, without a test row.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/records_long_tailed.py --batch 3000 --steps 200
        [--thresholds 1 8] [--lengths 1 4] [--norm groups]

The rows of the long-tailed task train linear models, one for each setting, side by side
(`records_tuning.train_grid`: plain noise, NO PRIVATE TRAINING, nothing here enters a record); what
says how good they are is 500 training rows of each class that they were not trained on. So flat
clipping has trials of its own there, and is a fair baseline for other losses.

Saves benchmarks/results/records_held_out.json: the last iterate, and the mean of the last 30 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time

import torch
from records import RECORDS, long_tailed
from records_features import PER_ROW, by_chunks, load
from records_tuning import CLASSES, accuracies, train_grid
from saving import FOLDER, save
from torch import Tensor
from torch.nn import functional as F

TASK, EACH = "fashion_mnist_long_tailed", 500


def split(y: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that train, and as many of each class that judge: of those that the task leaves out, but
    for the first class, of which it takes all and this look a few less."""
    train = torch.zeros(len(y), dtype=torch.bool)
    train[long_tailed(y)] = True
    train[(y == 0).nonzero().ravel()[:EACH]] = False
    judges = [((y == label) & ~train).nonzero().ravel()[:EACH] for label in range(CLASSES)]
    return train.nonzero().ravel(), torch.cat(judges)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--thresholds", type=float, nargs="+", default=[1.0, 8.0])
    parser.add_argument("--lengths", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--batch", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--norm", choices=PER_ROW, default=RECORDS[TASK].norm)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.epsilon = RECORDS[TASK].epsilon
    begun = time.process_time()
    data = load(RECORDS[TASK].features)
    train, judges = split(data.y_train)
    train = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(args.seed))]
    x, held_out = (
        F.pad(by_chunks(data.x_train[rows], PER_ROW[args.norm]).float(), (0, 1), value=1.0)
        for rows in (train, judges)
    )
    args.batch = min(args.batch, len(x))
    pairs = itertools.product(args.thresholds, args.lengths)
    grid = [("threshold", threshold, length) for threshold, length in pairs]
    last, average = train_grid(x, data.y_train[train], grid, args)
    found = zip(
        *(accuracies(w, held_out, data.y_train[judges]) for w in (last, average)), strict=True
    )
    head = f"{TASK} {args.norm} steps={args.steps} batch={args.batch}"
    results = {
        f"{head} threshold={threshold:g} length={length:g} seed={args.seed}": [
            round(accuracy, 2) for accuracy in both
        ]
        for (_, threshold, length), both in zip(grid, found, strict=True)
    }
    for key, both in results.items():
        print(key, both, flush=True)
    print(f"  {time.process_time() - begun:.0f} s", flush=True)
    path = FOLDER / "records_held_out.json"
    save("records_held_out", {**json.loads(path.read_text()), **results})


if __name__ == "__main__":
    main()
