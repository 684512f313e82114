"""Tasks: one loss per row for training, and metrics over held-out rows, public or private.

    [record]
    held_out_epsilon = 0.5

Without ``held_out_epsilon`` held-out metrics are exact, which is right for public rows only. With
it, held-out rows are private too: they are measured once, at the end, with noise.

Guarantee
---------
Held-out rows never train, and training rows are never measured here. So a row of either kind is in
one of two releases, and each kind has a guarantee of its own: that of the run, and that of
`winsor.metrics.measure` at ``held_out_epsilon`` and the run's delta and relation, in the ledger
held_out.jsonl. Nothing about private held-out rows is computed along the way. What was released is
kept before anything else happens; a run that was killed between paying and keeping has spent its
look and shows no metrics.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from winsor.app.runs.config import Config
from winsor.app.runs.data import Data
from winsor.app.runs.directory import RunDirectory
from winsor.app.runs.folder import sense
from winsor.app.runs.reading import Part, bind
from winsor.core.checks import as_delta, refusal
from winsor.core.contract import ConfigurationError
from winsor.core.ledger.ledger import Ledger
from winsor.training.loop import PrivateTraining

EVALUATION_ROWS = 1000
Metrics = dict[str, float]
PADDING = -100


@dataclass(frozen=True)
class Task:
    """``losses(model, batch)`` has one value per row; ``totals`` are added up over batches."""

    name: str
    losses: Callable[[nn.Module, Any], Tensor]
    totals: Callable[[nn.Module, Any], dict[str, float]]
    metrics: Callable[[dict[str, float]], Metrics]


class Progress:
    """The part of a run that is over, in [0, 1]. Without a run to follow it is 0."""

    def __init__(self) -> None:
        self.run: PrivateTraining | None = None

    def __call__(self) -> float:
        return 0.0 if self.run is None else self.run.steps_done / self.run.budget.planned_steps


PROFILED = {"ldam_drw": "LdamDrw", "logit_adjusted": "LogitAdjusted"}
"""Classes of `winsor.training.losses` that take the rows of each class, which are public."""


def make_task(
    config: Config,
    progress: Callable[[], float] = Progress(),  # noqa: B008
    profile: tuple[float, ...] | None = None,
) -> Task:
    """The task of a configuration, with its loss.

    ``progress`` gives the part of the run that is over; ``profile`` holds the rows of each class,
    where they were released for the loss.
    """
    name, (loss, options) = config.data.task, _named(config.training.loss)
    allowed = {
        "classification": ("auto", "cross_entropy", *PROFILED),
        "regression": ("auto", "squared", "huber"),
        "language": ("auto", "cross_entropy"),
    }[name]
    if loss not in allowed:
        raise ConfigurationError(
            f"training.loss must be one of {', '.join(allowed)} for {name}. Got {loss!r} instead."
        )
    if name == "regression":
        huber = loss == "huber"
        return Task(name, lambda m, b: _errors(m, b, huber), _squares, _real_metrics)
    if name == "language":
        return Task(name, _token_losses, _token_totals, _token_metrics)
    if loss in PROFILED:
        profiled = _profiled(loss, options, config, profile)
        return Task(
            name,
            lambda model, batch: profiled(model(batch[0]), batch[1], progress()),
            _class_totals,
            _class_metrics,
        )
    return Task(name, _class_losses, _class_totals, _class_metrics)


def _named(part: Part) -> tuple[str, dict[str, Any]]:
    """A loss and its options; only those with a class profile have any."""
    if part.name not in PROFILED:
        bind(lambda: None, part.options, "training.loss")
    return part.name, part.options


def _profiled(
    name: str, options: dict[str, Any], config: Config, released: tuple[float, ...] | None
) -> Any:
    from winsor.training import losses

    kind = getattr(losses, PROFILED[name])
    classes = config.data.classes
    count = len(classes) if isinstance(classes, list) else classes
    if config.wants_counts:  # before they are released, any will do to check the rest
        options = {**options, "profile": list(released or (1.0,) * (count or 2))}
    try:
        loss = kind(**bind(kind, options, "training.loss"))
    except ConfigurationError as error:
        known = str(error).startswith("training.loss")
        raise error if known else ConfigurationError(f"training.loss: {error}") from error
    if count is not None and count != len(loss.profile):
        wanted = f"one count for each of {count} classes"
        raise refusal("training.loss.profile", wanted, loss.profile)
    return loss


# ----------------------------------------------------------------------------------- evaluation


@torch.no_grad()
def evaluate(task: Task, model: nn.Module, rows: Dataset[Any]) -> Metrics:
    """Metrics over held-out rows, which are not protected by the guarantee."""
    training = model.training
    model.eval()
    sums: dict[str, float] = {}
    for batch in _batches(rows):
        for name, value in task.totals(model, batch).items():
            sums[name] = sums.get(name, 0.0) + value
    model.train(training)
    return {name: _finite(value) for name, value in task.metrics(sums).items()}


@torch.no_grad()
def columns_of(model: nn.Module, rows: Dataset[Any], task: str) -> dict[str, Any]:
    """Targets and predictions of private rows: for `winsor.metrics`, never to be shown."""
    training = model.training
    model.eval()
    targets, named = [], []
    for x, y in _batches(rows):
        output = model(x)
        targets.append(y.numpy())
        named.append((output.argmax(1) if task == "classification" else output[:, 0]).numpy())
    model.train(training)
    return {"targets": np.concatenate(targets), "predictions": np.concatenate(named)}


def _batches(rows: Dataset[Any]) -> Any:
    if isinstance(rows, TensorDataset):
        parts = (torch.split(tensor, EVALUATION_ROWS) for tensor in rows.tensors)
        return zip(*parts, strict=True)
    return DataLoader(rows, batch_size=EVALUATION_ROWS)


def _finite(value: float) -> float:
    """A diverged model has no finite loss; a huge number still sorts, plots and fits in JSON."""
    if math.isnan(value):
        return 1e30
    return max(-1e30, min(value, 1e30))


@torch.no_grad()
def probe(task: Task, model: nn.Module, data: Data, language: bool) -> None:
    """Run the model on two rows of zeros: refuse one that does not fit the shapes of the data."""
    kind = torch.int64 if language else torch.float32
    x = torch.zeros((2, *data.shape), dtype=kind)
    y = torch.zeros(2, dtype=torch.float32 if task.name == "regression" else torch.int64)
    training = model.training
    model.eval()
    losses = fitting(lambda: task.losses(model, (x,) if language else (x, y)))
    model.train(training)
    if losses.shape != (2,):
        raise ConfigurationError(
            "model must give one output of the right size per row, so that there is one loss per "
            f"row. Got losses of shape {tuple(losses.shape)} for 2 rows instead."
        )


def fitting(compute: Callable[[], Tensor]) -> Tensor:
    """Run the model; a mismatch of shapes, types or labels is the configuration's fault."""
    try:
        return compute()
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigurationError(
            f"model and data do not fit together: {first}. Check model, data.shape, data.classes "
            "and data.task."
        ) from error


# --------------------------------------------------------------------------------- classification


def _class_losses(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def _class_totals(model: nn.Module, batch: Any) -> dict[str, float]:
    x, y = batch
    scores = model(x)
    return {
        "rows": len(y),
        "loss": float(F.cross_entropy(scores, y, reduction="sum")),
        "right": float((scores.argmax(1) == y).sum()),
    }


def _class_metrics(sums: dict[str, float]) -> Metrics:
    return {"accuracy": sums["right"] / sums["rows"], "loss": sums["loss"] / sums["rows"]}


# ------------------------------------------------------------------------------------- regression


def _errors(model: nn.Module, batch: Any, huber: bool) -> Tensor:
    x, y = batch
    predicted = model(x)
    if predicted.shape != (len(y), 1):
        raise ConfigurationError(
            f"model must give one number per row, shape ({len(y)}, 1). Got "
            f"{tuple(predicted.shape)} instead."
        )
    loss = F.huber_loss if huber else F.mse_loss
    return loss(predicted[:, 0], y, reduction="none")


def _squares(model: nn.Module, batch: Any) -> dict[str, float]:
    x, y = batch
    errors = (model(x)[:, 0] - y).double()
    y = y.double()
    return {
        "rows": len(y),
        "squares": float(errors.square().sum()),
        "absolute": float(errors.abs().sum()),
        "y": float(y.sum()),
        "y_squares": float(y.square().sum()),
    }


def _real_metrics(sums: dict[str, float]) -> Metrics:
    n = sums["rows"]
    spread = sums["y_squares"] / n - (sums["y"] / n) ** 2
    mean_square = sums["squares"] / n
    if not math.isfinite(mean_square):
        return {"rmse": math.inf, "mae": math.inf, "r2": -math.inf}
    r2 = 1 - mean_square / spread if spread > 0 else 0.0
    return {"rmse": math.sqrt(mean_square), "mae": sums["absolute"] / n, "r2": r2}


# --------------------------------------------------------------------------------------- language


def _next_tokens(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Losses (rows, t), the mask of real targets, and whether each was predicted."""
    tokens = batch[0]
    inputs, targets = tokens[:, :-1].clamp(min=0), tokens[:, 1:]
    real = targets >= 0
    targets = torch.where(real, targets, PADDING)
    logits = model(inputs)  # (rows, t, vocabulary)
    losses = F.cross_entropy(
        logits.transpose(1, 2), targets, reduction="none", ignore_index=PADDING
    )
    return losses, real, logits.argmax(2) == targets


def _token_losses(model: nn.Module, batch: Any) -> Tensor:
    """The mean over a row's own tokens: a function of that row alone."""
    losses, real, _ = _next_tokens(model, batch)
    return losses.sum(1) / real.sum(1).clamp(min=1)


def _token_totals(model: nn.Module, batch: Any) -> dict[str, float]:
    losses, real, right = _next_tokens(model, batch)
    return {
        "tokens": float(real.sum()),
        "loss": float(losses.sum()),
        "right": float((right & real).sum()),
    }


def _token_metrics(sums: dict[str, float]) -> Metrics:
    tokens = max(1.0, sums["tokens"])
    loss = sums["loss"] / tokens
    return {
        "perplexity": math.exp(min(loss, 700.0)),
        "loss": loss,
        "token_accuracy": sums["right"] / tokens,
    }


# ------------------------------------------------------------------------- private held-out rows

KEPT, LEDGER = "held_out.json", "held_out.jsonl"


def check_held_out(config: Config) -> None:
    """Refuse private metrics without a proof: other tasks, and persons with several rows."""
    if config.record.held_out_epsilon is None:
        return
    if config.data.task != "classification" or config.data.unit is not None:
        raise ConfigurationError(
            "record.held_out_epsilon must be used for classification with single rows protected. "
            f"Got task {config.data.task!r} and unit {config.data.unit!r} instead. Measure with "
            "winsor.metrics, or leave held-out rows out: data.held_out_fraction = 0."
        )


def check_rows(config: Config, data: Data) -> None:
    """Refuse, before the start, held-out rows that could not be measured at the end."""
    if config.record.held_out_epsilon is None:
        return
    if data.held_out_size == 0:
        raise ConfigurationError(
            "record.held_out_epsilon must come with held-out rows. Got none. Say data.held_out or "
            "data.held_out_fraction, or leave it out."
        )
    as_delta(config.budget.delta, data.held_out_size, config.budget.allow_large_delta)


def measured(
    config: Config, model: nn.Module, rows: Dataset[Any], directory: RunDirectory
) -> tuple[Metrics, str]:
    """Accuracy with its interval, and the guarantee of the held-out rows in words."""
    if not (directory.path / KEPT).exists():
        directory.seal(KEPT, json.dumps(_look(config, model, rows, directory)).encode())
    found = directory.read(KEPT)
    with sense(directory.path / KEPT):
        return dict(found["metrics"]), str(found["guarantee"])


def _look(
    config: Config, model: nn.Module, rows: Dataset[Any], directory: RunDirectory
) -> dict[str, Any]:
    from winsor.metrics import Accuracy, measure

    header = {"method": "held-out metrics", "relation": config.budget.relation}
    ledger = Ledger(header, directory.path / LEDGER)
    try:
        if len(ledger):
            return {"metrics": {}, "guarantee": "the look was spent by a run that was killed"}
        found = measure(
            Accuracy(),
            **columns_of(model, rows, config.data.task),
            epsilon=config.record.held_out_epsilon,
            delta=config.budget.delta,
            relation=config.budget.relation,
            allow_large_delta=config.budget.allow_large_delta,
            ledger=ledger,
        )
    finally:
        ledger.close()
    accuracy = found["Accuracy"]
    values = {"accuracy": accuracy.value, "accuracy, low": accuracy.low}
    return {
        "metrics": {**values, "accuracy, high": accuracy.high},
        "guarantee": str(found.guarantee),
    }
