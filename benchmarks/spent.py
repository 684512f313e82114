"""How long `spent()` takes along a run of 1e5 steps, and calibration before it.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/spent.py            # under a minute

For some sampled Gaussian runs: processor milliseconds of the first account after 1e5 steps, and of
the accounts after each of the next steps (medians), by the few frequencies of
`winsor.core.accounting.long_runs` and by full transforms, with the relative difference of the two
epsilons. Calibration: medians of 3. Writes benchmarks/results/spent.json.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from saving import save

from winsor.core.accounting import certify, pld
from winsor.core.contract import Neighbouring
from winsor.planning import calibrate

RUNS = ((0.01, 1.0), (0.001, 0.8), (0.1, 5.0))
STEPS, DELTA = 100_010, 1e-5
PLANS = ((0.01, 10_000, 3.0), (0.001, 100_000, 1.0), (0.1, 1000, 8.0))


def event(rate: float, multiplier: float) -> DpEvent:
    return PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier))


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    value = function()
    return value, 1e3 * (time.process_time() - start)


def accounts(rate: float, multiplier: float, relation: Neighbouring) -> dict[str, Any]:
    found: dict[str, Any] = {"q": rate, "nm": multiplier, "relation": relation.value}
    epsilons = {}
    for name, long in (("few_frequencies", pld.LONG), ("full", math.inf)):
        usual, pld.LONG = pld.LONG, long  # type: ignore[assignment]
        history = [(event(rate, multiplier), STEPS)]
        first, cold = timed(lambda: certify(history, DELTA, relation))  # noqa: B023
        later = [
            timed(lambda: certify([(event(rate, multiplier), STEPS + k)], DELTA, relation))[1]  # noqa: B023
            for k in range(1, 8)
        ]
        pld.LONG = usual
        epsilons[name] = first.epsilon
        found[name] = {"first_ms": cold, "next_ms": statistics.median(later)}
    found["epsilon"] = epsilons["few_frequencies"]
    found["difference"] = epsilons["few_frequencies"] / epsilons["full"] - 1
    return found


def main() -> None:
    rows = [accounts(*run, relation) for run in RUNS for relation in list(Neighbouring)[:2]]
    for row in rows:
        print(row)
    plans = []
    for rate, steps, epsilon in PLANS:
        times = [
            timed(
                lambda: calibrate.noise_multiplier(
                    lambda nm: [(event(rate, nm), steps + k)],  # noqa: B023
                    calibrate.Budget(epsilon, DELTA),  # noqa: B023
                )
            )[1]
            for k in range(3)
        ]
        plans.append({"q": rate, "T": steps, "epsilon": epsilon, "ms": statistics.median(times)})
        print(plans[-1])
    save("spent", {"steps": STEPS, "delta": DELTA, "accounts": rows, "calibration": plans})


if __name__ == "__main__":
    main()
