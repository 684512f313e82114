"""The privacy numbers of a fixed set of plans, runs and estimators, as a flat table of values.

`privacy_numbers.json` beside this file holds what they were before the house was rebuilt
(version 0.1.0). A change of the layout must not change one of them; a change of the accounting
may, and then says so in CHANGELOG under *Privacy* and rewrites the file:

    python tests/golden/privacy_numbers.py --write
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor import rules
from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.contrib.modelmix.planning import solve as solve_mixing
from winsor.core.accounting import account, account_delta, event_to_json
from winsor.core.contract import ConfigurationError, Neighbouring, UnsupportedRelation
from winsor.planning.plan import Question, solve
from winsor.tables.linear import PrivateLogisticRegression, PrivateRidge
from winsor.tables.means import clipped_mean, iterative_mean

STORED = Path(__file__).with_name("privacy_numbers.json")
Row = tuple[str, Any]


def plans() -> Iterator[Row]:
    base: dict[str, Any] = {"n": 60_000, "batch_size": 600, "epochs": 10, "delta": 1e-5}
    questions = {
        "noise": base | {"epsilon": 3.0},
        "epsilon": base | {"noise_multiplier": 0.9},
        "small epsilon": base | {"epsilon": 0.1},
        "large epsilon": base | {"epsilon": 30.0},
        "delta": {k: v for k, v in base.items() if k != "delta"}
        | {"epsilon": 2.0, "noise_multiplier": 0.9},
        "steps": {k: v for k, v in base.items() if k != "epochs"}
        | {"epsilon": 2.0, "noise_multiplier": 1.1},
        "batch": {k: v for k, v in base.items() if k != "batch_size"}
        | {"epsilon": 2.0, "noise_multiplier": 1.1},
        "n": {k: v for k, v in base.items() if k not in ("n", "epochs")}
        | {"epsilon": 2.0, "noise_multiplier": 1.1, "steps": 1000},
        "replace": base | {"epsilon": 3.0, "relation": Neighbouring.REPLACE_ONE},
        "fixed": base | {"epsilon": 3.0, "relation": Neighbouring.REPLACE_ONE, "sampling": "fixed"},
        "full": {"steps": 100, "delta": 1e-6, "epsilon": 1.0, "sampling": "full"},
    }
    for name, numbers in questions.items():
        answer = solve(Question(**numbers), points=4)
        for field in ("epsilon", "delta", "noise_multiplier", "steps", "batch_size", "n"):
            yield f"plan {name}: {field}", getattr(answer, field)
        for point in answer.curve:
            yield f"plan {name}: epsilon after {point['steps']}", point["epsilon"]
    mixing = Question(n=50_000, batch_size=1000, delta=1e-5, steps=500, noise_multiplier=0.4)
    cells: dict[str, Any] = {"tau_over_lr": (0.15, 0.3), "p": (1.0, 25.0), "max_grad_norm": 20.0}
    for row in solve_mixing(mixing, **cells).rows:
        yield f"mixing tau {row.tau_over_lr} p {row.p}: epsilon", row.epsilon


def problem() -> tuple[torch.nn.Module, TensorDataset]:
    torch.manual_seed(0)
    x = torch.randn(300, 6)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    return model, TensorDataset(x, torch.randint(0, 3, (300,)))


def run(**options: Any) -> Any:
    model, dataset = problem()
    private = winsor.make_private(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=dataset,
        batch_size=30,
        delta=1e-4,
        steps=40,
        seed=1,
        **options,
    )
    for inputs, labels in private.batches(3):
        private.step(F.cross_entropy(private.model(inputs), labels, reduction="none"))
    return private


def runs() -> Iterator[Row]:
    settings: dict[str, dict[str, Any]] = {}
    for rule in rules.all_examples():
        settings[f"{rule!r}"] = {"rule": rule, "epsilon": 3.0}
        settings[f"{rule!r} replace"] = {
            "rule": rule, "epsilon": 3.0, "relation": "replace_one",
        }  # fmt: skip
    flat = rules.Flat(1.0)
    settings["fixed"] = {
        "rule": flat, "epsilon": 3.0, "relation": "replace_one", "sampling": "fixed",
    }  # fmt: skip
    settings["full"] = {"rule": flat, "noise_multiplier": 8.0, "sampling": "full"}
    settings["laplace"] = {"rule": rules.L1(1.0), "noise_multiplier": 2.0, "mechanism": "laplace"}
    settings["modelmix"] = {
        "rule": flat, "noise_multiplier": 0.8, "mechanism": ModelMix(tau_over_lr=0.15),
    }  # fmt: skip
    for name, options in settings.items():
        try:
            private = run(**options)
        except (ConfigurationError, UnsupportedRelation) as refusal:
            yield f"run {name}: refused", type(refusal).__name__
            continue
        yield f"run {name}: noise multiplier", private.noise_multiplier
        yield f"run {name}: epsilon", private.spent().epsilon
        for i, (event, count) in enumerate(private.ledger.history()):
            yield f"run {name}: event {i}", [count, json.dumps(event_to_json(event))]
            relation = private.relation
            yield f"run {name}: event {i} x 500", account([(event, 500)], 1e-6, relation).epsilon
            yield f"run {name}: event {i} delta", account_delta([(event, 50)], 2.0, relation).delta


def estimators() -> Iterator[Row]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 5)) / 3
    labels = (x[:, 0] > 0).astype(int)
    amounts = np.clip(x @ np.arange(5) + generator.standard_t(3, 400), -5, 5)
    for method in ("flat", "averaged", "simple", "iterative"):
        options: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-4, "random_state": 0}
        bound = None if method == "flat" else 3.0
        model = PrivateLogisticRegression(method=method, feature_bound=bound, **options)
        model.fit(x, labels)
        yield f"logistic {method}: epsilon", model.epsilon_
    ridge = PrivateRidge(epsilon=1.0, delta=1e-4, random_state=0, target_range=(-5, 5))
    yield "ridge: epsilon", ridge.fit(x, amounts).epsilon_
    one = clipped_mean(x, radius=2.0, epsilon=1.0, delta=1e-4, random_state=0)
    yield "clipped mean: epsilon", one.guarantee.epsilon
    other = iterative_mean(x, radius=2.0, groups=10, epsilon=1.0, delta=1e-4, random_state=0)
    yield "iterative mean: epsilon", other.guarantee.epsilon


def numbers(families: tuple[str, ...] = ("plans", "runs", "estimators")) -> dict[str, Any]:
    makers = {"plans": plans, "runs": runs, "estimators": estimators}
    with warnings.catch_warnings():  # estimators warn of ranges that were not given
        warnings.simplefilter("ignore")
        return dict(row for family in families for row in makers[family]())


if __name__ == "__main__":
    found = numbers()
    if "--write" in sys.argv:
        STORED.write_text(json.dumps(found, indent=0) + "\n")
    print(f"{len(found)} numbers")
