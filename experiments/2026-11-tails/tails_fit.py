"""Does `winsor.tails.fit` find the tail? Accuracy, coverage, verdicts and speed.

    python benchmarks/tails_fit.py [--repeats 300] [--fresh]

For each distribution and n in {500, 5,000, 50,000}: the error of theta and the coverage of its
95 % intervals (Weibull samples, where theta is defined), the coverage of Hill's interval for alpha
(Student t and Pareto, where alpha is defined), how often the verdict is right, how often the safe
moment is below alpha, and the CPU time of a fit. A lognormal has neither theta nor alpha: only its
verdict is scored. Then the time of a fit of 1e6 norms, median of 5, one thread.

The right verdict: Weibull with theta = 1/2 is light, theta = 1 sub-exponential, theta = 2 heavy;
Student t, Pareto and lognormal are heavy. The second group ("harder") was chosen to find the
limits, with a third of the repeats: half-normal is light, all others are heavy.

Each finished cell is kept in benchmarks/results/tails_fit.json and not repeated unless the number
of repeats has changed or --fresh is given. All of it takes about ten minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from saving import save

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from winsor.tails import TailClass, TailFit, fit

SIZES = (500, 5_000, 50_000)
RESULTS = Path(__file__).parent / "results" / "tails_fit.json"
Draw = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Law:
    """A distribution of norms and what is true of its tail."""

    name: str
    draw: Draw
    verdict: TailClass
    theta: float | None = None
    alpha: float | None = None


def weibull(theta: float) -> Draw:
    return lambda rng, n: rng.weibull(1 / theta, n)


def student(df: float) -> Draw:
    return lambda rng, n: np.abs(rng.standard_t(df, n))


def pareto(alpha: float, shift: float = 1.0) -> Draw:
    return lambda rng, n: shift + rng.pareto(alpha, n)


def lognormal(sigma: float) -> Draw:
    return lambda rng, n: np.exp(sigma * rng.standard_normal(n))


LAWS = (
    Law("Weibull theta=0.5", weibull(0.5), TailClass.LIGHT, theta=0.5),
    Law("Weibull theta=1", weibull(1.0), TailClass.SUB_EXPONENTIAL, theta=1.0),
    Law("Weibull theta=2", weibull(2.0), TailClass.HEAVY, theta=2.0),
    Law("Student t df=3", student(3), TailClass.HEAVY, alpha=3.0),
    Law("Pareto alpha=3", pareto(3), TailClass.HEAVY, alpha=3.0),
    Law("lognormal sigma=1", lognormal(1.0), TailClass.HEAVY),
)
HARDER = (
    Law("Student t df=2", student(2), TailClass.HEAVY, alpha=2.0),
    Law("Student t df=5", student(5), TailClass.HEAVY, alpha=5.0),
    Law("Lomax alpha=3", pareto(3, 0.0), TailClass.HEAVY, alpha=3.0),
    Law("lognormal sigma=0.5", lognormal(0.5), TailClass.HEAVY),
    Law("half-normal", lambda rng, n: np.abs(rng.standard_normal(n)), TailClass.LIGHT),
)


def covers(interval: tuple[float, float], truth: float) -> bool:
    return interval[0] <= truth <= interval[1]


def score(law: Law, fits: list[TailFit], seconds: list[float], n: int) -> dict[str, Any]:
    """Everything measured for one distribution and one n."""
    row: dict[str, Any] = {"law": law.name, "n": n, "repeats": len(fits)}
    row["verdict_right"] = float(np.mean([f.verdict.tail is law.verdict for f in fits]))
    row["stated_confidence"] = float(np.mean([f.verdict.probabilities[law.verdict] for f in fits]))
    row["fraction"] = float(np.median([f.fraction for f in fits]))
    row["bent"] = float(np.mean([f.is_bent for f in fits]))
    row["seconds"] = float(np.median(seconds))
    if law.theta is not None:
        theta = law.theta
        errors = np.array([abs(f.theta.value / theta - 1) for f in fits])
        row["theta_median"] = float(np.median([f.theta.value for f in fits]))
        row["theta_error_p95"] = float(np.quantile(errors, 0.95))
        row["theta_within_10pc"] = float(np.mean(errors <= 0.1))
        row["theta_coverage"] = float(
            np.mean([covers((f.theta.low, f.theta.high), theta) for f in fits])
        )
        row["regression_coverage"] = float(
            np.mean(
                [covers((f.theta_regression.low, f.theta_regression.high), theta) for f in fits]
            )
        )
        row["K_coverage"] = float(np.mean([covers((f.K.low, f.K.high), 1.0) for f in fits]))
    if law.alpha is not None:
        alpha = law.alpha
        row["alpha_median"] = float(np.median([f.hill.alpha for f in fits]))
        row["alpha_coverage"] = float(np.mean([covers(f.hill.alpha_interval, alpha) for f in fits]))
        row["safe_moment_below_alpha"] = float(np.mean([f.safe_moment < alpha for f in fits]))
    row["safe_moment_median"] = float(np.median([f.safe_moment for f in fits]))
    return row


def measure(law: Law, n: int, repeats: int) -> dict[str, Any]:
    fits, seconds = [], []
    for repeat in range(repeats):
        rng = np.random.default_rng([repeat, n, *law.name.encode()])
        norms = law.draw(rng, n)
        start = time.process_time()
        fits.append(fit(norms, seed=repeat))
        seconds.append(time.process_time() - start)
    return score(law, fits, seconds, n)


def million(law: Law) -> dict[str, Any]:
    """Seconds to fit 1e6 norms, medians of five: wall clock and CPU (machines are shared)."""
    wall, cpu = [], []
    for repeat in range(5):
        norms = law.draw(np.random.default_rng(repeat), 1_000_000)
        start, start_cpu = time.perf_counter(), time.process_time()
        fit(norms)
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
    return {"law": law.name, "wall": float(np.median(wall)), "cpu": float(np.median(cpu))}


COLUMNS = (
    ("verdict", "verdict_right"),
    ("theta p95", "theta_error_p95"),
    ("<=10%", "theta_within_10pc"),
    ("cover", "theta_coverage"),
    ("cover reg", "regression_coverage"),
    ("cover K", "K_coverage"),
    ("cover alpha", "alpha_coverage"),
    ("p < alpha", "safe_moment_below_alpha"),
    ("seconds", "seconds"),
)


COVERAGES = ("theta_coverage", "K_coverage", "alpha_coverage")


def line(row: dict[str, Any]) -> str:
    cells = [f"{row['law']:<20}", f"{row['n']:>6}"]
    for title, key in COLUMNS:
        value = row.get(key)
        cells.append(f"{value:>{len(title)}.3f}" if isinstance(value, float) else " " * len(title))
    return "  ".join(cells)


def load(path: Path, fresh: bool) -> dict[str, Any]:
    """What is there already."""
    if path.exists() and not fresh:
        return dict(json.loads(path.read_text()))
    return {"groups": {"required": [], "harder": []}, "million": []}


def store(path: Path, report: dict[str, Any]) -> None:
    report["laws"] = [describe(law) for law in (*LAWS, *HARDER)]
    report["summary"] = summary(report["groups"]["required"])
    save(path.stem, report, path.parent)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures that the targets are about, over the required laws measured so far."""
    middle = [row for row in rows if row["n"] == 5_000]
    covers_ = [row[key] for row in rows for key in COVERAGES if key in row]
    wrong = [f"{r['law']}, n = {r['n']}" for r in rows if r["verdict_right"] < 0.95]
    return {
        "theta_error_p95_at_5000": max((r.get("theta_error_p95", 0.0) for r in middle), default=0),
        "coverage": [min(covers_, default=None), max(covers_, default=None)],
        "verdict_below_95_percent": wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--groups", nargs="*", default=["required", "harder"])
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    report = load(arguments.output, arguments.fresh)
    print("  ".join([f"{'law':<20}", f"{'n':>6}", *(title for title, _ in COLUMNS)]), flush=True)
    for group, laws, repeats in (
        ("required", LAWS, arguments.repeats),
        ("harder", HARDER, max(1, arguments.repeats // 3)),
    ):
        if group not in arguments.groups:
            continue
        rows = report["groups"][group]
        for n in arguments.sizes:
            for law in laws:
                known = [r for r in rows if (r["law"], r["n"]) == (law.name, n)]
                if not known or known[0]["repeats"] != repeats:
                    row = measure(law, n, repeats)
                    rows[:] = [r for r in rows if r not in known] + [row]
                    store(arguments.output, report)
                    known = [row]
                print(line(known[0]), flush=True)
    for law in LAWS:
        if law.name not in [entry["law"] for entry in report["million"]]:
            report["million"].append(million(law))
            store(arguments.output, report)
    for entry in report["million"]:
        print(f"1e6 norms  {entry['law']:<20} {entry['wall']:.2f} s, {entry['cpu']:.2f} s of CPU")
    print(json.dumps(report["summary"]))


def describe(law: Law) -> dict[str, Any]:
    values: dict[str, Any] = asdict(law)
    values.pop("draw")
    return values | {"verdict": law.verdict.value}


if __name__ == "__main__":
    main()
