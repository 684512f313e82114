"""Rows of the table of `books.py` about keys, digests, retries, resumes and messages.

python benchmarks/books_keys.py [--before DIR]      DIR: a checkout of the code before
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.core.contract import Bounded, Neighbouring, Sensitivity, WinsorError
from winsor.core.door import Door
from winsor.core.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.sampling.samplers import FullBatch
from winsor.tables import linear
from winsor.tables.statistics import release

UNIT = Sensitivity.per_sample(1.0, "a benchmark")


@dataclass(frozen=True)
class Weighted:
    """Column sums with weights, whose repr NumPy abbreviates."""

    weights: Any

    def bounded(self, rows: np.ndarray) -> Bounded:
        return Bounded(np.array([rows[:, 0].clip(0, 1) @ self.weights[: len(rows)]]), UNIT)

    def result(self, released: np.ndarray, n: int) -> np.ndarray:
        return released


def keys() -> str:
    """Two weights, one seed: the noise that is left in the difference of releases."""
    rows, one = np.full((3000, 1), 0.5), np.full(3000, 0.1)
    other = one.copy()
    other[1000:1500] = 0.2
    both = [
        release(Weighted(w), rows, epsilon=1.0, delta=1e-5, random_state=0) for w in (one, other)
    ]
    return f"noise in the difference: {abs(float(both[1].value[0] - both[0].value[0]) - 25):.2g}"


def digest() -> str:
    """The same zeros under four names of one entry: the std of their mean, of 2.0 paid for."""
    ledger, found = Ledger({}), []
    for name in "abcd":
        door = Door(
            ledger, Gaussian(2.0), FullBatch(9), Neighbouring("add_or_remove_one"), bytes(32)
        )
        found.append(door.release(0, {name: Bounded(np.zeros(5000), UNIT)}).values[name])
    return f"std {np.mean(found, 0).std():.2f} for 2.0"


def arguments(shift: float = 0.0) -> dict[str, Any]:
    rows = torch.linspace(-1, 1, 200).reshape(100, 2)
    rows[7] += shift
    model = torch.nn.Linear(2, 2)
    torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
    return {
        "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=1.0), "seed": 1,
        "dataset": TensorDataset(rows, (rows[:, 0] > 0).long()), "rule": winsor.rules.Flat(1.0),
        "batch_size": 100, "sampling": "full", "steps": 1, "noise_multiplier": 5.0, "delta": 1e-3,
    }  # fmt: skip


def train(private: Any) -> torch.Tensor:
    for x, y in private.batches():
        private.step(F.cross_entropy(private.model(x), y, reduction="none"))
    return private.model.weight.detach().clone()


def resume() -> str:
    """One checkpoint, resumed on two tables that differ in a row: the difference has no noise."""
    path = Path(tempfile.mkdtemp()) / "checkpoint.pt"
    winsor.make_private(**arguments()).save(path)
    one, other = (train(winsor.resume(path, **arguments(shift))) for shift in (0.0, 3.0))
    return f"difference {float((one - other).norm()):.2g}, of noise 0.05"


def messages() -> str:
    """A word among exposures, and whether the error quotes it."""
    try:
        model = linear.PrivatePoissonRegressor(bounds=(-1, 1))
        model.fit(np.ones((2, 1)), [1, 2], exposure=["SECRET", 1.0])
    except ValueError as error:
        return "quoted" if "SECRET" in str(error) else "not quoted"
    return "accepted"


ROWS = {"keys": keys, "digest": digest, "resume": resume, "messages": messages}


def main() -> None:
    """Print every row; with ``--before``, those of the other checkout first."""
    if "--before" in sys.argv:
        other = sys.argv[sys.argv.index("--before") + 1]
        subprocess.run(
            [sys.executable, __file__], env=os.environ | {"PYTHONPATH": other}, check=True
        )
        print("--- now")
    for name, row in ROWS.items():
        try:
            found = row()
        except WinsorError as error:
            found = f"{type(error).__name__}: {str(error)[:60]}"
        print(f"{name:10} {found}")


if __name__ == "__main__":
    main()
