"""What each way of drawing costs: Poisson, allocation, a plain loader, cyclic with bands.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/allocation.py            # about 2 minutes
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/allocation.py --quick    # a few rows

Writes benchmarks/results/allocation.json. Three questions:

1. *Equal noise.* Epsilon of Poisson sampling at rate 1/t, of random allocation to t steps and of a
   loader that shows every row once, and the time of the query (processor seconds, nothing kept
   from earlier queries).
2. *Equal budget.* The noise multiplier that each needs, and the error of prefix sums against
   Poisson sampling with independent noise (that of bands from `winsor.accounting.banded`; for the
   others it is the ratio of the noises).
3. *Sharpness.* By how much a grid four times finer would lower epsilon.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from rich.console import Console
from rich.table import Table
from saving import save

from winsor.accounting import account, allocation, calibrate, lognormal, pld
from winsor.accounting.allocation import AllocationDpEvent
from winsor.accounting.banded import Workload, choose

DELTA = 1e-5
EQUAL_NOISE = [  # steps of an epoch, noise multiplier, epochs
    (59, 0.6, 1), (59, 1.0, 1), (59, 1.0, 25), (59, 1.35, 25), (59, 1.58, 40),
    (234, 0.54, 1), (234, 0.78, 1), (1000, 0.7, 10), (10_000, 1.0, 10),
]  # fmt: skip
EQUAL_BUDGET = [(1, 8.0), (5, 8.0), (1, 1.0), (5, 3.0), (20, 3.0), (40, 3.0)]  # epochs, epsilon
PER_EPOCH = 100


def forget() -> None:
    lognormal.mean_of.cache_clear()
    pld._cached_losses.cache_clear()


def equal_noise(steps: int, noise: float, epochs: int) -> dict[str, Any]:
    poisson = PoissonSampledDpEvent(1 / steps, GaussianDpEvent(noise))
    forget()
    start = time.process_time()
    allocated = account([(AllocationDpEvent(steps, noise), epochs)], DELTA).epsilon
    seconds = time.process_time() - start
    return {
        "steps": steps,
        "noise": noise,
        "epochs": epochs,
        "poisson": round(account([(poisson, steps * epochs)], DELTA).epsilon, 4),
        "allocation": round(allocated, 4),
        "loader": round(account([(GaussianDpEvent(noise), epochs)], DELTA).epsilon, 4),
        "seconds": round(seconds, 2),
        "finer": round(1 - with_finer_grid(steps, noise, epochs) / allocated, 5),
    }


def with_finer_grid(steps: int, noise: float, epochs: int) -> float:
    """Epsilon from a law of W on a grid four times as fine."""
    usual = allocation.mean_of
    forget()
    allocation.mean_of = lambda count, s, tail: lognormal.mean_of(  # type: ignore[assignment]
        count, s, tail, 4 * lognormal.POINTS_PER_DEVIATION
    )
    try:
        return account([(AllocationDpEvent(steps, noise), epochs)], DELTA).epsilon
    finally:
        allocation.mean_of = usual
        forget()


def equal_budget(epochs: int, epsilon: float) -> dict[str, Any]:
    steps, rate = epochs * PER_EPOCH, 1 / PER_EPOCH
    poisson = calibrate.noise_multiplier(
        lambda nm: PoissonSampledDpEvent(rate, GaussianDpEvent(nm)), steps, epsilon, DELTA
    )
    allocated = calibrate.noise_multiplier(
        lambda nm: AllocationDpEvent(PER_EPOCH, nm), epochs, epsilon, DELTA
    )
    loader = calibrate.noise_multiplier(GaussianDpEvent, epochs, epsilon, DELTA)
    banded = choose(Workload(steps), rate, epsilon, DELTA)
    return {
        "epochs": epochs,
        "epsilon": epsilon,
        "poisson": round(poisson, 4),
        "allocation": round(allocated, 4),
        "loader": round(loader, 4),
        "banded": round(banded.noise_multiplier, 4),
        "bands": banded.bands,
        "allocation_error": round(allocated / poisson, 3),
        "loader_error": round(loader / poisson, 3),
        "banded_error": round(banded.relative_error, 3),
    }


def show(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:g}" for value in row.values()))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a few rows; writes nothing")
    quick = parser.parse_args().quick
    noises = [equal_noise(*row) for row in (EQUAL_NOISE[:3] if quick else EQUAL_NOISE)]
    budgets = [equal_budget(*row) for row in (EQUAL_BUDGET[:2] if quick else EQUAL_BUDGET)]
    console = Console()
    show(console, f"epsilon at equal noise, delta {DELTA:g}", noises)
    show(console, f"noise at equal epsilon, {PER_EPOCH} steps an epoch", budgets)
    if not quick:
        result = {"delta": DELTA, "per_epoch": PER_EPOCH}
        save("allocation", result | {"equal_noise": noises, "equal_budget": budgets})


if __name__ == "__main__":
    main()
