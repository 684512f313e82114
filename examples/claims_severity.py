"""Predict injury-claim amounts privately: a heavy-tailed target at certified epsilon 1.

    python examples/claims_severity.py [DIRECTORY]

DIRECTORY holds aus_injury_claims.npz (22,036 settled Australian injury claims, read by
papers/winsor_papers/reproductions/datasets.py: `pip install -e reproductions`). Without it, a
synthetic stand-in of the same shape is used.

Amounts span six orders of magnitude, so the model predicts the logarithm of the amount with Huber's
loss. Features are scaled by public ranges (a month is a month), never by the data. Compared on rows
that were not trained on, with the share of variance of the log amount explained (R2) and the median
factor between predicted and true amount:

* the best linear fit without privacy;
* `PrivateHuberRegressor` at (1, 1e-5): every step takes all claims;
* ordinary DP-SGD at the same budget: batches of 256, squared error, constant step, last iterate;
* ordinary DP-SGD on the amounts themselves, which is what heavy tails make of it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression
from winsor_papers.reproductions.datasets import Table, load

from winsor.core.contract import ConfigurationError
from winsor.tables import FlatDescent, PrivateHuberRegressor, PrivateLinearRegression
from winsor.tails.datasets import claims_like

Array = NDArray[np.float64]

# What anybody may know without seeing a claim: percentiles run from 0 to 100, up to five people are
# injured, the files cover ten years of months, everything else is yes or no.
PUBLIC_RANGES = {
    "OpTime": (0, 100),
    "InjNb": (1, 5),
    "AccMth": (0, 120),
    "ReportDelay": (0, 120),
    "SettleDelay": (0, 120),
}
LOG_AMOUNT = (np.log(100), np.log(1_000_000))  # most claims, in dollars
SEEDS = 5


def claims(directory: Path) -> tuple[Table, str]:
    """The real claims, scaled by public ranges, or a stand-in."""
    try:
        table = load("aus_injury_claims", directory)
    except ConfigurationError:
        made = claims_like(22_036)
        cut = 17_629
        names = tuple(f"feature {j}" for j in range(14))
        table = Table("synthetic", made.x[:cut], made.y[:cut], made.x[cut:], made.y[cut:], names)
        return table, f"synthetic stand-in (no aus_injury_claims.npz in {directory})"
    low, high = np.array([PUBLIC_RANGES.get(name, (0, 1)) for name in table.feature_names]).T
    scale = lambda x: 2 * (x - low) / (high - low) - 1  # noqa: E731
    scaled = Table(
        table.name,
        scale(table.x_train),
        table.y_train,
        scale(table.x_test),
        table.y_test,
        table.feature_names,
    )
    return scaled, "Australian injury claims"


def quality(predicted_log: Array, amounts: Array) -> tuple[float, float]:
    """(R2 of the log amount, median factor between predicted and true amount)."""
    truth = np.log1p(amounts)
    gap = predicted_log - truth
    return float(1 - np.mean(gap**2) / np.var(truth)), float(np.exp(np.median(np.abs(gap))))


def ordinary_dp_sgd(rate: float) -> FlatDescent:
    return FlatDescent(
        batch_size=256, epochs=10, learning_rate=rate, decay=False, tail=1e-9, cautious=False
    )


def compare(table: Table) -> dict[str, list[tuple[float, float, float]]]:
    """(R2, median factor, certified epsilon) of each method and seed."""
    log_train = np.log1p(table.y_train)
    plain = LinearRegression().fit(table.x_train, log_train)
    rows = {"without privacy": [(*quality(plain.predict(table.x_test), table.y_test), np.inf)]}
    for seed in range(SEEDS):
        options = {"epsilon": 1.0, "delta": 1e-5, "random_state": seed}
        huber = PrivateHuberRegressor(target_range=LOG_AMOUNT, **options)
        sgd = PrivateLinearRegression(
            target_range=LOG_AMOUNT, method=ordinary_dp_sgd(0.2), **options
        )
        for name, model in (("winsor, Huber on logs", huber), ("DP-SGD on logs", sgd)):
            model.fit(table.x_train, log_train)
            scores = quality(model.predict(table.x_test), table.y_test)
            rows.setdefault(name, []).append((*scores, model.epsilon_))
        raw = PrivateLinearRegression(
            target_range=(0.0, 100_000.0), method=ordinary_dp_sgd(0.2), **options
        ).fit(table.x_train, table.y_train)
        amounts = np.maximum(raw.predict(table.x_test), 1.0)
        scores = quality(np.log1p(amounts), table.y_test)
        rows.setdefault("DP-SGD on amounts", []).append((*scores, raw.epsilon_))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    here = Path(__file__).resolve()
    default = here.parents[2] / "shared" / "data"
    parser.add_argument("directory", nargs="?", type=Path, default=default)
    start = time.perf_counter()
    table, source = claims(parser.parse_args().directory)
    train, test = len(table.x_train), len(table.x_test)
    print(f"{source}: {train} claims to train, {test} to test\n")
    print(f"{'':24}{'R2 (log)':>16}{'median factor':>16}{'certified epsilon':>20}")
    for name, results in compare(table).items():
        r2, factor, epsilon = np.mean(results, axis=0)
        spread = f" ± {np.std([r[0] for r in results]):.3f}" if len(results) > 1 else " " * 8
        print(f"{name:24}{r2:8.3f}{spread}{factor:16.2f}{epsilon:20.3f}")
    print(f"\n{time.perf_counter() - start:.1f} s, {SEEDS} seeds, delta 1e-5, add/remove one claim")


if __name__ == "__main__":
    main()
