"""All rules on Fashion-MNIST at the same certified epsilon, with the same tuning budget.

    python benchmarks/rules_fashion_mnist.py --data ../shared/data

Two-layer CNN with GroupNorm, SGD with momentum 0.9, Poisson batches of 256 expected rows, epsilon
3 at delta 1e-5. The first 50,000 training images are private, 2,000 others stand for a public
validation set. Runs are short (two epochs), so that the whole table takes about 50 minutes of one
core; the accuracies are not those of a long training. Each rule gets the same number of tuning runs
(one seed, half an epoch; the best validation accuracy wins), then five seeds at full length;
accuracy is on the 10,000 test images. The tuning itself is outside the certified epsilon, as it
would be with a public validation task.

Finished runs are kept in benchmarks/results/rules_fashion_mnist.json and not repeated.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from saving import save
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor import rules
from winsor.accounting import calibrate
from winsor.models.networks import two_layer_cnn
from winsor.rules.discriminative import Discriminative
from winsor.sampling.samplers import Poisson

RESULTS = Path(__file__).parent / "results" / "rules_fashion_mnist.json"
EPSILON, DELTA, BATCH, ROWS = 3.0, 1e-5, 256, 50_000
TUNING_EPOCHS, FINAL_EPOCHS, SEEDS = 0.5, 2, 5


@dataclass(frozen=True)
class Entry:
    """One line of the table: a rule family, two values of its constant, two step lengths.

    A step length is lr * (bound on one row's gradient), so that small and large thresholds are
    compared at the same effective rate.
    """

    name: str
    rule: Callable[[float], Any]
    constants: tuple[float, float] = (0.1, 1.0)
    lengths: tuple[float, float] = (0.25, 1.0)
    bound: Callable[[float], float] = lambda constant: constant

    def settings(self) -> list[tuple[float, float]]:
        """(constant, learning rate) pairs to try."""
        return [(c, length / self.bound(c)) for c in self.constants for length in self.lengths]


def one(constant: float) -> float:
    """For rules whose constant is not the bound: the bound stays at 1."""
    return 1.0


def dc(selection: str, **options: Any) -> Callable[[float], Any]:
    return lambda c: Discriminative(c, c / 3, selection=selection, **options)


ENTRIES = (
    Entry("flat", rules.Flat),
    Entry("automatic", lambda g: rules.Automatic(1.0, gamma=g), (0.01, 0.1), bound=one),
    Entry("psac", lambda r: rules.PSAC(1.0, r=r), (0.1, 1.0), bound=one),
    Entry("quantile", rules.Quantile),
    Entry("dc norm", lambda c: Discriminative(c, c / 3, selection="norm", threshold=3 * c)),
    Entry("dc loss", dc("loss", threshold=1.0)),
    Entry("value", rules.Value, (1.0, 10.0), (1.0, 4.0)),
    Entry("per_layer", rules.PerLayer),
    Entry("linf p=25", rules.LInf),
    Entry("nsgd", lambda r: rules.NSGD(1.0, regulariser=r), (0.1, 1.0), bound=one),
    Entry("averaged", rules.Averaged, (0.1, 1.0), (0.01, 0.1)),
    Entry("dc rank", dc("rank", rank_by="norm")),
    Entry("dc random", dc("random")),
    Entry("dc trace", dc("trace")),
    Entry("microbatch 4", lambda c: rules.Microbatch(c, size=4)),
)


@dataclass(frozen=True)
class Data:
    train: TensorDataset
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def load(folder: Path) -> Data:
    with np.load(folder / "fashion_mnist.npz") as arrays:
        loaded = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    x = (loaded["x_train"].float().unsqueeze(1) / 255 - 0.5) / 0.5
    y = loaded["y_train"].long()
    x_test = (loaded["x_test"].float().unsqueeze(1) / 255 - 0.5) / 0.5
    return Data(
        TensorDataset(x[:ROWS], y[:ROWS]),
        (x[50_000:52_000], y[50_000:52_000]),
        (x_test, loaded["y_test"].long()),
    )


def train(
    data: Data, rule: Any, lr: float, epochs: float, seed: int, final: bool
) -> dict[str, float]:
    torch.manual_seed(seed)
    model = two_layer_cnn()
    noise = None if getattr(rule, "selection", "") == "random" else usual_noise(epochs)
    start = time.perf_counter()
    private = winsor.make_private(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9),
        dataset=data.train,
        rule=rule,
        epsilon=EPSILON,
        noise_multiplier=noise,
        delta=DELTA,
        epochs=epochs,
        batch_size=BATCH,
        seed=seed,
        max_physical_batch_size=512,
    )
    for x, y in private.batches():
        private.step(F.cross_entropy(model(x), y, reduction="none"))
    seconds = time.perf_counter() - start
    return {
        "accuracy": accuracy(model, *(data.test if final else data.validation)),
        "epsilon": private.spent().epsilon,
        "noise_multiplier": private.noise_multiplier,
        "seconds": seconds,
    }


@functools.cache
def usual_noise(epochs: float) -> float:
    """The multiplier of every rule whose step is one subsampled Gaussian: calibrated once."""
    sampler = Poisson.of_batch_size(ROWS, BATCH)
    event = PoissonSampledDpEvent
    steps = math.ceil(epochs / sampler.rate)
    relation = winsor.Neighbouring.ADD_OR_REMOVE_ONE
    return calibrate.noise_multiplier(
        lambda nm: event(sampler.rate, GaussianDpEvent(nm)), steps, EPSILON, DELTA, relation
    )


@torch.no_grad()
def accuracy(model: torch.nn.Module, x: Tensor, y: Tensor) -> float:
    right = sum(
        int((model(a).argmax(1) == b).sum())
        for a, b in zip(x.split(2000), y.split(2000), strict=True)
    )
    return 100 * right / len(y)


class Store:
    """Finished runs by name, on disk after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: dict[str, dict[str, float]] = {}
        if path.exists():
            self.runs = json.loads(path.read_text())["runs"]

    def get(self, name: str, compute: Callable[[], dict[str, float]]) -> dict[str, float]:
        if name not in self.runs:
            self.runs[name] = compute()
            print(f"{name}: {self.runs[name]}", flush=True)
            self.save({})
        return self.runs[name]

    def save(self, table: dict[str, Any]) -> None:
        settings = {
            "epsilon": EPSILON, "delta": DELTA, "batch_size": BATCH, "rows": ROWS, "seeds": SEEDS,
            "tuning_epochs": TUNING_EPOCHS, "final_epochs": FINAL_EPOCHS,
        }  # fmt: skip
        content = {"settings": settings, "table": table, "runs": self.runs}
        save(self.path.stem, content, self.path.parent)


def measure(entry: Entry, data: Data, store: Store) -> dict[str, Any]:
    def tune(c: float, lr: float) -> dict[str, float]:
        name = f"tune {entry.name} c={c:g} lr={lr:g}"
        return store.get(
            name, lambda: train(data, entry.rule(c), lr, TUNING_EPOCHS, 0, final=False)
        )

    c, lr = max(entry.settings(), key=lambda setting: tune(*setting)["accuracy"])
    finals = [
        store.get(
            f"final {entry.name} seed={seed}",
            lambda seed=seed: train(data, entry.rule(c), lr, FINAL_EPOCHS, seed, final=True),
        )
        for seed in range(1, SEEDS + 1)
    ]
    scores = [run["accuracy"] for run in finals]
    return {
        "constant": c,
        "lr": lr,
        "mean": statistics.mean(scores),
        "sd": statistics.stdev(scores),
        "epsilon": max(run["epsilon"] for run in finals),
        "seconds": statistics.median(run["seconds"] for run in finals),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="names of entries to measure")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    data = load(arguments.data)
    store = Store(RESULTS)
    table = {}
    for entry in ENTRIES:
        if not arguments.only or entry.name in arguments.only:
            table[entry.name] = measure(entry, data, store)
            store.save(table)
    print(f"{'rule':12} {'test accuracy':>16} {'constant':>9} {'lr':>5} {'epsilon':>8} {'s':>6}")
    for name, row in sorted(table.items(), key=lambda item: -item[1]["mean"]):
        print(
            f"{name:12} {row['mean']:9.2f} +- {row['sd']:4.2f} {row['constant']:9g} {row['lr']:5g} "
            f"{row['epsilon']:8.4f} {row['seconds']:6.0f}"
        )


if __name__ == "__main__":
    main()
