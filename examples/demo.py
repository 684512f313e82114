"""winsor's main job in a minute: a private classifier on long-tailed data.

Handwritten digits that ship with scikit-learn, thinned so that class c keeps a share RATIO^(-c/9)
of its rows: the last digits are rare. A plain and a private model are trained on the same rows.

Run with ``make demo``.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor

RATIO = 5.0  # the commonest digit is this many times as frequent as the rarest
RAREST = (7, 8, 9)
EPSILON, DELTA = 8.0, 5e-4
EPOCHS, BATCH = 60, 256


def long_tailed_digits() -> tuple[TensorDataset, Tensor, Tensor]:
    """Training rows with exponentially falling class sizes, and a balanced test set.

    Pixels are scaled by their public range 0..16; nothing is computed from the rows.
    """
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        x / 16.0, y, test_size=0.3, stratify=y, random_state=0
    )
    generator = np.random.default_rng(0)
    share = RATIO ** (-y_train / 9)
    keep = generator.random(len(y_train)) < share
    rows = torch.tensor(x_train[keep], dtype=torch.float32)
    train = TensorDataset(rows, torch.tensor(y_train[keep]))
    return train, torch.tensor(x_test, dtype=torch.float32), torch.tensor(y_test)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def train_plainly(train: TensorDataset) -> nn.Module:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    x, y = train.tensors
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model


def train_privately(train: TensorDataset, ledger: Path) -> winsor.PrivateTraining:
    model = make_model()
    return winsor.fit(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9),
        dataset=train,
        rule=winsor.rules.Flat(0.5),
        epsilon=EPSILON,
        delta=DELTA,
        epochs=EPOCHS,
        batch_size=BATCH,
        ledger=ledger,
    )


def accuracies(model: nn.Module, x: Tensor, y: Tensor) -> tuple[str, str]:
    with torch.no_grad():
        right = model(x).argmax(1) == y
    rare = torch.isin(y, torch.tensor(RAREST))
    return f"{100 * right.float().mean():.1f} %", f"{100 * right[rare].float().mean():.1f} %"


def main() -> None:
    start = time.perf_counter()
    console = Console()
    train, x_test, y_test = long_tailed_digits()
    counts = torch.bincount(train.tensors[1], minlength=10).tolist()
    console.print(f"{len(train)} training rows; rows per digit 0..9: {counts}")
    ledger = Path(tempfile.mkdtemp(prefix="winsor-demo-")) / "ledger.jsonl"
    plain = train_plainly(train)
    private = train_privately(train, ledger)
    table = Table("", "accuracy", f"accuracy on the rarest digits {RAREST}", title="Test set")
    table.add_row("not private", *accuracies(plain, x_test, y_test))
    table.add_row("private", *accuracies(private.model, x_test, y_test))
    console.print(table)
    console.print(f"Certified: {private.spent()}")
    console.print(f"Ledger: {ledger}  ({len(private.ledger)} steps)", soft_wrap=True)
    console.print(f"Time: {time.perf_counter() - start:.1f} s")
    console.print(
        "Next: `. .venv/bin/activate` puts winsor on your path; then `winsor train "
        "examples/digits.toml --run runs/digits` and `winsor report runs/digits`.",
        highlight=False,
    )


if __name__ == "__main__":
    main()
