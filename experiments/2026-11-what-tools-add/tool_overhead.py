"""What `winsor compare` costs beyond the training it does: five rules, one epoch each.

    python benchmarks/tool_overhead.py --data ../shared/data

Fashion-MNIST, two-layer CNN with GroupNorm, Poisson batches of 1024 expected rows, epsilon 3. For
each rule, the same training is done twice in a row: bare (make_private, the loop of the README with
a ledger on disk, one evaluation on the test rows at the end) and by the tool (a run directory with
configuration, metrics, checkpoints, epsilon shown live). Wall and processor time are compared
within such a pair; medians over repeats. What the comparison adds at its end (reading ledgers, the
total epsilon, the summary) is measured apart and counted in.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from saving import save
from torch.nn import functional as F

import winsor
from winsor.app.runs.compare import Comparison
from winsor.app.runs.config import Config
from winsor.app.runs.data import Data, load_data
from winsor.app.runs.execute import execute
from winsor.app.runs.models import build_model
from winsor.app.runs.parts import build_optimizer, build_rule
from winsor.app.runs.progress import make_observer
from winsor.app.runs.tasks import evaluate, make_task

RULES = (
    {"name": "flat", "max_grad_norm": 1.0},
    {"name": "automatic", "max_grad_norm": 1.0},
    {"name": "psac", "max_grad_norm": 1.0},
    {"name": "quantile", "max_grad_norm": 1.0},
    {"name": "per_layer", "max_grad_norm": 1.0},
)


def table(folder: Path, epochs: float) -> dict[str, Any]:
    return {
        "name": "overhead",
        "reproducible_noise": True,  # the same batches and noise for both
        "data": {
            "source": str((folder / "fashion_mnist.npz").resolve()),
            "classes": 10,
            "shape": [1, 28, 28],
            "subtract": 127.5,
            "divide": 127.5,
        },
        "model": {"name": "two_layer_cnn"},
        "rule": RULES[0],
        "optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.9},
        "budget": {"epsilon": 3.0, "delta": 1e-5},
        "training": {"epochs": epochs, "batch_size": 1024, "max_physical_batch_size": 512},
        "compare": {
            "seeds": [0],
            "variants": [{"name": rule["name"], "rule": rule} for rule in RULES],
        },
    }


def bare(config: Config, data: Data, ledger: Path) -> None:
    """The same training as a person would write it."""
    model = build_model(config.model, data, config.seed)
    private = winsor.make_private(
        model=model,
        optimizer=build_optimizer(config.optimizer, model),
        dataset=data.train,
        rule=build_rule(config.rule),
        epsilon=config.budget.epsilon,
        delta=config.budget.delta,
        epochs=config.training.epochs,
        batch_size=config.training.batch_size or data.size,
        max_physical_batch_size=config.training.max_physical_batch_size,
        seed=config.seed,
        ledger=ledger,
    )
    for x, y in private.batches():
        private.step(F.cross_entropy(model(x), y, reduction="none"))
    assert data.held_out is not None
    evaluate(make_task(config), model, data.held_out)
    private.spent()
    private.detach()


def timed(action: Callable[[], Any]) -> dict[str, float]:
    wall, processor = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        action()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - processor}


def warm_up(comparison: Comparison, data: Data, folder: Path) -> None:
    """One step each way: imports and first-time set-up belong to neither."""
    (config,) = comparison.variants["flat"].values()
    training = dataclasses.replace(config.training, epochs=None, steps=1)
    config = dataclasses.replace(config, training=training)
    with make_observer(quiet=True, as_json=False) as observer:
        execute(config, folder / "warm-up", observer, load=lambda _: data)


def measure(comparison: Comparison, data: Data, folder: Path, repeat: int) -> dict[str, Any]:
    """One pair per rule, and the end of the comparison."""
    path = folder / f"compare-{repeat}"
    found: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        comparison._claim(path, "")
    for label, place in comparison.folders(path).items():
        (config,) = comparison.variants[label].values()
        ledger = folder / f"bare-{repeat}-{place.name}.jsonl"

        def by_tool(config: Config = config, place: Path = place) -> None:
            with make_observer(quiet=False, as_json=False) as observer:
                execute(config, place / f"seed-{config.seed}", observer, load=lambda _: data)

        def by_hand(config: Config = config, ledger: Path = ledger) -> None:
            bare(config, data, ledger)

        order = ("bare", "tool") if repeat % 2 == 0 else ("tool", "bare")
        actions = {"bare": by_hand, "tool": by_tool}
        found[label] = {name: timed(actions[name]) for name in order}
        print(f"{label}: {found[label]}", flush=True)
    found["end"] = {"tool": timed(lambda: comparison.execute(path, False, False, ""))}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    comparison = Comparison.from_table(table(arguments.data, arguments.epochs), Path())
    data = load_data(next(iter(comparison.variants["flat"].values())).data)
    with tempfile.TemporaryDirectory() as folder:
        warm_up(comparison, data, Path(folder))
        repeats = [measure(comparison, data, Path(folder), k) for k in range(arguments.repeats)]
    summary = {}
    for clock in ("wall", "cpu"):

        def median(name: str, kind: str, clock: str = clock) -> float:
            return statistics.median(r[name][kind][clock] for r in repeats)

        training = sum(median(label, "bare") for label in comparison.variants)
        tool = sum(median(label, "tool") for label in comparison.variants) + median("end", "tool")
        summary[clock] = {"bare": training, "tool": tool, "overhead": tool / training - 1}
        overhead = tool / training - 1
        print(f"{clock}: bare {training:.1f} s, tool {tool:.1f} s, overhead {100 * overhead:.2f} %")
    content = {"threads": arguments.threads, "summary": summary, "repeats": repeats}
    save("tool_overhead", content)


if __name__ == "__main__":
    main()
