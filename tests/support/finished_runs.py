"""Run directories made by hand, without training: for tests of reports."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from tiny_runs import table

from winsor.app.runs.config import from_table
from winsor.app.runs.directory import RunDirectory
from winsor.core.ledger.ledger import Ledger

EVENT = PoissonSampledDpEvent(0.2, GaussianDpEvent(1.5))


def make_run(
    path: Path,
    steps: int = 12,
    finished: bool = True,
    monitor: str = "off",
    rate: float = 0.2,
    **changes: Any,
) -> Path:
    """A directory as `winsor train` would leave it after ``steps`` steps."""
    config = from_table(table(record={"monitor": monitor}, **changes))
    directory = RunDirectory(path)
    directory.create(config)
    ledger_config = {
        "rule": "Flat(max_grad_norm=1.0)",
        "mechanism": "Gaussian",
        "noise_multiplier": 1.5,
        "sampler": "Poisson",
        "n": 200,
        "rate": rate,
    }
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(1.5))
    ledger = Ledger(ledger_config, directory.ledger)
    directory.bind(ledger)
    key = hashlib.blake2b(str(path).encode(), digest_size=8).hexdigest()  # each run its own
    ledger.record_many(key, event, steps)
    rows = [_row(step, steps, monitor, config.seed) for step in range(1, steps + 1)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    directory.seal("metrics.jsonl", text.encode())
    directory.note_environment(_session())
    if finished:
        directory.finish(_result(rows[-1]["held_out"], steps), {}, keep_key=False)
    ledger.close()
    return path


def _row(step: int, steps: int, monitor: str, seed: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "step": step,
        "epoch": step * 0.2,
        "seconds": 0.1 * step,
        "lr": 0.5 * (1 - step / steps),
        "rule": {"threshold": 1.0 + 1 / step},
    }
    if step % max(1, steps // 200) == 0 or step == steps:
        accuracy = 0.9 - 0.5 / step + 0.01 * seed
        row["held_out"] = {"accuracy": accuracy, "loss": 2.0 / step}
    values: dict[str, Any] = {
        "clip_fraction": 1 / step,
        "noise_to_signal": 2.0 + step / steps,
        "quantiles": {"0.5": 1.0, "0.9": 2.0, "0.99": 3.0 + step / steps},
    }
    if monitor == "private":
        row["monitor"] = values
    if monitor == "debug":
        values["quantiles"]["1.0"] = 9.0
        row["not_private"] = {"training_loss": 2.2 / step, **values}
    return row


def _session() -> dict[str, Any]:
    return {
        "time": "2026-01-01T00:00:00+00:00",
        "winsor": "0.1.0",
        "python": "3.11",
        "packages": {"torch": "2.13.0"},
        "system": "Linux x86_64",
        "cpus": 2,
        "threads": 1,
        "command": ["winsor", "train"],
    }


def _result(held_out: dict[str, float], steps: int) -> dict[str, Any]:
    return {
        "name": "made by hand",
        "stopped": "planned steps done",
        "steps": steps,
        "rows": 200,
        "held_out_rows": 40,
        "seconds": 0.1 * steps,
        "held_out": held_out,
        "epsilon": 1.0,
        "delta": 1e-3,
    }
