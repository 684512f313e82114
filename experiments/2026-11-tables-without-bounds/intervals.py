"""Do private intervals cover? Poisson and Gamma regression, 500 simulated tables each.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/intervals.py [--tables 500] [--rows 20000]

Known coefficients, exposures between 0.3 and 1, epsilon 1, delta 1e-6, ranges learnt within the
budget (features are normal, nobody states bounds), nominal level 95 %. Counts are Poisson with
about 0.29 per row; amounts are Gamma with shape 2. Coverage counts the randomness of rows and of
noise together; its own standard error over 500 tables is one point.
Writes benchmarks/results/intervals.json.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
from saving import save

from winsor.tables import PrivateGammaRegressor, PrivatePoissonRegressor

WEIGHTS = np.array([0.5, -0.3, 0.2])
STARTS = {"poisson": -1.0, "gamma": 7.0}
KINDS: dict[str, Any] = {"poisson": PrivatePoissonRegressor, "gamma": PrivateGammaRegressor}


def table(kind: str, rows: int, seed: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng([seed, rows])
    x = rng.standard_normal((rows, len(WEIGHTS)))
    exposure = rng.uniform(0.3, 1.0, rows)
    means = exposure * np.exp(x @ WEIGHTS + STARTS[kind])
    y = rng.poisson(means) if kind == "poisson" else means * rng.gamma(2.0, 0.5, rows)
    return x, y, exposure


def coverage(kind: str, tables: int, rows: int) -> dict[str, Any]:
    truth = np.append(WEIGHTS, STARTS[kind])
    inside, errors, widths, epsilons = [], [], [], []
    for seed in range(tables):
        x, y, exposure = table(kind, rows, seed)
        model = KINDS[kind](epsilon=1.0, delta=1e-6, random_state=seed)
        model.fit(x, y, exposure=exposure)
        intervals = np.vstack([model.coef_interval_, model.intercept_interval_])
        inside.append((intervals[:, 0] <= truth) & (truth <= intervals[:, 1]))
        errors.append(np.append(model.coef_, model.intercept_) - truth)
        widths.append(np.append(model.coef_std_, model.intercept_std_))
        epsilons.append(model.epsilon_)
        if (seed + 1) % 50 == 0:
            print(kind, seed + 1, np.mean(inside, axis=0).round(3).tolist(), flush=True)
    covered = np.mean(inside, axis=0)
    return {
        "tables": tables,
        "rows": rows,
        "nominal": 0.95,
        "coverage_by_parameter": covered.tolist(),
        "coverage": float(covered.mean()),
        "deviation_of_errors": np.std(errors, axis=0).tolist(),
        "bias": np.mean(errors, axis=0).tolist(),
        "median_standard_error": np.median(widths, axis=0).tolist(),
        "epsilon": max(epsilons),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tables", type=int, default=500)
    parser.add_argument("--rows", type=int, default=20_000)
    arguments = parser.parse_args()
    result = {kind: coverage(kind, arguments.tables, arguments.rows) for kind in KINDS}
    save("intervals", result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
