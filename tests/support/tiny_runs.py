"""A run small enough to train in a fraction of a second, as a plain table."""

from __future__ import annotations

import copy
from typing import Any

BASE: dict[str, Any] = {
    "name": "tiny",
    "reproducible_noise": True,
    "data": {"source": "synthetic", "classes": 3, "options": {"rows": 240, "features": 5}},
    "model": {"name": "linear"},
    "rule": {"name": "flat", "max_grad_norm": 1.0},
    "optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.9},
    "schedule": {"name": "cosine", "warmup": 0.1},
    "budget": {"noise_multiplier": 1.5, "delta": 1e-3},
    "training": {"steps": 12, "batch_size": 40},
    "record": {"evaluations": 4, "checkpoint_seconds": 1e-6},
}


def table(**changes: Any) -> dict[str, Any]:
    """The base with sections merged: ``table(budget={"epsilon": 3.0})``."""
    found = copy.deepcopy(BASE)
    for key, value in changes.items():
        merge = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = {**found[key], **value} if merge and "name" not in value else value
    return found


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Metrics as they must be the same in every repetition."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
