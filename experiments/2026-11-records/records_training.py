"""The private training of one record, from its features to a model with everything it cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from records_features import by_chunks
from records_inside import Scored, left_of, price_of, within_epsilon
from records_normalised import NORM_NOISE, Transform, before, normalised, released_with
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.advise.recipes import Recipe, falling, recipe
from winsor.losses import LogitAdjusted, released_counts
from winsor.tuning import Job

DELTA, CLASSES = 1e-5, 10
BLIND_EPOCHS = 40
MOST_SINGLE = 700_000_000
"""Features up to this many numbers are held in single precision: 2.8 GB."""

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Setting:
    """Flat clipping at ``threshold``; ``length`` is learning rate times threshold."""

    threshold: float
    length: float
    batch: int
    steps: int
    momentum: float = 0.9
    iterate: str = "last"
    sampling: str = "poisson"


@dataclass(frozen=True)
class Record:
    """One line of the leaderboard."""

    features: str
    epsilon: float
    tuned: Setting
    bounds: tuple[float, float] = (1.0, 0.05)
    """Public sizes of the channel means and mean squares of a row (`PrivateNorm`)."""
    long_tailed: bool = False
    norm: str = "moments"
    """"moments" of channels are released; otherwise one of `PER_ROW`, each row by itself."""
    white: float | None = None
    """Noise multiplier of each of two releases of second moments; None for none."""
    axes: tuple[float, ...] | None = None
    """Noise multiplier and power of `PrivateAxes`, and the power of places if it is another; None
    for none."""


@dataclass(frozen=True)
class Trained:
    """A model with everything that it cost."""

    model: nn.Module
    norm: Transform
    spent: list[Any]
    found: dict[str, float]
    """The noise multiplier of the training, or what `winsor.tune` found."""


@dataclass(frozen=True)
class Prepared:
    """Rows ready for the steps, and everything that was released for them."""

    rows: TensorDataset
    norm: Transform
    spent: list[Any]
    loss: Loss
    shift: Tensor
    """Of the logits of a training row, as the loss adds it."""
    noises: list[float]
    """The noise multipliers of what was released."""


def prepared(
    x: Tensor, y: Tensor, record: Record, way: str, seed: int, ledger: Path | None, large: bool
) -> Prepared:
    """``large``: so few rows, in the audit, that delta is not below 1/n."""
    options: dict[str, Any] = {"delta": DELTA, "seed": seed, "allow_large_delta": large}
    norm, released = normalised(x, record, options, ledger)
    noises, shift = released_with(record), torch.zeros(CLASSES)
    spent: list[Any] = [*released]
    loss: Loss = _cross_entropy
    if way.endswith("adjusted"):
        kept = before(ledger, "counts")
        counts = released_counts(y, CLASSES, noise_multiplier=NORM_NOISE, ledger=kept, **options)
        spent, noises = [*spent, counts], [*noises, NORM_NOISE]
        loss = LogitAdjusted(counts.counts)
        shift = loss.shift()
    rows = TensorDataset(_single(by_chunks(x, norm)), y)
    return Prepared(rows, norm, spent, loss, shift, noises)


def train(
    x: Tensor, y: Tensor, record: Record, way: str, seed: int,
    *, small: Setting | None = None, ledger: Path | None = None,
) -> Trained:  # fmt: skip
    """The whole private training of one record; ``small`` replaces its setting in the audit."""
    ready = prepared(x, y, record, way, seed, ledger, small is not None)
    if way.startswith("inside"):
        return _inside(ready, record, seed, small, ledger)
    model = _head(ready.rows)
    shared: dict[str, Any] = {
        "seed": seed, "after": list(ready.spent), "allow_large_delta": small is not None,
        "epsilon": record.epsilon, "ledger": ledger, "max_physical_batch_size": 10_000,
    }  # fmt: skip
    if way.startswith("blind"):
        private = _plan(record, ready.rows, small).make_private(model, ready.rows, **shared)
    else:
        private = _flat(model, ready.rows, small or record.tuned, shared)
    _run(private, model, ready.loss)
    noise = {"noise_multiplier": round(private.noise_multiplier, 4)}
    return Trained(model, ready.norm, [*ready.spent, private], noise)


def _inside(
    ready: Prepared, record: Record, seed: int, small: Setting | None, ledger: Path | None
) -> Trained:
    """Threshold and length are found within epsilon, around those of the recipe."""
    rows, plan = ready.rows, _plan(record, ready.rows, small)

    def fit(plan: Recipe, job: Job) -> tuple[nn.Module, winsor.PrivateTraining]:
        model = _head(rows)
        private = plan.make_private(
            model, rows, epsilon=None, noise_multiplier=job.noise_multiplier, seed=job.seed,
            max_physical_batch_size=10_000, allow_large_delta=small is not None,
        )  # fmt: skip
        _run(private, model, ready.loss)
        return model, private

    @torch.no_grad()
    def guesses(model: nn.Module) -> Tensor:
        parts = rows.tensors[0].split(2000)
        return torch.cat([(model(part.float()) + ready.shift).argmax(1) for part in parts])

    result = within_epsilon(
        fit, plan, price_of(plan, _head(rows), len(rows)), Scored(rows.tensors[1], guesses),
        left_of(record.epsilon, DELTA, ready.noises), seed,
        None if ledger is None else ledger.with_suffix(".tuning"),
    )  # fmt: skip
    return Trained(result.best_model, ready.norm, [*ready.spent, result], result.best_setting)


def _plan(record: Record, rows: TensorDataset, small: Setting | None) -> Recipe:
    """What the recipe proposes; nothing in it depends on the rows' values."""
    d = sum(p.numel() for p in _head(rows).parameters())
    size = {"epochs": BLIND_EPOCHS} if small is None else {"batch_size": 40, "steps": 4}
    return recipe(len(rows), d, record.epsilon, DELTA, **size)  # type: ignore[arg-type]


def _single(rows: Tensor) -> Tensor:
    """The same numbers in single precision if they are not too many: not converted anew in every
    step."""
    return rows.float() if rows.numel() < MOST_SINGLE else rows


def _head(rows: TensorDataset) -> nn.Linear:
    model = nn.Linear(rows.tensors[0].shape[1], CLASSES)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def _run(private: winsor.PrivateTraining, model: nn.Module, loss: Loss) -> None:
    for batch, labels in private.batches():
        private.step(loss(model(batch.float()), labels))
    private.detach()


def _flat(
    model: nn.Module, rows: TensorDataset, setting: Setting, options: dict[str, Any]
) -> winsor.PrivateTraining:
    optimizer = torch.optim.SGD(
        model.parameters(), lr=setting.length / setting.threshold, momentum=setting.momentum
    )
    return winsor.make_private(
        model=model, optimizer=optimizer, dataset=rows, rule=winsor.rules.Flat(setting.threshold),
        batch_size=setting.batch, steps=setting.steps, delta=DELTA,
        scheduler=falling(optimizer, setting.steps), iterate=setting.iterate,
        sampling=setting.sampling, **options,
    )  # fmt: skip


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels, reduction="none")
