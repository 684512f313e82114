"""Does the recipe's quantile, lowered where noise is loud, keep what the recipe had on a9a?

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/recipe_quantile.py [--data ../shared/data]

The protocol of `benchmarks/tuning.py` (logistic regression, delta 1e-5, five seeds, test accuracy,
nothing tuned), once with the quantile of `winsor.advise.recipes.quantile_for` and once with the
earlier one, 1 - nu, everything else alike and paired by seed: at epsilon 3, where the earlier
figures are, and at epsilon 1, where noise is louder. Every training is certified with all of
epsilon. Saves benchmarks/results/recipe_quantile.json.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from records_inside import at
from saving import save
from tuning import DELTA, EPSILON, SEEDS, Problem, a9a, accuracy, like_the_recipe

from winsor.advise.recipes import Recipe, recipe
from winsor.tails.guide import Setting, private_quantile


@dataclass(frozen=True)
class AsItWas(Problem):
    """The same rows at some epsilon, with the quantile of today or the earlier one."""

    epsilon: float = EPSILON
    earlier: bool = False

    def recipe(self) -> Recipe:
        d = sum(p.numel() for p in self.model().parameters())
        public = {"n": len(self.y), "d": d, "epsilon": self.epsilon, "delta": DELTA}
        plan = recipe(**public)
        if not self.earlier:
            return plan
        target = private_quantile(None, Setting(**public)).values["target"]
        return at(plan, {"quantile": target, "length": plan.learning_rate})


def measured(problem: Problem) -> dict[str, Any]:
    accuracies, spent = [], []
    for seed in range(SEEDS):
        model, private = like_the_recipe(problem, 1.0, seed)
        accuracies.append(round(100 * accuracy(model, problem.x_test, problem.y_test), 3))
        spent.append(private.spent().epsilon)
    return {
        "quantile": round(problem.recipe().rule.rule.tracker.target, 4),
        "accuracies": accuracies,
        "mean": round(statistics.mean(accuracies), 3),
        "epsilon": round(max(spent), 4),
    }


def compared(problem: Problem, epsilon: float) -> dict[str, Any]:
    parts = {field.name: getattr(problem, field.name) for field in fields(problem)}
    today, earlier = (
        measured(AsItWas(**parts, epsilon=epsilon, earlier=earlier)) for earlier in (False, True)
    )
    pairs = zip(today["accuracies"], earlier["accuracies"], strict=True)
    differences = [one - other for one, other in pairs]
    return {
        "today": today,
        "earlier": earlier,
        "today less earlier": round(statistics.mean(differences), 3),
        "standard error": round(statistics.stdev(differences) / SEEDS**0.5, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    problem = a9a(options.data)
    found = {f"a9a, epsilon {epsilon:g}": compared(problem, epsilon) for epsilon in (EPSILON, 1.0)}
    print(found)
    save("recipe_quantile", found)


if __name__ == "__main__":
    main()
