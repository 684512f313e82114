"""Learnt ranges of columns: how often noise stretches one or cuts it short.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/learnt_ranges.py            # a few minutes

``--before FILE`` keeps what an earlier commit measured (``--folder`` there) beside the new cells.

Four columns of one kind at a time are looked at together as a regression of three features does
(three joint histograms, a tenth of the budget, delta 1e-5), in units that nobody scaled. A range is
*stretched* if it is more than half as wide again as the one that the same rows give without noise,
and *cut* if it is less than two thirds of that. What counts in a fit is whether any of its ranges
is stretched. Rows are drawn anew for every fit.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from saving import FOLDER, save

from winsor.core.contract import Neighbouring, Sensitivity
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment, Target, noise_multiplier
from winsor.tables.linear.scaled import learnt_range
from winsor.tables.ranges.zoom import Zoom

Array = NDArray[np.float64]
ADD = Neighbouring.ADD_OR_REMOVE_ONE

KINDS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "normal": lambda rng, n: rng.normal(size=(n, 4)),
    "uniform, 1950 to 2010": lambda rng, n: rng.uniform(1950, 2010, size=(n, 4)),
    "exponential": lambda rng, n: 40 * rng.exponential(size=(n, 4)),
    "lognormal(8, 1)": lambda rng, n: rng.lognormal(8, 1, size=(n, 4)),
    "student 3": lambda rng, n: 1e-3 * rng.standard_t(3, size=(n, 4)),
}
COLUMNS, SHARE = 4, 0.10
_NEXT_TO_NONE = 1e-6


def widths(table: Array, multiplier: float, seed: int) -> Array:
    """Of the learnt ranges; ``multiplier`` is that of one release with the whole budget."""
    zoom, key = Zoom(COLUMNS, indicators=True), seed.to_bytes(32, "little")
    noise = Gaussian(multiplier * math.sqrt(zoom.rounds / SHARE))
    found = zoom.release(table, PrepaidDoor(Ledger({}), ADD, key), noise)
    ends = np.array([learnt_range(each)[:2] for each in found])
    return np.asarray(ends[:, 1] - ends[:, 0])


def measured(kind: str, n: int, epsilon: float, fits: int) -> dict[str, Any]:
    one = Payment(FullBatch(n), Sensitivity.per_sample(1.0, ""), 1)
    multiplier = noise_multiplier([one], Target(epsilon, 1e-5, None, ADD))
    ratios = []
    for seed in range(fits):
        table = KINDS[kind](np.random.default_rng(seed), n)
        ratios.append(widths(table, multiplier, seed) / widths(table, _NEXT_TO_NONE, seed))
    found = np.array(ratios)
    stretched, cut = found > 1.5, found < 2 / 3
    return {
        "kind": kind,
        "n": n,
        "epsilon": epsilon,
        "fits": fits,
        "fits with a stretched range": float(stretched.any(axis=1).mean()),
        "stretched ranges": float(stretched.mean()),
        "cut ranges": float(cut.mean()),
        "median width": float(np.median(found)),
        "largest": float(found.max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--fits", type=int, default=200)
    parser.add_argument("--rows", nargs="+", type=int, default=[1_000, 4_000, 20_000])
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--before", type=Path, help="a result of an earlier commit")
    options = parser.parse_args()
    cells = []
    for n in options.rows:
        for kind in KINDS:
            cells.append(measured(kind, n, options.epsilon, options.fits))
            print(*cells[-1].values(), flush=True)
    before = {"before": json.loads(options.before.read_text())} if options.before else {}
    save("learnt_ranges", {"cells": cells, **before}, options.folder)


if __name__ == "__main__":
    main()
