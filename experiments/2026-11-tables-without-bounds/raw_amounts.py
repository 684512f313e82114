"""Severity in raw euros: what the default regressors predict on average, and what is there.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/raw_amounts.py               # a minute
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/raw_amounts.py PrivateRidge  # this one anew

fremtpl2's claims, no ranges stated, no logarithm, epsilon 1 and 1000. One per cent of these claims
is more than a third of the total, so a private mean either cuts them (bias) or carries their noise;
what must not happen is a silent mean of 25 where the data have two thousand. Means are of the
training rows: on the test rows one claim can be a tenth of everything.

Writes benchmarks/results/raw_amounts.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from saving import FOLDER, save

from winsor.tables import (
    PrivateAdditiveRegressor,
    PrivateGammaRegressor,
    PrivateHuberRegressor,
    PrivateLinearRegression,
    PrivateMedianRegressor,
    PrivateRidge,
)

DATA = Path(__file__).parent.parent.parent / "shared" / "data" / "fremtpl2.npz"
REGRESSORS: dict[str, Any] = {
    "PrivateLinearRegression": PrivateLinearRegression,
    "PrivateRidge": PrivateRidge,
    "PrivateHuberRegressor": PrivateHuberRegressor,
    "PrivateMedianRegressor": PrivateMedianRegressor,
    "PrivateAdditiveRegressor": PrivateAdditiveRegressor,
    "PrivateGammaRegressor": PrivateGammaRegressor,
}
EPSILONS = (1.0, 1000.0)
SEEDS = 3


def main() -> None:
    data = np.load(DATA)
    kept = data["claim_split"] != 1
    x, y = data["claim_x"][kept].astype(np.float64), data["claim_y"][kept].astype(np.float64)
    wanted = sys.argv[1:] or list(REGRESSORS)
    path = FOLDER / "raw_amounts.json"
    saved = json.loads(path.read_text())["predictions"] if path.exists() else []
    rows = [row for row in saved if row["regressor"] not in wanted]
    for epsilon in EPSILONS:
        for name in wanted:
            kind = REGRESSORS[name]
            fits = [kind(epsilon=epsilon, random_state=seed).fit(x, y) for seed in range(SEEDS)]
            predicted = [model.predict(x) for model in fits]
            averages = [float(np.mean(each)) for each in predicted]
            rows.append(
                {
                    "regressor": name,
                    "epsilon": epsilon,
                    "mean prediction": round(float(np.median(averages)), 1),
                    "over seeds": [round(min(averages), 1), round(max(averages), 1)],
                    "median prediction": round(float(np.median(predicted)), 1),
                    "largest": round(float(np.max(predicted)), 1),
                }
            )
            print(rows[-1], flush=True)
    truth = {"rows": len(y), "mean": float(y.mean()), "median": float(np.median(y))}
    print(truth, save("raw_amounts", {"data": truth, "seeds": SEEDS, "predictions": rows}))


if __name__ == "__main__":
    main()
