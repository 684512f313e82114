"""Insurance claims with shapes you can read: a private additive model of log amounts.

    python examples/gallery/claims.py [--full] [--out DIR] [--data DIR]

The short form uses synthetic claims with heavy tails. The full form reads aus_injury_claims.npz
(22,036 settled injury claims) from --data if it is there, else more synthetic claims. Fitting,
shapes and importances are one account at epsilon 1.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from options import asked_for
from page import Shown

from winsor.tables import PrivateAdditiveRegressor
from winsor.tails.datasets import claims_like

CHANGES = (
    "Replace claims() by your table: a DataFrame in raw units, and the amounts.",
    "Predict the logarithm of amounts, or the target as it is if its tails are light.",
    "The columns' ranges are learned within the budget; give public ones if you know them.",
    "Held-out quality here is on rows that are not protected; winsor.metrics measures privately.",
)


def claims(full: bool, data: Path) -> tuple[pd.DataFrame, NDArray[np.float64], str]:
    """Features, amounts, and where they come from."""
    file = data / "aus_injury_claims.npz"
    if full and file.exists():
        from winsor_papers.reproductions.datasets import load

        table = load("aus_injury_claims", data)
        rows = np.concatenate([table.x_train, table.x_test])
        names = list(table.feature_names)
        amounts = np.concatenate([table.y_train, table.y_test])
        return pd.DataFrame(rows, columns=names), amounts, "Australian injury claims"
    made = claims_like(n=40_000 if full else 4_000)
    names = [f"column {i}" for i in range(made.x.shape[1])]
    return pd.DataFrame(made.x, columns=names), made.y, "synthetic claims"


def main(arguments: list[str] | None = None) -> None:
    options = asked_for(__doc__, "claims", arguments)
    rows, amounts, source = claims(options.full, options.data)
    target = np.log1p(np.maximum(amounts, 0.0))
    held_out = np.arange(len(rows)) % 5 == 0
    model = PrivateAdditiveRegressor(epsilon=1.0, delta=1e-5).fit(
        rows[~held_out], target[~held_out]
    )
    r2 = model.score(rows[held_out], target[held_out])
    results = [
        ("rows", f"{len(rows):,} {source}, a fifth held out"),
        ("R2 of the log amount, held out", f"{r2:.3f}"),
        *((shape.name, f"importance {shape.importance:.3f}") for shape in model.terms_[:4]),
    ]
    charts = [
        replace(model.plot(shape.name), key=f"shape-{place}")
        for place, shape in enumerate(model.terms_[:4])
    ]
    promise = f"The model with all its shapes: {model.guarantee_}."
    Shown("Insurance claims", promise, results, CHANGES, charts, model.guarantee_).write(
        options.out
    )


if __name__ == "__main__":
    main()
