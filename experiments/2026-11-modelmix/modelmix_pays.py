"""Does mixing pay? Three ways to spend the same certified epsilon, on two problems.

    OMP_NUM_THREADS=1 python benchmarks/modelmix_pays.py --data ../shared/data

Problems: a9a with a logistic model (26,000 private rows, 10 epochs); Fashion-MNIST, averaged to
14 x 14 pixels, with a linear model (10,000 private rows, so that noise matters; 10 epochs). Rows
held out of training stand for a public validation set. Methods, all by plain SGD from zero:

    dp-sgd         clipping to 1, Gaussian noise
    + modelmix     l2 + l-inf clipping (p = 25), mixing over tau, the Gaussian noise that remains
    + same noise   clipping to 1, Gaussian noise of the variance that mixing and its Gaussian noise
                   have together; no mixing. Its own certified epsilon is smaller, and shown.

Each method chooses its learning rate, and mixing also tau (2 or 5 times the deviation of dp-sgd's
noise), by mean validation accuracy of three seeds; then five other seeds are tested. The tuning is
outside the certified epsilon, as it would be on a public validation task.

A second table takes mixing apart at epsilon 8, where noise hardly matters: the noise of dp-sgd,
with and without the coordinate bound, with and without mixing (of the gap between iterates alone,
tau = 0).

Finished runs are kept in benchmarks/results/modelmix_pays.json and not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from saving import save
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from winsor_reproductions.datasets import load
from winsor_reproductions.training_runs import fashion_mnist

import winsor
from winsor.accounting import account, calibrate
from winsor.accounting.widened.gaussian import MixedGaussianDpEvent
from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.rules import Flat, LInf

RESULTS = Path(__file__).parent / "results" / "modelmix_pays.json"
EPSILONS, DELTA, P = (0.5, 1.0, 3.0, 8.0), 1e-5, 25
TUNING_SEEDS, SEEDS = (0, 6, 7), (1, 2, 3, 4, 5)
WIDTHS = (2.0, 5.0)
METHODS = ("dp-sgd", "+ modelmix", "+ same noise")

Record = dict[str, Any]
Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Problem:
    name: str
    train: Rows
    validation: Rows
    test: Rows
    classes: int
    batch_size: int
    steps: int
    rates: tuple[float, ...]

    @property
    def q(self) -> float:
        return self.batch_size / len(self.train[1])


@dataclass(frozen=True)
class Spending:
    """Noise of one method at one epsilon. ``width`` is tau/lr on the averaged gradient."""

    noise_multiplier: float
    width: float
    certified_epsilon: float


@dataclass(frozen=True)
class Pieces:
    """The two halves of mixing: the coordinate bound, and the mixed update."""

    bound: bool
    mixing: bool


PIECES = {
    "dp-sgd": Pieces(False, False),
    "coordinate bound only": Pieces(True, False),
    "mixed update only": Pieces(False, True),
    "both": Pieces(True, True),
}


def a9a(folder: Path) -> Problem:
    table = load("a9a", folder)
    x, y = torch.from_numpy(table.x_train).float(), torch.from_numpy(table.y_train).long()
    test = torch.from_numpy(table.x_test).float(), torch.from_numpy(table.y_test).long()
    cut = 26_000
    rates = (1.0, 2.0, 4.0, 8.0)
    return Problem("a9a", (x[:cut], y[:cut]), (x[cut:], y[cut:]), test, 2, 512, 508, rates)


def fashion(folder: Path) -> Problem:
    (x, y), (x_test, y_test) = fashion_mnist(folder)
    x, x_test = (F.avg_pool2d(images, 2).flatten(1) for images in (x, x_test))
    cut, held_out = 10_000, slice(50_000, None)
    training, validation = (x[:cut], y[:cut]), (x[held_out], y[held_out])
    rates = (1.0, 2.0, 4.0, 8.0, 16.0)
    return Problem("fashion-mnist", training, validation, (x_test, y_test), 10, 500, 200, rates)


class Store:
    """Finished runs by name, on disk after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {"settings": {}, "tables": {}, "runs": {}}
        if path.exists():
            self.content = json.loads(path.read_text())

    def get(self, name: str, compute: Callable[[], Record]) -> Record:
        runs = self.content["runs"]
        if name not in runs:
            runs[name] = compute()
            print(f"{name}: {runs[name]}", flush=True)
            self.save()
        return runs[name]

    def save(self) -> None:
        save(self.path.stem, self.content, self.path.parent)


# ------------------------------------------------------------------------------------- accounting


def spend(problem: Problem, method: str, epsilon: float, factor: float, store: Store) -> Spending:
    """The noise of a method; ``factor`` is the width of mixing over the noise of dp-sgd."""
    plain = _calibrated(problem, "dp-sgd", epsilon, 0.0, store)
    if method == "dp-sgd":
        return plain
    width = factor * plain.noise_multiplier / problem.batch_size
    mixed = _calibrated(problem, f"mixed x{factor:g}", epsilon, width, store)
    if method == "+ modelmix":
        return mixed
    uniform = width * problem.batch_size / math.sqrt(12)
    total = math.hypot(mixed.noise_multiplier, uniform)
    name = f"{problem.name} eps={epsilon:g} account same noise x{factor:g}"

    def price() -> Record:
        event = PoissonSampledDpEvent(problem.q, GaussianDpEvent(total))
        return {"epsilon": account([(event, problem.steps)], DELTA).epsilon}

    return Spending(total, 0.0, store.get(name, price)["epsilon"])


def _calibrated(
    problem: Problem, label: str, epsilon: float, width: float, store: Store
) -> Spending:
    def event_of(noise: float) -> DpEvent:
        if width == 0:
            return PoissonSampledDpEvent(problem.q, GaussianDpEvent(noise))
        return MixedGaussianDpEvent(problem.q, noise, width * problem.batch_size, P)

    def compute() -> Record:
        noise = calibrate.noise_multiplier(event_of, problem.steps, epsilon, DELTA)
        spent = account([(event_of(noise), problem.steps)], DELTA).epsilon
        return {"noise_multiplier": noise, "epsilon": spent, "width": width}

    found = store.get(f"{problem.name} eps={epsilon:g} noise {label}", compute)
    return Spending(found["noise_multiplier"], width, found["epsilon"])


# --------------------------------------------------------------------------------------- training


def train(
    problem: Problem, spending: Spending, lr: float, seed: int, pieces: Pieces | None = None
) -> Record:
    """One run; ``pieces`` says which halves of mixing to take, by default both or neither."""
    start = time.perf_counter()
    model = nn.Linear(problem.train[0].shape[1], problem.classes)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    pieces = pieces or Pieces(spending.width > 0, spending.width > 0)
    private = winsor.make_private(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        dataset=TensorDataset(*problem.train),
        rule=LInf(1.0, P) if pieces.bound else Flat(1.0),
        batch_size=problem.batch_size,
        delta=DELTA,
        noise_multiplier=spending.noise_multiplier,
        steps=problem.steps,
        mechanism=ModelMix(spending.width) if pieces.mixing else None,
        seed=seed,
    )
    for x, y in private.batches():
        private.step(F.cross_entropy(model(x), y, reduction="none"))
    ((event, count),) = private.ledger.history()
    _check_event(problem, spending, event, count)
    return {
        "validation": accuracy(model, *problem.validation),
        "test": accuracy(model, *problem.test),
        "seconds": time.perf_counter() - start,
    }


def _check_event(problem: Problem, spending: Spending, event: DpEvent, count: int) -> None:
    """The run released what was accounted for: its epsilon is the calibrated one."""
    inner = event if isinstance(event, MixedGaussianDpEvent) else event.event
    same = math.isclose(inner.noise_multiplier, spending.noise_multiplier, rel_tol=1e-9)
    if isinstance(event, MixedGaussianDpEvent):
        width = spending.width * problem.batch_size
        same &= math.isclose(event.width_ratio, width, rel_tol=1e-9)
        same &= math.isclose(event.coordinates, P, rel_tol=1e-9)
    if not (same and count == problem.steps):
        raise SystemExit(f"the ledger holds {event} x {count}, which was not accounted for")


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return 100 * float((model(x).argmax(1) == y).double().mean())


# -------------------------------------------------------------------------------------- the table


def measure(problem: Problem, epsilon: float, store: Store) -> dict[str, Record]:
    """The three methods at one epsilon: mixing chooses tau, and the same noise follows it."""
    table, chosen = {}, WIDTHS[0]
    for method in METHODS:
        factors = WIDTHS if method == "+ modelmix" else (chosen,)
        options = [(factor, lr) for factor in factors for lr in problem.rates]

        def tuned(option: tuple[float, float], method: str = method) -> float:
            factor, lr = option
            mark = "" if method == "dp-sgd" else f" x{factor:g}"
            name = f"{problem.name} eps={epsilon:g} tune {method}{mark} lr={lr:g} seed="
            spending = spend(problem, method, epsilon, factor, store)
            return statistics.mean(
                store.get(f"{name}{seed}", lambda seed=seed: train(problem, spending, lr, seed))[
                    "validation"
                ]
                for seed in TUNING_SEEDS
            )

        factor, lr = max(options, key=tuned)
        if method == "+ modelmix":
            chosen = factor
        spending = spend(problem, method, epsilon, factor, store)
        table[method] = _tested(problem, method, epsilon, spending, factor, lr, store)
    return table


def _tested(
    problem: Problem,
    method: str,
    epsilon: float,
    spending: Spending,
    factor: float,
    lr: float,
    store: Store,
) -> Record:
    mark = "" if method == "dp-sgd" else f" x{factor:g}"
    runs = [
        store.get(
            f"{problem.name} eps={epsilon:g} final {method}{mark} lr={lr:g} seed={seed}",
            lambda seed=seed: train(problem, spending, lr, seed),
        )
        for seed in SEEDS
    ]
    scores = [run["test"] for run in runs]
    mixing = spending.width * problem.batch_size / math.sqrt(12)
    return {
        "mean": statistics.mean(scores),
        "sd": statistics.stdev(scores),
        "lr": lr,
        "tau_over_lr": spending.width,
        "gaussian_noise": spending.noise_multiplier,
        "mixing_noise": mixing,
        "total_noise": math.hypot(spending.noise_multiplier, mixing),
        "certified_epsilon": spending.certified_epsilon,
        "seconds": statistics.median(run["seconds"] for run in runs),
    }


def apart(problem: Problem, store: Store) -> dict[str, Record]:
    """Accuracy with each half of mixing alone, at the noise of dp-sgd and epsilon 8."""
    spending = spend(problem, "dp-sgd", 8.0, 0.0, store)
    table = {}
    for name, pieces in PIECES.items():

        def run(lr: float, seed: int, name: str = name, pieces: Pieces = pieces) -> Record:
            key = f"{problem.name} eps=8 apart {name} lr={lr:g} seed={seed}"
            return store.get(key, lambda: train(problem, spending, lr, seed, pieces))

        tried = {
            lr: statistics.mean(run(lr, seed)["validation"] for seed in TUNING_SEEDS)
            for lr in problem.rates
        }
        best = max(tried, key=lambda lr: tried[lr])
        scores = [run(best, seed)["test"] for seed in SEEDS]
        table[name] = {
            "mean": statistics.mean(scores),
            "sd": statistics.stdev(scores),
            "lr": best,
            "validation": {f"{lr:g}": value for lr, value in tried.items()},
        }
    return table


def show_apart(problem: str, table: dict[str, Record]) -> None:
    print(f"\n{problem}, epsilon 8: mixing taken apart (validation accuracy by learning rate)")
    for name, row in table.items():
        tried = ", ".join(f"{lr}: {value:.1f}" for lr, value in row["validation"].items())
        print(f"{name:24} {row['mean']:6.2f} +- {row['sd']:5.2f} at {row['lr']:g}   ({tried})")


def show(problem: str, table: dict[str, dict[str, Record]]) -> None:
    print(f"\n{problem}: test accuracy (mean and deviation of {len(SEEDS)} seeds)")
    print("noise: deviation per coordinate of the clipped sum, in clipping bounds")
    print(f"{'eps':>4} {'method':13} {'accuracy':>15} {'lr':>4} {'noise':>6} {'mixing':>7} "
          f"{'total':>6} {'certified':>9}")  # fmt: skip
    for epsilon, methods in table.items():
        for method, row in methods.items():
            print(
                f"{float(epsilon):4g} {method:13} {row['mean']:6.2f} +- {row['sd']:5.2f} "
                f"{row['lr']:4g} {row['gaussian_noise']:6.2f} {row['mixing_noise']:7.2f} "
                f"{row['total_noise']:6.2f} {row['certified_epsilon']:9.3f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--only", choices=["a9a", "fashion-mnist"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    store = Store(RESULTS)
    store.content.setdefault("apart", {})
    store.content["settings"] = {
        "epsilons": EPSILONS, "delta": DELTA, "p": P, "seeds": SEEDS, "widths": WIDTHS,
    }  # fmt: skip
    for name, problem_of in (("a9a", a9a), ("fashion-mnist", fashion)):
        if arguments.only in (None, name):
            problem = problem_of(arguments.data)
            table = {f"{epsilon:g}": measure(problem, epsilon, store) for epsilon in EPSILONS}
            store.content["tables"][name] = table
            parts = store.content["apart"][name] = apart(problem, store)
            store.save()
            show(name, table)
            show_apart(name, parts)


if __name__ == "__main__":
    main()
