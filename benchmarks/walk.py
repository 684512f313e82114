"""How far one batch walks: calls, files and switches between files from `batches()` to the update.

    .venv/bin/python benchmarks/walk.py

Counts every Python call into winsor while one logical batch of a two-layer net under `Flat` is
drawn, bounded, noised, recorded and applied, once the run is warm. A switch is a call that enters
a file other than the one the last call was in. Prints the files in the order they are entered, and
writes benchmarks/results/walk.json.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

import torch
from saving import save
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor

PACKAGE = Path(winsor.__file__).parent


def walk() -> list[tuple[str, str]]:
    """(file, function) of every call into winsor during one warm logical batch."""
    torch.manual_seed(0)
    x = torch.randn(600, 20)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))
    private = winsor.make_private(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=data,
        rule=winsor.rules.Flat(1.0),
        noise_multiplier=1.0,
        delta=1e-5,
        steps=20,
        batch_size=64,
        seed=0,
    )
    calls: list[tuple[str, str]] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        del argument
        if event == "call":
            path = Path(frame.f_code.co_filename)
            if PACKAGE in path.parents:
                calls.append((str(path.relative_to(PACKAGE)), frame.f_code.co_qualname))

    batches = private.batches()
    for _ in range(5):
        inputs, labels = next(batches)
        private.step(F.cross_entropy(model(inputs), labels, reduction="none"))
    sys.setprofile(note)
    inputs, labels = next(batches)
    private.step(F.cross_entropy(model(inputs), labels, reduction="none"))
    sys.setprofile(None)
    return calls


def count(calls: list[tuple[str, str]]) -> dict[str, int]:
    files = [file for file, _ in calls]
    switches = sum(a != b for a, b in itertools.pairwise(files))
    return {"calls": len(calls), "files": len(set(files)), "switches": switches}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", action="store_true", help="print every call")
    options = parser.parse_args()
    calls = walk()
    if options.calls:
        for file, name in calls:
            print(f"{file:40s} {name}")
    for file in dict.fromkeys(file for file, _ in calls):
        print(f"{sum(f == file for f, _ in calls):5d} {file}")
    counted = count(calls)
    print(counted)
    save("walk", {**counted})


if __name__ == "__main__":
    main()
