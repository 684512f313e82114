"""Held-out rows that are private too: measured once, at the end, through a door of their own.

    [record]
    held_out_epsilon = 0.5

Held-out rows never train, and training rows are never measured here. So a row of either kind is in
one of two releases, and each kind has a guarantee of its own: that of the run, and that of the
ledger held_out.jsonl. Nothing about held-out rows is computed along the way.

Guarantee
---------
That of `winsor.metrics.measure` at ``held_out_epsilon`` and the run's delta and relation, for the
held-out rows. What was released is kept before anything else happens; a run that was killed between
paying and keeping has spent its look and shows no metrics.
"""

from __future__ import annotations

import json
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from winsor.app.runs.config import Config
from winsor.app.runs.data import Data
from winsor.app.runs.directory import RunDirectory, replace_file, sense
from winsor.app.runs.tasks import Metrics, columns_of
from winsor.core.checks import as_delta
from winsor.core.contract import ConfigurationError
from winsor.core.ledger.ledger import Ledger
from winsor.metrics import Accuracy, measure

KEPT, LEDGER = "held_out.json", "held_out.jsonl"


def check_held_out(config: Config) -> None:
    """Refuse what has no proof: other tasks than classes, and persons with several rows."""
    if config.record.held_out_epsilon is None:
        return
    if config.data.task != "classification" or config.data.unit is not None:
        raise ConfigurationError(
            "record.held_out_epsilon must be used for classification with single rows protected. "
            f"Got task {config.data.task!r} and unit {config.data.unit!r} instead. Measure with "
            "winsor.metrics, or leave held-out rows out: data.held_out_fraction = 0."
        )


def check_rows(config: Config, data: Data) -> None:
    """What would fail at the end fails before the start."""
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
    kept = directory.path / KEPT
    if not kept.exists():
        replace_file(kept, json.dumps(_look(config, model, rows, directory)).encode())
    with sense(kept):
        found = json.loads(kept.read_text(encoding="utf-8"))
    return dict(found["metrics"]), str(found["guarantee"])


def _look(
    config: Config, model: nn.Module, rows: Dataset[Any], directory: RunDirectory
) -> dict[str, Any]:
    ledger = Ledger({"method": "held-out metrics"}, directory.path / LEDGER)
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
