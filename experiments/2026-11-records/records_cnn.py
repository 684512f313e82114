"""Fashion-MNIST end to end: a small convolutional network on pixels, in minutes of one core.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/records_cnn.py --seeds 3 [--ways tuned inside]
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/records_cnn.py --held-out --epochs 5 --length 2

Epsilon 3 at delta 1e-5, all 60,000 training rows, Poisson batches. Every image is standardised by
itself, so nothing is released but the steps. The network is the one that is published for this task
(two convolutions with wide filters, tanh, overlapping maxima), with groups of channels normalised
after each convolution, classes that see both convolutions and no hidden layer, and waves of several
angles to begin with in the first layer, which is trained like the others; batches are large, the
rate falls to zero, and a moving average of the iterates is released.

With --held-out one run is made on five sixths of the training rows and measured on the others, with
the noise that all rows would have: how the setting below was found, outside epsilon, without test
rows. Cells are saved in benchmarks/results/records.json, looks in records_held_out.json.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from records_features import CACHE, images
from records_inside import INSIDE, Scored, price_of, within_epsilon
from records_ledgers import is_kept, keep, name_of, place_for
from saving import FOLDER, made_by, save
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.advise.recipes import Recipe, falling, recipe
from winsor.audit import replay
from winsor.models.standardised import standardise_convolutions
from winsor.tuning import Job, TuningResult

TASK, EPSILON, DELTA, HELD_OUT = "fashion_mnist_cnn", 3.0, 1e-5, 10_000
SIDE = 8
"""Of a filter of the first layer."""


@dataclass(frozen=True)
class Setting:
    """``length`` is learning rate times threshold, the length of a step of clipped rows."""

    threshold: float = 2.0
    length: float = 2.0
    batch: int = 4000
    epochs: float = 24.0
    width: int = 16
    momentum: float = 0.9
    iterate: str = "ema"
    filters: str = "oriented"
    """What the first layer begins with: "random", or "oriented" waves."""
    groups: int = 4
    """Groups of channels that are normalised after each convolution; 0 for none."""
    hidden: int = 0
    """Units between the convolutions and the classes; 0 for none."""
    seen: str = "both"
    """What the classes see: the "last" convolution, or "both"."""
    standard: bool = False
    """Whether convolutions have standardised weights."""


TUNED = Setting()
WAYS = ("tuned", "inside")
FOUND = ("threshold", "length", "momentum")
"""What is the recipe's, or around it, where a record is tuned inside."""


class Network(nn.Module):
    """Two convolutions; the classes see the last of them, or means over places of both."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        width, groups = setting.width, setting.groups

        def normal(channels: int) -> list[nn.Module]:
            return [nn.GroupNorm(groups, channels, affine=False)] if groups else []

        first = nn.Conv2d(1, width, SIDE, stride=2, padding=3)
        if setting.filters == "oriented":
            with torch.no_grad():
                first.weight.copy_(oriented(width).unsqueeze(1))
        self.first = nn.Sequential(first, *normal(width), nn.Tanh(), nn.MaxPool2d(2, 1))
        self.second = nn.Sequential(
            nn.Conv2d(width, 2 * width, 4, stride=2), *normal(2 * width), nn.Tanh(),
            nn.MaxPool2d(2, 1),
        )  # fmt: skip
        self.means = nn.AvgPool2d(3) if setting.seen == "both" else None
        size = 2 * width * 16 + (width * 16 if self.means else 0)
        if setting.hidden:
            self.head: nn.Module = nn.Sequential(
                nn.Linear(size, setting.hidden), nn.Tanh(), nn.Linear(setting.hidden, 10)
            )
        else:
            self.head = nn.Linear(size, 10)
        if setting.standard:
            standardise_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        first = self.first(images)
        maps = self.second(first).flatten(1)
        if self.means is not None:
            maps = torch.cat([maps, self.means(first).flatten(1)], 1)
        return self.head(maps)


def oriented(width: int) -> Tensor:
    """Waves under a Gaussian window: of two lengths, even and odd, at evenly spread angles; each of
    mean 0 and of the norm that torch gives a random filter. Known before any row is seen.
    """
    place = torch.arange(SIDE) - (SIDE - 1) / 2
    down, across = torch.meshgrid(place, place, indexing="ij")
    window = torch.exp(-(down**2 + across**2) / (2 * (SIDE / 4) ** 2))
    found = []
    for number in range(width):
        kind, turn = number % 4, number // 4
        angle = math.pi * turn / -(-width // 4)
        along = math.cos(angle) * across + math.sin(angle) * down
        phase = 2 * math.pi * along / (SIDE if kind < 2 else SIDE / 2)
        wave = window * (phase.cos() if kind % 2 else phase.sin())
        wave -= window * (wave.sum() / window.sum())
        found.append(wave / wave.norm() / math.sqrt(3))
    return torch.stack(found)


def pixels(part: str) -> tuple[Tensor, Tensor]:
    """Images, each with mean 0 and variance 1, and labels."""
    data = images("fashion_mnist")
    x = torch.from_numpy(data[f"x_{part}"]).float() / 255
    x = F.layer_norm(x, x.shape[1:])
    return x.unsqueeze(1), torch.from_numpy(data[f"y_{part}"].astype("int64"))


def train(
    x: Tensor, y: Tensor, setting: Setting, seed: int,
    *, ledger: Path | None = None, noise: float | None = None, small: bool = False,
) -> tuple[nn.Module, winsor.PrivateTraining]:  # fmt: skip
    """``noise`` instead of epsilon for a look at held-out rows; ``small`` for the audit."""
    torch.manual_seed(seed)
    model, steps = Network(setting), steps_of(setting, len(y))
    rate = setting.length / setting.threshold
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=setting.momentum)
    budget = {"epsilon": EPSILON} if noise is None else {"noise_multiplier": noise}
    private = winsor.make_private(
        model=model, optimizer=optimizer, dataset=TensorDataset(x, y),
        rule=winsor.rules.Flat(setting.threshold), batch_size=setting.batch, steps=steps,
        delta=DELTA, scheduler=falling(optimizer, steps), iterate=setting.iterate, seed=seed,
        ledger=ledger, max_physical_batch_size=1000, allow_large_delta=small, **budget,
    )  # fmt: skip
    _run(private, model, setting)
    return model, private


def train_inside(
    x: Tensor, y: Tensor, setting: Setting, seed: int,
    *, folder: Path | None = None, small: bool = False,
) -> TuningResult:  # fmt: skip
    """Threshold and length are found within epsilon, around those of the recipe (`records_inside`);
    network, batches, steps and iterate are the setting's."""
    plan = recipe_for(setting, len(y))
    rows = TensorDataset(x, y)

    def fit(plan: Recipe, job: Job) -> tuple[nn.Module, winsor.PrivateTraining]:
        torch.manual_seed(job.seed)
        model = Network(setting)
        private = plan.make_private(
            model, rows, epsilon=None, noise_multiplier=job.noise_multiplier, seed=job.seed,
            iterate=setting.iterate, max_physical_batch_size=1000, allow_large_delta=small,
        )  # fmt: skip
        _run(private, model, setting)
        return model, private

    price = price_of(plan, Network(setting), len(y))
    scored = Scored(y, lambda model: guesses(model, x))
    return within_epsilon(fit, plan, price, scored, EPSILON, seed, folder)


def recipe_for(setting: Setting, n: int) -> Recipe:
    """What the recipe proposes for the setting's network, batches and steps."""
    d = sum(p.numel() for p in Network(setting).parameters())
    return recipe(n, d, EPSILON, DELTA, batch_size=setting.batch, steps=steps_of(setting, n))


def steps_of(setting: Setting, n: int) -> int:
    return max(1, round(setting.epochs * n / setting.batch))


def _run(private: winsor.PrivateTraining, model: nn.Module, setting: Setting) -> None:
    for rows, labels in private.batches():
        private.step(F.cross_entropy(model(rows), labels, reduction="none"))
    if setting.iterate != "last":
        private.load_released_iterate()
    private.detach()


@torch.no_grad()
def guesses(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part).argmax(1) for part in x.split(1000)])


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return 100 * float(guesses(model, x).eq(y).float().mean())


def run_cell(way: str, seed: int) -> dict[str, Any]:
    stamp = made_by()  # of the code that runs, not of what is committed meanwhile
    x, y = pixels("train")
    begun, clock = time.process_time(), time.perf_counter()
    folder, name = CACHE / "ledgers", name_of(TASK, way, seed)
    ledger = place_for(folder, name)
    if way == "inside":
        tuned = train_inside(x, y, TUNED, seed, folder=ledger.with_suffix(".tuning"))
        model, spent, found = tuned.best_model, tuned.guarantee, tuned.best_setting
    else:
        model, private = train(x, y, TUNED, seed, ledger=ledger)
        spent, found = private.spent(), {"noise_multiplier": round(private.noise_multiplier, 4)}
    seconds, wall = time.process_time() - begun, time.perf_counter() - clock
    return {
        "accuracy": round(accuracy(model, *pixels("test")), 3),
        "epsilon": round(spent.epsilon, 4),
        "delta": DELTA,
        "releases": spent.steps,
        "guarantee": str(spent),
        **found,
        "rows": len(y),
        **described(way),
        "processor_seconds": round(seconds, 1),
        "wall_seconds": round(wall, 1),
        "ledgers": keep(folder, name),
        **stamp,
    }


def described(way: str) -> dict[str, Any]:
    setting: Any = asdict(TUNED)
    if way == "inside":  # what is not in the words is the setting's: network, batches, steps
        kept = {name: value for name, value in setting.items() if name not in FOUND}
        setting = {"found": INSIDE, **kept}
    return {"features": "pixels", "norm": "each image", "setting": setting}


def look(setting: Setting, seed: int, rows: int | None = None) -> None:
    """Outside epsilon: the noise of all rows over the rows of a part, at the same rate.

    With ``rows`` the steps are of that many rows only, with the noise that means of whole batches
    have: far cheaper, and the noise of sampling is still small beside the other.
    """
    x, y = pixels("train")
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(123))
    kept, out = order[HELD_OUT:], order[:HELD_OUT]
    steps = steps_of(setting, len(y))
    noise = winsor.tails.guide.noise_multiplier(len(y), setting.batch, steps, EPSILON, DELTA)
    begun = time.process_time()
    batch = rows or round(setting.batch * len(kept) / len(y))
    smaller = replace(setting, batch=batch, epochs=steps * batch / len(kept))
    noise *= batch / setting.batch
    model, _ = train(x[kept], y[kept], smaller, seed, noise=noise)
    found = accuracy(model, x[out], y[out])
    with torch.no_grad():
        loss = float(F.cross_entropy(torch.cat([model(p) for p in x[out].split(1000)]), y[out]))
    head = f"{TASK} {setting}" + (f" rows={rows}" if rows else "") + (f" seed={seed}" * (seed > 0))
    print(f"{head}: {found:.2f} {loss:.4f} ({time.process_time() - begun:.0f} s)", flush=True)
    path = FOLDER / "records_held_out.json"
    kept_looks = json.loads(path.read_text())
    save("records_held_out", {**kept_looks, head: [round(found, 2), round(loss, 4)]})


def audit() -> dict[str, Any]:
    """Replay of the same functions on few rows."""
    x = torch.rand(60, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 10
    small = Setting(batch=40, epochs=3.0, width=4, groups=2)

    def once(rows: TensorDataset, way: str) -> Any:
        found = [rows[i] for i in range(len(rows))]
        x, y = (torch.stack(column) for column in zip(*found, strict=True))
        if way == "inside":
            model = train_inside(x, y, small, 0, small=True).best_model
        else:
            model, _ = train(x, y, small, 0, small=True)
        return [p.detach().clone() for p in model.parameters()]

    reports = {}
    for way in WAYS:
        report = replay(functools.partial(once, way=way), TensorDataset(x, y), rows=[3])
        summary = {"passed": report.passed, "report": str(report).splitlines()[0]}
        reports[f"convolutional network, {way}"] = summary
    return reports


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["tuned"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--rows", type=int, help="rows of a step of a look")
    for name, value in asdict(TUNED).items():
        kind = (lambda word: word == "True") if isinstance(value, bool) else type(value)
        parser.add_argument(f"--{name}", type=kind, default=value)
    args = parser.parse_args()
    if args.held_out:
        setting = Setting(**{name: getattr(args, name) for name in asdict(TUNED)})
        look(setting, args.first, args.rows)
        return
    path = FOLDER / "records.json"
    for seed, way in itertools.product(range(args.first, args.seeds), args.ways):
        key = f"{TASK} | {way} | {seed}"
        kept = json.loads(path.read_text()).get(key, {})
        if kept.get("setting") == described(way)["setting"] and is_kept(kept):
            continue
        cell = run_cell(way, seed)
        save("records", {**json.loads(path.read_text()), key: cell})
        print(key, json.dumps(cell), flush=True)


if __name__ == "__main__":
    main()
