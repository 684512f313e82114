"""What tuning costs and what it brings: the account, and three ways to spend epsilon 3 on a9a.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/tuning.py [--data ../shared/data] [--seeds 5]

1. *Account.* A trial of epsilon 2.368 (200 steps at rate 0.1), tuned with a logarithmic number of
   trials of mean 10 and 100: the direct bound, the Renyi bound, composition, and processor seconds
   of the account, alone and against one trial of part 2.
2. *a9a*, logistic regression, total epsilon 3, delta 1e-5: the defaults of the library without
   tuning; tuned inside the budget (mean of 10 trials, score on a private fifth of the rows, and
   with a fifth declared public); the best of 10 settings by test accuracy with tuning not charged,
   which is how papers do it and nobody may.

The settings tuned are the threshold and the learning rate, log-uniform over wide ranges around the
defaults. The defaults were chosen while looking at a9a, so tuning starts at a disadvantage.
Writes benchmarks/results/tuning.json.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from rich.console import Console
from saving import save
from sklearn.base import clone
from winsor_reproductions.datasets import load

from winsor.accounting import account
from winsor.accounting.selection import SelectionDpEvent, epsilon_by_renyi, epsilon_directly
from winsor.accounting.trial_counts import TruncatedNegativeBinomial
from winsor.contract import Neighbouring
from winsor.linear import FlatDescent, PrivateLogisticRegression
from winsor.tuning import LogUniform, PrivateRandomizedSearchCV, Space

DELTA, EPSILON, TRIALS = 1e-5, 3.0, 10
ADD = Neighbouring.ADD_OR_REMOVE_ONE
SPACE = {
    "method__max_grad_norm": LogUniform(0.05, 5.0),
    "method__learning_rate": LogUniform(0.5, 50.0),
}


def accounts() -> list[dict[str, Any]]:
    step, count = PoissonSampledDpEvent(0.1, GaussianDpEvent(2.6207)), 200
    rows = []
    for mean in (10, 100):
        event = SelectionDpEvent.of_history(
            [(step, count)], TruncatedNegativeBinomial.of_mean(mean)
        )
        start = time.process_time()
        reported = account([(event, 1)], DELTA).epsilon
        seconds = time.process_time() - start
        rows.append(
            {
                "mean trials": mean,
                "one trial": account([(step, count)], DELTA).epsilon,
                "reported": reported,
                "direct": epsilon_directly(event, DELTA, ADD),
                "renyi": epsilon_by_renyi(event, DELTA, ADD),
                "composition": account([(step, count * mean)], DELTA).epsilon,
                "seconds": seconds,
            }
        )
    return rows


def a9a(directory: str, seeds: int) -> dict[str, Any]:
    table = load("a9a", directory)
    train, test = (table.x_train, table.y_train), (table.x_test, table.y_test)
    # A fixed number of steps, so that every setting spends the same: see FlatDescent's default.
    base = PrivateLogisticRegression(delta=DELTA, method=FlatDescent(steps=100))
    found: dict[str, list[float]] = {}
    spent: dict[str, float] = {}

    def keep(name: str, model: Any) -> None:
        found.setdefault(name, []).append(float(model.score(*test)))
        spent[name] = max(spent.get(name, 0.0), model.epsilon_)

    seconds = 0.0
    for seed in range(seeds):
        start = time.process_time()
        plain = clone(base).set_params(epsilon=EPSILON, random_state=seed).fit(*train)
        seconds += (time.process_time() - start) / seeds
        keep("untuned", plain)
        search = PrivateRandomizedSearchCV(
            base, SPACE, epsilon=EPSILON, delta=DELTA, n_iter=TRIALS, random_state=seed
        )
        keep("tuned, private score", clone(search).fit(*train))
        public = np.random.default_rng(seed).random(len(train[1])) < 0.2
        keep(
            "tuned, a fifth of the rows public",
            clone(search).fit(
                train[0][~public], train[1][~public], train[0][public], train[1][public]
            ),
        )
        keep("best of 10, not charged", best_of_grid(base, train, test, seed))
    rows = {
        name: {"mean": float(np.mean(s)), "std": float(np.std(s)), "epsilon": spent[name]}
        for name, s in found.items()
    }
    return {"rows": rows, "seconds of one fit": seconds}


def best_of_grid(base: Any, train: Any, test: Any, seed: int) -> Any:
    """The best by test accuracy among as many settings; its epsilon is that of one fit: a lie."""
    space, rng = Space.of(SPACE), np.random.default_rng(seed)
    models = [
        clone(base)
        .set_params(**space.draw(rng), epsilon=EPSILON, random_state=100 * seed + i)
        .fit(*train)
        for i in range(TRIALS)
    ]
    return max(models, key=lambda model: model.score(*test))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    result: dict[str, Any] = {"account": accounts(), "a9a": a9a(options.data, options.seeds)}
    Console().print(result)
    save("tuning", result)


if __name__ == "__main__":
    main()
