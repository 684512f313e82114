"""Regression and classification of tables: ours, AdaSSP, DP-EBM, diffprivlib, and without privacy.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/tables.py                  # hours; resumable
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/tables.py --tables a9a --methods whitened \\
        adassp --epsilons 1 --seeds 2 --out /tmp/tables.jsonl
    .venv/bin/python benchmarks/tables.py --show                             # in Markdown

R2 of the log amount (of the known mean for synthetic tables), accuracy for two classes, on test
rows. Fixed defaults for every method; public ranges of features and target are the same for all
(`tables_data.py`), and "learnt" methods are given none of them and pay for what they find out.
delta = 1e-5, or 1/(2n) if that is smaller; diffprivlib is pure epsilon.

Every cell (table, method, epsilon, seed) is one line of benchmarks/results/tables.jsonl, written
when it is done; what is there already is not run again. A method is one entry in METHODS: a
function of (table, epsilon, delta, seeds) that returns one score per seed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from saving import FOLDER, made_by
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tables_data import TABLES, Table
from tables_others import others

from winsor.core.contract import Neighbouring, Sensitivity
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment, Target, noise_multiplier
from winsor.tables import PrivateLinearRegression, PrivateLogisticRegression, PrivateRidge

Array = NDArray[np.float64]
Method = Callable[[Table, float, float, list[int]], list[float]]

OUT = FOLDER / "tables.jsonl"
EPSILONS = (1.0, 3.0, 0.3)  # in the order of running: what is asked for first comes first
SEEDS = 10


def score(predicted: Array, table: Table) -> float:
    """Accuracy of probabilities, or R2."""
    if table.classes:
        return float(np.mean((predicted > 0.5) == table.y_test))
    return float(1 - np.mean((table.y_test - predicted) ** 2) / table.y_test.var())


def estimator(
    regressor: Any, classifier: Any, bounded: bool, target: str = "target_range", **options: Any
) -> Method:
    """A private estimator of winsor, with the public ranges or without."""

    def run(table: Table, epsilon: float, delta: float, seeds: list[int]) -> list[float]:
        scores = []
        for seed in seeds:
            given: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "random_state": seed}
            if bounded:
                given["bounds"] = [tuple(pair) for pair in table.bounds]
            if bounded and not table.classes:
                given[target] = table.target
            kind = classifier if table.classes else regressor
            model = kind(**given, **({} if table.classes else options)).fit(table.x, table.y)
            if table.classes:
                scores.append(score(model.predict_proba(table.x_test)[:, 1], table))
            else:
                scores.append(score(model.predict(table.x_test), table))
        return scores

    return run


def additive(bounded: bool) -> Method:
    from winsor.tables import PrivateAdditiveClassifier, PrivateAdditiveRegressor

    return estimator(
        PrivateAdditiveRegressor, PrivateAdditiveClassifier, bounded, target="target_bounds"
    )


def adassp(table: Table, epsilon: float, delta: float, seeds: list[int]) -> list[float]:
    """Wang (2018), Algorithm 1, on columns scaled by their public ranges."""
    low, high = table.bounds.T
    d = len(low) + 1

    def rows(x: Array) -> Array:
        scaled = np.clip((x - low) / (high - low), 0, 1)
        return np.column_stack([scaled, np.ones(len(x))]) / math.sqrt(table.attributes + 1)

    bottom, top = (0.0, 1.0) if table.target is None else table.target
    y = np.clip((2 * table.y - top - bottom) / (top - bottom), -1, 1)
    target = Target(epsilon, delta, None, Neighbouring.ADD_OR_REMOVE_ONE)
    three = Payment(FullBatch(len(y)), Sensitivity.per_sample(1.0, "|x|, |y| <= 1"), 3)
    s = noise_multiplier([three], target)  # three releases of sensitivity 1, composed exactly
    scores = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        x = rows(table.x)
        gram, slack = x.T @ x, math.sqrt(d * math.log(2 * d**2 / 0.05)) * s
        least = max(0.0, np.linalg.eigvalsh(gram)[0] + s * rng.normal() - slack / math.sqrt(d))
        noise = np.triu(rng.normal(size=(d, d)))
        gram += s * (noise + np.triu(noise, 1).T)
        moment = x.T @ y + s * rng.normal(size=d)
        theta = np.linalg.solve(gram + max(0.0, slack - least) * np.eye(d), moment)
        found = rows(table.x_test) @ theta
        scores.append(score((found * (top - bottom) + top + bottom) / 2, table))
    return scores


def other(task: str) -> Method:
    """DP-EBM or diffprivlib in their own interpreter, all seeds in one call."""

    def run(table: Table, epsilon: float, delta: float, seeds: list[int]) -> list[float]:
        arrays = {
            "x": table.x,
            "y": table.y,
            "x_test": table.x_test,
            "y_test": table.y_test,
            "bounds": table.bounds,
            "attributes": np.array(table.attributes),
            "target": np.array(table.target or (0.0, 1.0)),
        }
        options = {"epsilon": epsilon, "delta": delta, "classes": table.classes}
        return others(task, arrays, seeds=seeds, **options)

    return run


def public(regressor: Any, classifier: Any) -> Method:
    """Without privacy: what the privacy costs is the gap to this."""

    def run(table: Table, epsilon: float, delta: float, seeds: list[int]) -> list[float]:
        model = make_pipeline(StandardScaler(), classifier() if table.classes else regressor())
        model.fit(table.x, table.y)
        found = (
            model.predict_proba(table.x_test)[:, 1]
            if table.classes
            else model.predict(table.x_test)
        )
        return [score(found, table)] * len(seeds)

    return run


def suffstats(bounded: bool) -> Method:
    return estimator(
        PrivateRidge, PrivateLogisticRegression, bounded, method="suffstats", alpha=0.0
    )


METHODS: dict[str, Method] = {
    "whitened": estimator(PrivateLinearRegression, PrivateLogisticRegression, True),
    "whitened, learnt": estimator(PrivateLinearRegression, PrivateLogisticRegression, False),
    "suffstats": suffstats(True),
    "suffstats, learnt": suffstats(False),
    "additive": additive(True),
    "additive, learnt": additive(False),
    "adassp": adassp,
    "dp-ebm": other("ebm"),
    "diffprivlib": other("diffprivlib"),
    "public linear": public(LinearRegression, lambda: LogisticRegression(max_iter=2000)),
    "public boosting": public(HistGradientBoostingRegressor, HistGradientBoostingClassifier),
}
WITHOUT_PRIVACY = ("public linear", "public boosting")
REGRESSION_ONLY = ("suffstats", "suffstats, learnt")
ELSEWHERE = ("dp-ebm", "diffprivlib")
"""In their own interpreter: all seeds in one call, for starting it takes longer than a fit."""


def done(path: Path) -> dict[tuple[str, str, float, int], dict[str, Any]]:
    """The cells that are there already; the last line of a broken run may be torn."""
    cells: dict[tuple[str, str, float, int], dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            cell = json.loads(line)
        except json.JSONDecodeError:
            continue
        cells[cell["table"], cell["method"], cell["epsilon"], cell["seed"]] = cell
    return cells


def run_cells(options: argparse.Namespace) -> None:
    """All tables and methods at the first epsilon, then at the next: a run that is cut short has
    whole columns."""
    path = Path(options.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    tables = {name: TABLES[name]() for name in options.tables}
    for epsilon in options.epsilons:
        for table in tables.values():
            for method in options.methods:
                if not (table.classes and method in REGRESSION_ONLY):
                    _run_method(path, table, method, epsilon, options.seeds)


def _run_method(path: Path, table: Table, method: str, epsilon: float, seeds: int) -> None:
    """What is missing of one method; without privacy there is one cell, at epsilon infinity."""
    free = method in WITHOUT_PRIVACY
    epsilon, wanted = (math.inf, 1) if free else (epsilon, seeds)
    known = done(path)
    missing = [s for s in range(wanted) if (table.name, method, epsilon, s) not in known]
    batches = [missing] if method in ELSEWHERE else [[seed] for seed in missing]
    for batch in filter(None, batches):
        _run_batch(path, table, method, epsilon, batch)


def _run_batch(path: Path, table: Table, method: str, epsilon: float, seeds: list[int]) -> None:
    delta = min(1e-5, 1 / (2 * len(table.y)))
    begun, clock = _processor_seconds(), time.perf_counter()
    scores = METHODS[method](table, epsilon, delta, seeds)
    clock = (time.perf_counter() - clock) / len(seeds)
    worked = (_processor_seconds() - begun) / len(seeds)
    with path.open("a") as file:
        for seed, value in zip(seeds, scores, strict=True):
            cell = {"table": table.name, "method": method, "epsilon": epsilon, "seed": seed}
            cell |= {"score": round(value, 6), "seconds": round(clock, 2)}
            cell |= {"processor": round(worked, 2), **made_by()}
            file.write(json.dumps(cell) + "\n")
    print(
        f"{table.name:20} {method:20} {epsilon:<6g} {np.mean(scores):.4f}  {worked:.1f} s",
        flush=True,
    )


def _processor_seconds() -> float:
    """Of this process and its children: the clock says little on a machine that others use."""
    return sum(os.times()[:4])


def show(path: Path) -> None:
    """Means over seeds, in Markdown; the best private one of a row is bold, losses stay visible."""
    cells = done(path)
    methods = [m for m in METHODS if any(key[1] == m for key in cells)]
    print("| table | epsilon | " + " | ".join(methods) + " |")
    print("|---|---|" + "---|" * len(methods))
    for name in TABLES:
        for epsilon in sorted({key[2] for key in cells if key[0] == name} - {math.inf}):
            means = {}
            for method in methods:
                at = math.inf if method in WITHOUT_PRIVACY else epsilon
                found = [c["score"] for k, c in cells.items() if k[:3] == (name, method, at)]
                means[method] = float(np.mean(found)) if found else math.nan
            private = {m: v for m, v in means.items() if m not in WITHOUT_PRIVACY and v == v}
            best = max(private, key=lambda m: private[m], default=None)
            row = [
                "" if v != v else f"**{v:.4f}**" if m == best else f"{v:.4f}"
                for m, v in means.items()
            ]
            print(f"| {name} | {epsilon:g} | " + " | ".join(row) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", default=str(OUT))
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if not options.show:
        run_cells(options)
    show(Path(options.out))


if __name__ == "__main__":
    main()
