"""Records at a certified epsilon: each from nothing, with its ledger, its time and its audit.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/records.py --task fashion_mnist [--seeds 3]
    .venv/bin/python benchmarks/records.py --task audit         # replay of a small version of each
    .venv/bin/python benchmarks/records.py --page                # docs/records.md
    .venv/bin/python benchmarks/records.py --verify              # every cell against its ledgers
    .venv/bin/python benchmarks/records.py --report              # an HTML page for each record

Linear models on frozen features (`records_features.py`), delta 1e-5, epsilon 3 unless said.
Features are normalised per image in groups of channels, or by channel moments that are released
once with noise (`PrivateNorm`); where a record says so, their longest directions are shortened by
second moments that are released in two rounds (`PrivateWhitening`), or the spectra of channels and
of places are flattened by one release (`PrivateAxes`); then flat clipping, in large Poisson batches
or of all rows in every step, with momentum and a rate that falls to zero. The training's noise is
calibrated so that all releases together spend epsilon (``after=[...]``), and the figure beside
every accuracy is `winsor.total` of their ledgers. A network on pixels is in `records_cnn.py`.
Ways for every task:

    tuned    settings found outside epsilon, as the published records have it: on held-out training
             rows (`records_held_out.py`), earlier ones on the test rows (`records_tuning.py`)
    blind    `winsor.recipe(n, d, epsilon, delta, epochs=40)` on the same features: no look at rows
    inside   threshold and step length around those of the recipe, found by `winsor.tune` within
             epsilon (`records_inside.py`)

and for the long-tailed task with plain and with adjusted logits. A cell (task, way, seed) is saved
when it is finished, in benchmarks/results/records.json, with its ledgers beside it
(`records_ledgers.py`), and not repeated unless the record's features or setting have changed or its
ledgers are not there.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import records_cnn
import torch
from records_features import CACHE, load, stored
from records_inside import INSIDE
from records_ledgers import is_kept, keep, name_of, place_for, verify
from records_page import page
from records_training import BLIND_EPOCHS, CLASSES, DELTA, Record, Setting, Trained, train
from saving import FOLDER, made_by, save
from torch import Tensor

import winsor
from winsor.contract import BudgetExceeded
from winsor.losses import exponential_profile

BLIND = f"recipe, {BLIND_EPOCHS} epochs, steps of one length, squares of bias and noise"
LEDGERS = CACHE / "ledgers"

RECORDS = {
    "mnist": Record("mnist", 3.0, Setting(4.0, 1.9, 15_000, 100), norm="unit groups", white=5.0),
    "fashion_mnist": Record(
        "fashion_centred",
        3.0,
        Setting(2.0, 4.0, 60_000, 60, sampling="full"),
        norm="unit logarithms",
        axes=(10.0, 0.7),
    ),
    "cifar10_scattering": Record(
        "cifar10_opponent",
        3.0,
        Setting(4.0, 3.0, 50_000, 60, sampling="full"),
        norm="mirrored logarithms",
        axes=(10.0, 0.8, 0.0),
    ),
    "cifar10_efficientnet": Record(
        "cifar10_efficientnet", 3.0, Setting(4.0, 1.4, 10_000, 100), norm="root layer", white=5.0
    ),
    "cifar10_efficientnet_1": Record(
        "cifar10_efficientnet", 1.0, Setting(4.0, 0.8, 10_000, 100), norm="root layer", white=15.0
    ),
    "fashion_mnist_long_tailed": Record(
        "fashion_mnist", 3.0, Setting(4.0, 0.7, 6000, 200), long_tailed=True, norm="groups"
    ),
}


def long_tailed(y: Tensor) -> Tensor:
    """Rows of which class j has 100^(-j/9) times as many as class 0; the same for every seed."""
    profile = exponential_profile(int((y == 0).sum()), CLASSES)
    generator = torch.Generator().manual_seed(0)
    kept = []
    for label, count in enumerate(profile):
        rows = (y == label).nonzero().ravel()
        kept.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
    return torch.cat(kept).sort().values


@torch.no_grad()
def recalls(trained: Trained, x: Tensor, y: Tensor) -> tuple[float, list[float]]:
    """Accuracy on the test rows, and recall of each class, in percent."""
    right = torch.cat(
        [
            trained.model(trained.norm(part.float()).flatten(1).half().float()).argmax(1)
            for part in x.split(2000)
        ]
    ).eq(y)
    each = [100 * float(right[y == label].float().mean()) for label in range(CLASSES)]
    return 100 * float(right.float().mean()), each


def current(cell: dict[str, Any], task: str, way: str) -> bool:
    """Whether a finished cell is of the record as it now stands, and its ledgers are kept."""
    alike = all(_of(cell, name) == value for name, value in described(task, way).items())
    return alike and is_kept(cell)


def _of(cell: dict[str, Any], name: str) -> Any:
    """What an older cell does not say was as the default has it."""
    value = cell.get(name)
    older = name == "setting" and isinstance(value, dict) and "width" not in value
    return {"sampling": "poisson", **value} if older else value  # type: ignore[dict-item]


def described(task: str, way: str) -> dict[str, Any]:
    """What a cell says of how it was made."""
    if task == records_cnn.TASK:
        return records_cnn.described(way)
    record = RECORDS[task]
    return {
        "features": stored(record.features, "train").stem.removesuffix("-train"),
        "norm": record.norm,
        "white": record.white,
        "axes": None if record.axes is None else list(record.axes),
        "setting": _found(record, way),
    }


def _found(record: Record, way: str) -> Any:
    """How a setting was come by, or what it is."""
    if way.startswith("inside"):
        return f"{INSIDE}; {BLIND_EPOCHS} epochs"
    return BLIND if way.startswith("blind") else asdict(record.tuned)


def run_cell(task: str, way: str, seed: int) -> dict[str, Any]:
    stamp = made_by()  # of the code that runs, not of what is committed meanwhile
    record = RECORDS[task]
    data = load(record.features)
    x, y = data.x_train, data.y_train
    if record.long_tailed:
        kept = long_tailed(y)
        x, y = x[kept], y[kept]
    begun, clock = time.process_time(), time.perf_counter()
    name = name_of(task, way, seed)
    trained = train(x, y, record, way, seed, ledger=place_for(LEDGERS, name))
    seconds, wall = time.process_time() - begun, time.perf_counter() - clock
    total = winsor.total(*trained.spent, delta=DELTA)
    if total.epsilon > record.epsilon:
        raise BudgetExceeded(f"{task}, {way}: {total.epsilon} of {record.epsilon}")
    accuracy, found = recalls(trained, data.x_test, data.y_test)
    return {
        "accuracy": round(accuracy, 3),
        "balanced_accuracy": round(sum(found) / CLASSES, 3),
        "rarest_three": round(sum(found[-3:]) / 3, 3),
        "epsilon": round(total.epsilon, 4),
        "delta": DELTA,
        "releases": total.steps,
        "guarantee": str(total),
        **trained.found,
        "rows": len(y),
        **described(task, way),
        "processor_seconds": round(seconds, 1),
        "wall_seconds": round(wall, 1),
        "ledgers": keep(LEDGERS, name),
        **stamp,
    }


def ways(task: str) -> list[str]:
    adjusted = ["tuned adjusted", "inside adjusted"] if RECORDS[task].long_tailed else []
    return ["tuned", "blind", "inside", *adjusted]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=[*RECORDS, "audit"])
    parser.add_argument("--ways", nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="seed to begin with")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    path = FOLDER / "records.json"
    if args.page:
        target = Path(__file__).parent.parent / "docs" / "records.md"
        target.write_text(page_of(_kept(path)))
        return
    if args.verify:
        _verified(_kept(path))
        return
    if args.report:
        from records_report import write

        for written in write(_kept(path), CACHE / "records"):
            print(written)
        return
    cells = [] if args.task == "audit" else [
        (args.task, way, seed)
        for seed in range(args.first, args.seeds)
        for way in args.ways or ways(args.task)
    ]  # fmt: skip
    for task, way, seed in cells:
        key = f"{task} | {way} | {seed}"
        if current(_kept(path).get(key, {}), task, way):
            continue
        cell = run_cell(task, way, seed)
        save("records", {**_kept(path), key: cell})  # read anew: another process may have saved
        print(key, json.dumps(cell), flush=True)
    if args.task == "audit":
        from records_audit import audit

        found = audit()
        save("records", {**_kept(path), "audit": found})  # read after it: cells may have been saved


def _verified(results: dict[str, Any]) -> None:
    """Say what was checked; end with an error if anything disagrees."""
    wrong, without = verify(results)
    checked = sum(key.count(" | ") == 2 for key in results) - len(without)
    print(f"{checked} cells checked against their ledgers; without ledgers: {without or 'none'}")
    if wrong:
        raise SystemExit("\n".join(wrong))


def page_of(results: dict[str, Any]) -> str:
    """docs/records.md."""
    expected = [(task, way) for task in RECORDS for way in ways(task)]
    network = [(records_cnn.TASK, way) for way in records_cnn.WAYS]
    quantile = _kept(FOLDER / "recipe_quantile.json")
    return page(results, [*expected, *network], current, quantile)


def _kept(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


if __name__ == "__main__":
    main()
