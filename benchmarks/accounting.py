"""How exact and how fast winsor's accountant is, against dp-accounting's own PLD accountant.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/accounting.py            # about 4 minutes
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/accounting.py --quick    # a coarse grid

Writes benchmarks/results/accounting.json. Three questions:

1. *Agreement.* Over a grid of (q, noise multiplier, T, delta), epsilon against dp-accounting at its
   default interval of 1e-4 and, as the best reference it can give, at an interval that resolves one
   step's spread. The difference of these two is dp-accounting's discretisation.
2. *Calibration.* What share of the target epsilon the calibrated noise spends.
3. *Time.* 10,000 steps accounted and calibrated (medians of 5, processor seconds), and the slowest
   cell of the grid.
"""

from __future__ import annotations

import argparse
import itertools
import math
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import dp_accounting
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from rich.console import Console
from rich.table import Table
from saving import save

from winsor.core.accounting import account
from winsor.core.contract import Neighbouring
from winsor.planning import calibrate
from winsor.planning.calibrate import Budget

DEFAULT_INTERVAL = 1e-4
MOST_REFERENCE_POINTS = 4e5  # dp-accounting spends about 3 microseconds on each, in Python
MOST_REFERENCE_BINS = 1e7

FULL = {
    "q": [1e-4, 1e-3, 1e-2, 0.1, 0.5, 1.0],
    "nm": [0.3, 0.5, 1.0, 5.0, 50.0],
    "T": [1, 100, 10_000, 100_000],
    "delta": [1e-3, 1e-5, 1e-7, 1e-10],
}
QUICK = {
    "q": [1e-3, 0.1, 1.0],
    "nm": [0.5, 1.0, 5.0],
    "T": [1, 100, 10_000],
    "delta": [1e-3, 1e-5, 1e-10],
}
RELATIONS = {
    Neighbouring.ADD_OR_REMOVE_ONE: dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    Neighbouring.REPLACE_ONE: dp_accounting.NeighboringRelation.REPLACE_ONE,
}


def step(q: float, nm: float) -> DpEvent:
    return PoissonSampledDpEvent(q, GaussianDpEvent(nm))


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """Seconds of the processor: everything here is one thread, and the machine may be shared."""
    start = time.process_time()
    value = function()
    return value, time.process_time() - start


# --------------------------------------------------------------------------------- the reference


def spread(q: float, nm: float) -> float:
    """Standard deviation of one step's likelihood ratio: about that of its loss when small."""
    return q * math.sqrt(math.expm1(min(1 / nm**2, 700)))


def feasible(q: float, nm: float, steps: int, interval: float) -> bool:
    """Whether dp-accounting can use this interval in reasonable time and memory."""
    reach = (0.5 + 10 * nm) / nm**2
    largest = math.log1p(q * math.expm1(min(reach, 700))) if reach < 700 else reach + math.log(q)
    bins = 20 * math.sqrt(steps) * min(spread(q, nm), largest) / interval
    return 2 * largest / interval < MOST_REFERENCE_POINTS and bins < MOST_REFERENCE_BINS


def fine_interval(q: float, nm: float, steps: int) -> float | None:
    """The power of ten at which one step's spread has 20 points, or the nearest feasible one."""
    wanted = 10 ** math.floor(math.log10(min(spread(q, nm), 1.0) / 20))
    for interval in (wanted, 10 * wanted, 100 * wanted):
        if interval <= 0.01 and feasible(q, nm, steps, interval):
            return float(interval)
    return None


def reference(
    q: float, nm: float, steps: int, interval: float, relation: Neighbouring
) -> PLDAccountant:
    accountant = PLDAccountant(RELATIONS[relation], interval)
    accountant.compose(step(q, nm), steps)
    return accountant


# --------------------------------------------------------------------------------- the questions


def agreement(grid: dict[str, list[Any]], relation: Neighbouring) -> list[dict[str, Any]]:
    rows = []
    for q, nm, steps in itertools.product(grid["q"], grid["nm"], grid["T"]):
        fine = fine_interval(q, nm, steps)
        references = {}
        print(f"q={q} nm={nm} T={steps}", flush=True)
        if feasible(q, nm, steps, DEFAULT_INTERVAL):
            references["default"] = reference(q, nm, steps, DEFAULT_INTERVAL, relation)
        if fine is not None:
            references["fine"] = reference(q, nm, steps, fine, relation)
        for delta in grid["delta"]:
            ours, seconds = timed(partial(account, [(step(q, nm), steps)], delta, relation))
            row = {
                "q": q,
                "nm": nm,
                "T": steps,
                "delta": delta,
                "epsilon": ours.epsilon,
                "accountant": ours.accountant,
                "seconds": seconds,
                "fine_interval": fine,
            }
            theirs = {name: r.get_epsilon(delta) for name, r in references.items()}
            rows.append(row | {k: e for k, e in theirs.items() if math.isfinite(e)})
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Ratios to the fine reference where it is positive, and what happens where it is zero."""
    fine = [r for r in rows if r.get("fine", 0) > 0]
    default = [r for r in rows if r.get("default", 0) > 0]
    ratios = [r["epsilon"] / r["fine"] - 1 for r in fine]
    return {
        "cells": len(rows),
        "cells_with_fine_reference": len(fine),
        "cells_with_default_reference": len(default),
        "above_fine_max": max(ratios),
        "below_fine_max": -min(ratios),
        "above_default_max": max(r["epsilon"] / r["default"] - 1 for r in default),
        "zero_in_both": sum(r["epsilon"] == 0 == r.get("fine", 1) for r in rows),
        "largest_where_reference_is_zero": max(
            (r["epsilon"] for r in rows if r.get("fine") == 0 or r.get("default") == 0), default=0.0
        ),
        "by_accountant": {
            name: sum(r["accountant"] == name for r in rows) for name in ("pld", "rdp")
        },
        "seconds_median": statistics.median(r["seconds"] for r in rows),
        "seconds_max": max(r["seconds"] for r in rows),
        "slowest": max(rows, key=lambda r: r["seconds"]),
    }


def calibration(relation: Neighbouring) -> dict[str, Any]:
    rows = []
    for q, steps, epsilon, delta in itertools.product(
        [1e-3, 1e-2, 0.1, 1.0], [1, 100, 10_000], [0.1, 1.0, 8.0, 100.0], [1e-5, 1e-10]
    ):
        nm, seconds = timed(
            partial(
                calibrate.noise_multiplier,
                lambda nm, q=q, steps=steps: [(step(q, nm), steps)],
                Budget(epsilon, delta, relation),
            )
        )
        spent = account([(step(q, nm), steps)], delta, relation).epsilon
        rows.append({"share": spent / epsilon, "seconds": seconds, "q": q, "T": steps, "nm": nm})
    return {
        "cells": len(rows),
        "share_min": min(r["share"] for r in rows),
        "share_max": max(r["share"] for r in rows),
        "seconds_median": statistics.median(r["seconds"] for r in rows),
        "seconds_max": max(r["seconds"] for r in rows),
    }


def ten_thousand_steps() -> dict[str, Any]:
    """The example of the promise: q = 0.01, nm = 1, T = 10,000, delta = 1e-5."""
    from winsor.core.accounting import pld

    def fresh(function: Callable[[], Any]) -> float:
        pld._cached_losses.cache_clear()
        return timed(function)[1]

    history = [(step(0.01, 1.0), 10_000)]
    ours = [fresh(lambda: account(history, 1e-5)) for _ in range(5)]
    start = time.perf_counter()
    fresh(lambda: account(history, 1e-5))
    wall = time.perf_counter() - start
    theirs = [
        timed(
            lambda: reference(
                0.01, 1.0, 10_000, DEFAULT_INTERVAL, Neighbouring.ADD_OR_REMOVE_ONE
            ).get_epsilon(1e-5)
        )[1]
        for _ in range(5)
    ]
    ten_thousand = lambda nm: [(step(0.01, nm), 10_000)]  # noqa: E731
    calibrated = [
        fresh(lambda: calibrate.noise_multiplier(ten_thousand, Budget(3.0, 1e-5))) for _ in range(5)
    ]
    return {
        "account_seconds": statistics.median(ours),
        "account_wall_seconds_once": wall,
        "dp_accounting_seconds": statistics.median(theirs),
        "ratio": statistics.median(theirs) / statistics.median(ours),
        "calibrate_seconds": statistics.median(calibrated),
    }


# --------------------------------------------------------------------------------------- the report


def show(result: dict[str, Any]) -> None:
    console = Console(width=110)
    for name, part in result.items():
        if not isinstance(part, dict) or name == "machine":
            continue
        table = Table("quantity", "value", title=name)
        for key, value in part.items():
            table.add_row(key, f"{value:.4g}" if isinstance(value, float) else str(value))
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "machine": {"python": platform.python_version(), "processor": platform.machine()},
        "ten_thousand_steps": ten_thousand_steps(),
    }
    cells = {}
    for relation in RELATIONS:
        grid = FULL if not arguments.quick and relation is Neighbouring.ADD_OR_REMOVE_ONE else QUICK
        cells[relation.value] = agreement(grid, relation)
        result[f"agreement_{relation.value}"] = summary(cells[relation.value])
        result[f"calibration_{relation.value}"] = calibration(relation)
    show(result)
    save("accounting", result | {"cells": cells})


if __name__ == "__main__":
    main()
