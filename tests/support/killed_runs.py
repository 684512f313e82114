"""Runs to be killed: each is called with a folder, begins or resumes what is there, and ends.

Library loops save after every few physical batches, hence in the middle of logical batches too.
Between them they have dropout, augmentation from three random streams, momentum, Adam, schedules,
workers, every way of drawing batches, and the mechanisms; the others are `winsor train` and
`winsor compare` as the command line runs them.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tiny_runs
import tomli_w
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import winsor
from winsor.app.commands.main import main
from winsor.app.runs.config import without_none
from winsor.rules import (
    Automatic,
    Averaged,
    Discriminative,
    Flat,
    PerLayer,
    Quantile,
)

STEPS = 10
ROWS = 64


class Augmented(Dataset[Any]):
    """Rows that look different at every visit."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        shift = float(np.random.normal()) + random.random()  # noqa: NPY002
        return self.x[i] + 0.1 * (torch.randn(5) + shift), self.y[i]


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3)


def _momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3, momentum=0.9)


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.05)


@dataclass(frozen=True)
class Loop:
    """A user's own training loop with `private.save` and `winsor.resume`."""

    optimizer: Callable[[Any], torch.optim.Optimizer] = _momentum
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    augmented: bool = False
    secret: bool = False
    """A key of its own: the run to compare with must begin from the same first checkpoint."""
    save_every: int = 3

    def __call__(self, folder: Path) -> None:
        private = self.begin(folder)
        for count, (x, y) in enumerate(private.batches(), start=1):
            private.step(F.cross_entropy(private.model(x), y, reduction="none"))
            if count % self.save_every == 0:
                private.save(folder / "checkpoint.pt")
        torch.save(private.model.state_dict(), folder / "model.pt")
        private.detach()

    def begin(self, folder: Path) -> winsor.PrivateTraining:
        arguments = self.arguments(folder)
        checkpoint = folder / "checkpoint.pt"
        if checkpoint.exists():
            return winsor.resume(checkpoint, **arguments)
        private = winsor.make_private(**arguments, resume=not self.secret)
        if self.secret:
            private.save(checkpoint)
        return private

    def arguments(self, folder: Path) -> dict[str, Any]:
        x = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(0))
        y = (x[:, 0] > 0).long()
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002
        random.seed(1)
        model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.2), nn.Linear(8, 2))
        optimizer = self.optimizer(model.parameters())
        chosen = {
            "model": model,
            "optimizer": optimizer,
            "scheduler": None if self.schedule is None else self.schedule(optimizer),
            "dataset": Augmented(x, y) if self.augmented else TensorDataset(x, y),
            "rule": Flat(1.0),
            "noise_multiplier": 1.0,
            "delta": 1e-3,
            "steps": STEPS,
            "batch_size": 16,
            "max_physical_batch_size": 6,
            "seed": None if self.secret else 7,
            "ledger": folder / "ledger.jsonl",
        }
        return chosen | copy.deepcopy(self.options)


@dataclass(frozen=True)
class Command:
    """`winsor train` or `winsor compare`, in this process."""

    name: str
    table: dict[str, Any]

    def __call__(self, folder: Path) -> None:
        config = folder / "config.toml"
        if not config.exists():
            raise RuntimeError("the configuration is written beforehand")
        try:
            main([self.name, str(config), "--run", str(folder / "run"), "--quiet"])
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"winsor {self.name} ended with {end.code}") from end

    def prepare(self, folder: Path) -> None:
        (folder / "config.toml").write_text(tomli_w.dumps(without_none(self.table)))


def _train(**changes: Any) -> Command:
    training = {"steps": STEPS, "batch_size": 24, "max_physical_batch_size": 10}
    changes["training"] = training | changes.get("training", {})
    model = {"name": "mlp", "hidden": [8]}
    return Command("train", tiny_runs.table(**({"model": model} | changes)))


def _compared() -> Command:
    table = tiny_runs.table(training={"steps": 5})
    table["compare"] = {
        "seeds": [1],
        "variants": [{"name": "flat"}, {"name": "adam", "optimizer": {"name": "adam", "lr": 0.05}}],
    }
    return Command("compare", table)


def _step(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


def _cosine(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)


MIX = winsor.ModelMix(0.2)
COINS = Discriminative(1.0, 0.1, selection="random")
RUNS: dict[str, Loop | Command] = {
    "loop, momentum, dropout": Loop(schedule=_step),
    "loop, Adam, augmentation, quantile": Loop(
        _adam, _cosine, {"rule": Quantile(1.0)}, augmented=True
    ),
    "loop, workers, augmentation": Loop(_adam, options={"num_workers": 2}, augmented=True),
    "loop, ModelMix, secret key": Loop(_sgd, _step, {"mechanism": MIX}, secret=True),
    "loop, allocation": Loop(_momentum, _step, {"sampling": "allocation", "rule": Automatic(1.0)}),
    "loop, loader, averaged iterate": Loop(
        _adam,
        options={"sampling": "loader", "iterate": "averaged", "rule": COINS},
    ),
    "loop, banded noise, secret key": Loop(
        options={"mechanism": winsor.Banded(4), "steps": 12}, secret=True
    ),
    "loop, persons, banded noise": Loop(
        _adam,
        options={
            "unit": [i // 3 for i in range(ROWS)],
            "rows_per_unit": 2,
            "batch_size": 6,
            "mechanism": winsor.Banded(3),
            "steps": 12,
        },
        augmented=True,
    ),
    "loop, persons": Loop(
        options={"unit": [i // 4 for i in range(ROWS)], "rows_per_unit": 3, "batch_size": 5}
    ),
    "loop, rows held together": Loop(options={"rule": Averaged(1.0), "iterate": "random"}),
    "loop, discriminative, empty batches": Loop(
        options={"rule": Discriminative(1.0, 0.1), "batch_size": 2, "max_physical_batch_size": 1}
    ),
    "loop, per layer, unlimited": Loop(
        _adam, options={"rule": PerLayer(1.0, joint=True), "max_physical_batch_size": None}
    ),
    "train": _train(),
    "train, workers": _train(training={"num_workers": 2}),
    "train, ModelMix": _train(
        optimizer={"name": "sgd", "lr": 0.5}, mechanism={"name": "modelmix", "tau_over_lr": 0.1}
    ),
    "train, allocation": _train(training={"sampling": "allocation"}),
    "train, banded": _train(
        training={"sampling": "cyclic"}, mechanism={"name": "banded", "bands": 3}
    ),
    "train, monitor, averaged": _train(
        record={"monitor": "private", "evaluations": 2}, training={"iterate": "averaged"}
    ),
    "compare": _compared(),
}
