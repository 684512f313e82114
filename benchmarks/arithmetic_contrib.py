"""What one row moves, and what low bits tell, in the rules of winsor.contrib: before and after.

    python benchmarks/arithmetic_contrib.py --before ../main

Moves are in multiples of the stated bound; candidates are mixing weights of ModelMix that a
released iterate leaves possible, of all that there are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import winsor
from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.contrib.modelmix.update import MixingUpdate

LR, SIZE, TAU = 0.5, 16, 2.0**-6
"""Mixing a quarter as wide as the noise: 2^24 units of the grid, as many as weights of 24 bits."""


def candidates(dtype: torch.dtype) -> str:
    """Count the mixing weights of one coordinate that a first released iterate leaves possible."""
    torch.manual_seed(0)
    model, std = nn.Linear(4, 2, dtype=dtype), [0.0]
    x, start = torch.randn(80, 4, dtype=dtype), [p.detach().clone() for p in model.parameters()]
    apply = MixingUpdate.apply

    def watched(self: MixingUpdate, released: winsor.core.contract.Released) -> None:
        std[0] = released.std["grad"]  # public
        apply(self, released)

    MixingUpdate.apply = watched  # type: ignore[method-assign]
    try:
        private = winsor.make_private(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=LR), steps=1, seed=0,
            dataset=torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()), batch_size=SIZE,
            rule=winsor.rules.Flat(1.0), noise_multiplier=1.0, delta=1e-3, mechanism=ModelMix(TAU),
        )  # fmt: skip
        for rows, labels in private.batches():
            private.step(F.cross_entropy(model(rows), labels, reduction="none"))
    finally:
        MixingUpdate.apply = apply  # type: ignore[method-assign]
    old, new = (float(p.flatten()[0].detach()) for p in (start[0], model.weight))
    return count(old, new, std[0] * 2.0**-26, max(abs(old), abs(new)) * torch.finfo(dtype).eps)


def count(old: float, new: float, grid: float, ulp: float) -> str:
    """Count the candidates whose part of the step leaves a point of the noise's grid."""
    step = grid * LR / SIZE
    if hasattr(MixingUpdate, "_drawn"):  # whole numbers of the grid; points are whole numbers
        half = round(TAU * LR * 1.0005 / step / 2)
        mixed, offset = torch.arange(-half, half + 1, dtype=torch.float64) * step, 0.0
    else:  # 24 bits of the width; points are halves
        weights = torch.arange(2**24, dtype=torch.float64) / 2**24 - 0.5
        mixed, offset = weights * (TAU * LR * 1.0005), 0.5
    point = (old + mixed - new) / step + offset
    possible = (point - point.round()).abs() <= 2 * ulp / step
    return f"{int(possible.sum()):,} of {len(mixed):,}"


CASES: dict[str, Callable[[], str]] = {
    "ModelMix, float64: weights left": lambda: candidates(torch.float64),
    "ModelMix, float32: weights left": lambda: candidates(torch.float32),
}


def main() -> None:
    """Print the table; with ``--json``, the numbers of the code that is imported."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default="", help="a checkout of the code before")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {name: case() for name, case in CASES.items()}
    if arguments.json:
        print(json.dumps(found))
        return
    old = {}
    if arguments.before:
        path = os.pathsep.join([arguments.before, os.path.join(arguments.before, "papers")])
        run = [sys.executable, __file__, "--json"]
        environment = {**os.environ, "PYTHONPATH": path}
        output = subprocess.run(run, env=environment, check=True, capture_output=True, text=True)
        old = json.loads(output.stdout)
    print(f"| case | before | after |\n|{'---|' * 3}")
    for name, value in found.items():
        print(f"| {name} | {old.get(name, '')} | {value} |")


if __name__ == "__main__":
    main()
