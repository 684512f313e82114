"""Accuracy of private heavy-tailed means: the theory's rate, and against diffprivlib.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/means_accuracy.py [--quick]      # 3 minutes

1. *Rate.* Root mean squared error of `clipped_mean` and `iterative_mean` (partition and Poisson
   groups) against n, on Student-t and Pareto data whose moments of order 2.5 just exist, at an
   epsilon where privacy dominates; R from (16). Theory: slope -(1 - 1/2.5) = -0.6.
2. *Against diffprivlib's mean* at the same epsilon on the same data, with the same public bounds
   [-B, B]: winsor searches its radius privately inside those bounds. diffprivlib is epsilon-DP,
   winsor (epsilon, 1e-5)-DP; both under their default relation.

Writes benchmarks/results/means_accuracy.json. diffprivlib runs in an interpreter of its own, see
diffprivlib_baseline.py.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from diffprivlib_baseline import baseline
from saving import save

from winsor.data import moment_rows
from winsor.means import MeanEstimate, PrivateRadius, clipped_mean, iterative_mean

P = 2.5
FAMILIES = ("student_t", "pareto")
Estimator = Callable[..., MeanEstimate]


def estimators() -> dict[str, Estimator]:
    return {
        "clipped": clipped_mean,
        "iterative, partition": lambda x, **o: iterative_mean(
            x, groups=10, grouping="partition", **o
        ),
        "iterative, Poisson": lambda x, **o: iterative_mean(x, groups=10, **o),
    }


def rmse(errors: list[float]) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


def rates(sizes: list[int], seeds: int, epsilon: float) -> list[dict[str, Any]]:
    found = []
    for family in FAMILIES:
        for name, estimate in estimators().items():
            errors: list[float] = []
            shares: list[float] = []  # of the error that is the noise added for privacy
            for n in sizes:
                gaps, noises = [], []
                # Fresh data and fresh noise at every n: with common random numbers the slope would
                # only repeat the formula of the radius.
                for seed in range(n, n + seeds):
                    x, mean, moment = moment_rows(n, 1, P, family=family, slack=0.05, seed=seed)
                    options: dict[str, Any] = {
                        "epsilon": epsilon,
                        "delta": 1e-6,
                        "moments": (P, moment),
                    }
                    result = estimate(x, random_state=seed, **options)
                    gaps.append(float(np.linalg.norm(result.estimate - mean)))
                    k = 1 if result.group_means is None else len(result.group_means)
                    noises.append(result.noise_std / np.sqrt(k))
                errors.append(rmse(gaps))
                shares.append(float(np.mean(noises)) / errors[-1])
            slope = float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])
            theory = -(1 - 1 / P)
            found.append(
                {
                    "data": family,
                    "estimator": name,
                    "epsilon": epsilon,
                    "sizes": sizes,
                    "rmse": errors,
                    "noise_over_rmse": shares,
                    "slope": slope,
                    "theory": theory,
                    "off_by": abs(slope / theory - 1),
                }
            )
    return found


def against_diffprivlib(n: int, seeds: int, bound: float) -> list[dict[str, Any]]:
    found = []
    for family in FAMILIES:
        data = [moment_rows(n, 1, P, family=family, slack=0.05, seed=s) for s in range(seeds)]
        columns = np.stack([x[:, 0] for x, _, _ in data])
        for epsilon in (0.1, 1.0):
            theirs = baseline("mean", {"x": columns}, epsilon=epsilon, bound=bound, seeds=3)
            row: dict[str, Any] = {
                "data": family,
                "epsilon": epsilon,
                "n": n,
                "bound": bound,
                "diffprivlib": rmse([value for values in theirs for value in values]),
            }
            for name, estimate in estimators().items():
                gaps = [
                    float(
                        estimate(
                            column,
                            epsilon=epsilon,
                            delta=1e-5,
                            radius=PrivateRadius(bound / 1e4, bound),
                            random_state=seed,
                        ).estimate
                    )
                    for seed, column in enumerate(columns)
                ]
                row[name] = rmse(gaps)
                row[f"{name} / diffprivlib"] = row[name] / row["diffprivlib"]
            found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer seeds and sizes")
    quick = parser.parse_args().quick
    start = time.perf_counter()
    sizes = [1000, 8000, 64000] if quick else [1000, 4000, 16000, 64000, 256000]
    result = {
        "rates": rates(sizes, 10 if quick else 40, epsilon=0.02),
        "against_diffprivlib": against_diffprivlib(10_000, 5 if quick else 20, bound=1000.0),
    }
    result["seconds"] = time.perf_counter() - start
    path = save("means_accuracy", result)
    for row in result["rates"]:
        print(
            f"{row['data']:10} {row['estimator']:22} slope {row['slope']:.3f} "
            f"(theory {row['theory']:.3f}, off by {row['off_by']:.1%})"
        )
    for row in result["against_diffprivlib"]:
        print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}))
    print(f"{result['seconds']:.0f} s -> {path}")


if __name__ == "__main__":
    main()
