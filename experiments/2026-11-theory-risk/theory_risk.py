"""Predicted against measured error, on synthetic heavy-tailed problems whose truth is known.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/theory_risk.py [--quick]      # about a minute

1. *Means* (paper 2): `clipped_mean` against (11), which has constants, and `iterative_mean` against
   (26) with its unnamed C_0 = 1. Student t with 2.7 degrees of freedom in 5 dimensions, p = 2.5.
2. *Regression* (papers 2 and 4): excess risk of `PrivateLinearRegression` with the parameters of
   Theorem 4, against (9) with (14) and (15), and against the order (17); and with those of paper
   4's Theorem 3, against its bound with constants and the order (10). Rows on the unit sphere,
   targets with Student t noise, so that gradients have 2.5 moments.

Every cell is the mean over seeds, with the largest. Writes benchmarks/results/theory_risk.json;
docs/theory_page.py makes the page and its figure of it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from saving import save

from winsor import theory
from winsor.data import moment_rows
from winsor.linear import AveragedDescent, PrivateLinearRegression, Simple
from winsor.means import clipped_mean, iterative_mean

P, SLACK = 2.5, 0.2
EPSILON, DELTA, BETA = 1.0, 1e-6, 0.05
MEAN_DIMENSION, DIMENSION = 5, 4
NOISE = 0.2
TRUTH = np.full(DIMENSION, 0.25)  # |truth| = 1/2, in a ball of radius 1
DIAMETER, SMOOTHNESS = 2.0, 1 / DIMENSION

Row = dict[str, Any]


def row(method: str, n: int, bound: theory.Bound, measured: list[float], **rest: float) -> Row:
    return {
        "method": method,
        "n": n,
        "source": bound.source,
        "predicted": bound.value,
        "measured": float(np.mean(measured)),
        "largest": float(np.max(measured)),
        "predicted / measured": bound.value / float(np.mean(measured)),
        "warnings": list(bound.warnings),
        **rest,
    }


# ---------------------------------------------------------------------------------------- means


def means(n: int, seeds: int) -> list[Row]:
    errors: dict[str, list[float]] = {"clipped mean": [], "iterative mean": []}
    bounds = {}
    for seed in range(seeds):
        x, mean, moment = moment_rows(n, MEAN_DIMENSION, P, slack=SLACK, seed=seed + n)
        options: dict[str, Any] = {
            "epsilon": EPSILON,
            "delta": DELTA,
            "moments": (P, moment),
            "beta": BETA,
            "random_state": seed,
        }
        found = {
            "clipped mean": clipped_mean(x, **options),
            "iterative mean": iterative_mean(x, groups=20, grouping="partition", **options),
        }
        for name, result in found.items():
            errors[name].append(float(np.linalg.norm(result.estimate - mean)))
        bounds = {
            "clipped mean": _simple_bound(found["clipped mean"], moment, n),
            "iterative mean": _iterative_bound(found["iterative mean"], moment, n),
        }
    return [row(name, n, bounds[name], errors[name]) for name in errors]


def _simple_bound(result: Any, moment: float, n: int) -> theory.Bound:
    """(11) at the radius and the noise that were used."""
    rho = 2 * (result.radius / (n * result.noise_std)) ** 2
    error = theory.simple_clipping_error(
        result.radius, p=P, moment=moment, n=n, d=MEAN_DIMENSION, rho=rho, beta=BETA
    )
    return theory.Bound(error.total, "(11)", "paper 2, Theorem 2, (11)")


def _iterative_bound(result: Any, moment: float, n: int) -> theory.Bound:
    """(26) at the radius and the noise of a group mean that were used."""
    groups = len(result.group_means)
    rho = 2 * (result.radius * groups / (n * result.noise_std)) ** 2
    return theory.iterative_mean_bound(
        result.radius,
        p=P,
        moment=moment,
        n=n,
        d=MEAN_DIMENSION,
        rho=rho,
        confidence=BETA,
        groups=groups,
    )


# ----------------------------------------------------------------------------------- regression


def regression_rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, DIMENSION))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, x @ TRUTH + NOISE * rng.standard_t(P + SLACK, size=n)


def gradient_moments() -> tuple[float, float]:
    """M of Assumption 1c and sigma of paper 4, at the start and by simulation: public here."""
    x, y = regression_rows(1_000_000, seed=12345)
    gradients = -y[:, None] * x
    moment = float(np.max(np.mean(np.abs(gradients) ** P, axis=0))) ** (1 / P)
    centred = gradients - gradients.mean(0)
    return moment, float(np.sqrt(np.mean(np.sum(centred**2, axis=1))))


def excess_risks(method: Callable[[], Any], n: int, seeds: int) -> list[float]:
    """(w - w*)' E[x x'] (w - w*) / 2, with E[x x'] = I/d."""
    risks = []
    for seed in range(seeds):
        x, y = regression_rows(n, seed + n)
        model = PrivateLinearRegression(
            epsilon=EPSILON,
            delta=DELTA,
            method=method(),
            fit_intercept=False,
            feature_bound=1.0,
            random_state=seed,
        ).fit(x, y)
        risks.append(float(np.sum((model.coef_ - TRUTH) ** 2)) / (2 * DIMENSION))
    return risks


def simple(n: int, seeds: int, moment: float) -> list[Row]:
    rho = theory.zcdp_budget_exact(EPSILON, DELTA)
    choice = theory.simple_clipping(P, moment, n, DIMENSION, rho, smoothness=SMOOTHNESS)
    steps = max(1, round(choice.steps))

    def method() -> Simple:
        return Simple(choice.radius, steps, choice.step_size, radius=DIAMETER / 2)

    risks = excess_risks(method, n, seeds)
    sizes = {"p": P, "moment": moment, "n": n, "d": DIMENSION}
    bias = theory.simple_gradient_bias(choice.radius, **sizes)
    spread = theory.simple_gradient_moment(choice.radius, **sizes, rho=rho, steps=steps)
    descent = theory.descent_risk(
        diameter=DIAMETER,
        step_size=choice.step_size,
        steps=steps,
        smoothness=SMOOTHNESS,
        bias=bias.value,
        second_moment=spread.value,
    )
    order = theory.simple_clipping_rate(
        P, n=n, d=DIMENSION, epsilon=EPSILON, delta=DELTA, moment=moment
    )
    return [
        row("simple clipping", n, descent, risks, steps=steps),
        row("simple clipping, order", n, order, risks, steps=steps),
    ]


def averaged(n: int, seeds: int, deviation: float) -> list[Row]:
    problem = theory.AclipProblem(
        SMOOTHNESS, DIAMETER / 2, deviation, n, DIMENSION, EPSILON, DELTA, BETA
    )
    choice = theory.aclip_constrained(problem)
    batch = min(choice.batch_size, float(n))

    def method() -> AveragedDescent:
        return AveragedDescent(
            clip=choice.clip,
            batch_size=batch,
            learning_rate=choice.step_size,
            steps=choice.steps,
            radius=DIAMETER / 2,
        )

    risks = excess_risks(method, n, seeds)
    with_constants = theory.aclip_constrained_risk(problem, steps=choice.steps, batch_size=batch)
    order = theory.aclip_convex_rate(
        n=n, d=DIMENSION, epsilon=EPSILON, delta=DELTA, confidence=BETA
    )
    return [
        row("averaged clipping", n, with_constants, risks, steps=choice.steps),
        row("averaged clipping, order", n, order, risks, steps=choice.steps),
    ]


def slopes(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Exponent of n, predicted and measured, for every method."""
    found = {}
    for name in dict.fromkeys(one["method"] for one in rows):
        mine = [one for one in rows if one["method"] == name]
        sizes = np.log([one["n"] for one in mine])
        found[name] = {
            kind: float(np.polyfit(sizes, np.log([one[kind] for one in mine]), 1)[0])
            for kind in ("predicted", "measured")
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer seeds and sizes")
    quick = parser.parse_args().quick
    sizes = [2000, 8000] if quick else [2000, 8000, 32000, 128000]
    seeds = 3 if quick else 10
    moment, deviation = gradient_moments()
    rows: list[Row] = []
    for n in sizes:
        rows += means(n, seeds) + simple(n, seeds, moment) + averaged(n, seeds, deviation)
    start = float(TRUTH @ TRUTH) / (2 * DIMENSION)
    setting = {
        "p": P,
        "epsilon": EPSILON,
        "delta": DELTA,
        "beta": BETA,
        "seeds": seeds,
        "M": moment,
        "sigma": deviation,
        "risk of the start": start,
    }
    path = save("theory_risk", {"setting": setting, "rows": rows, "slopes": slopes(rows)})
    for one in rows:
        print(
            f"{one['method']:26} n {one['n']:7} predicted {one['predicted']:.4g} "
            f"measured {one['measured']:.4g} (largest {one['largest']:.4g})"
        )
    print(f"risk of the start {start:.4g}; {math.prod((len(sizes), seeds))} fits each -> {path}")


if __name__ == "__main__":
    main()
