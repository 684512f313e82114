"""Honest trainings for replay, small enough to be run thousands of times. None may raise an alarm.

Rules are found, not listed; each meets samplers, relations, engines, optimisers and mechanisms in
turn, and every estimator its methods.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from winsor import rules
from winsor.core.contract import Neighbouring
from winsor.rules.coordinates import L1
from winsor.tables import (
    AveragedDescent,
    FlatDescent,
    Iterative,
    PrivateLogisticRegression,
    PrivateRadius,
    PrivateRidge,
    PrivateScaler,
    Restarted,
    RobustGD,
    Ruled,
    Simple,
    clipped_mean,
    iterative_mean,
)
from winsor.training.make_private import make_private

ROWS, FEATURES, CLASSES = 24, 3, 2


@dataclass(frozen=True)
class Trial:
    """A training and its data, for `replay`."""

    name: str
    train: Callable[[Any], Any]
    dataset: Any
    absent: Any = None


def table(seed: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    x = generator.standard_t(3, size=(ROWS, FEATURES))
    return x, (x[:, 0] + generator.normal(size=ROWS) > 0).astype(np.int64)


def tensors(seed: int) -> TensorDataset:
    x, y = table(seed)
    return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Dropout(0.5), nn.Linear(4, CLASSES))


def linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def train_network(
    dataset: Any,
    *,
    model: Callable[[], nn.Module] = linear,
    loss: Callable[..., Tensor] = F.cross_entropy,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    in_loop: Callable[..., bool | None] | None = None,
    **options: Any,
) -> Any:
    """A training of three steps. ``in_loop(private, inputs, labels)`` is called before each step
    and ends the loop if it says True."""
    torch.manual_seed(0)
    net = model()
    arguments: dict[str, Any] = {
        "rule": rules.Flat(1.0), "batch_size": 8, "steps": 3, "noise_multiplier": 1.0,
        "delta": 1e-3, **options,
    }  # fmt: skip
    private = make_private(
        model=net, optimizer=optimizer(net.parameters(), lr=0.5), dataset=dataset, **arguments
    )
    for inputs, labels in private.batches():
        if in_loop is not None and in_loop(private, inputs, labels):
            break
        private.step(loss(net(inputs), labels, reduction="none"))
    return private


def honest_trials(seed: int = 0, mechanisms: Sequence[Any] = ()) -> Iterator[Trial]:
    """Without end: the same trainings again and again, each time on other data. ``mechanisms`` of
    other rooms (ModelMix) come from whoever asks."""
    more = [(repr(one), partial(train_network, mechanism=one)) for one in mechanisms]
    for round_ in itertools.count(seed):
        for name, train in (*_networks(round_), *more, *_estimators()):
            data = table(round_) if train.func is _fitted else tensors(round_)
            yield Trial(name, train, data)
        yield from _means(round_)


RELATIONS = [str(relation.value) for relation in Neighbouring]
CIRCUMSTANCES: list[dict[str, Any]] = [
    {},
    {"relation": "replace_one"},
    {"sampling": "fixed", "relation": "replace_one"},
    {"sampling": "full", "batch_size": ROWS},
    {"sampling": "full", "batch_size": ROWS, "relation": "replace_one"},
    {"max_physical_batch_size": 3},
    {"model": perceptron, "optimizer": torch.optim.Adam},
    {"model": perceptron, "iterate": "averaged"},
    {"model": perceptron, "engine": "loop"},
]


def _networks(round_: int) -> Iterator[tuple[str, partial[Any]]]:
    """Every rule, with the next of the circumstances in every round."""
    for number, rule in enumerate(rules.all_examples()):
        options = CIRCUMSTANCES[(round_ + number) % len(CIRCUMSTANCES)]
        words = ", ".join(f"{k}={getattr(v, '__name__', v)}" for k, v in options.items())
        yield f"{rule!r}, {words or 'Poisson'}", partial(train_network, rule=rule, **options)
    yield "Laplace", partial(train_network, rule=L1(1.0), mechanism="laplace")
    yield "dropout", partial(train_network, model=with_dropout)


def _fitted(data: Any, *, estimator: Callable[[], Any]) -> Any:
    return estimator().fit(*data)


def _estimators() -> Iterator[tuple[str, partial[Any]]]:
    by_hand: dict[str, Any] = {"clip": 1.0, "learning_rate": 0.1}
    methods = [
        FlatDescent(steps=3),
        FlatDescent(steps=3, batch_size=6),
        AveragedDescent(batch_size=6, steps=3, **by_hand),
        Restarted(runs=2, batch_size=6, steps=2, **by_hand),
        Simple(steps=3, **by_hand),
        Iterative(steps=2, groups=4, **by_hand),
        Iterative(steps=2, groups=4, grouping="partition", **by_hand),
        RobustGD(scale=1.0, learning_rate=0.1, steps=3),
        Ruled("automatic", {"max_grad_norm": 1.0}, steps=3),
    ]
    for method, relation in itertools.product(methods, RELATIONS):
        for model in (PrivateLogisticRegression, PrivateRidge):
            build = partial(
                model, method=method, relation=relation, noise_multiplier=1.0, feature_bound=3.0
            )
            yield f"{model.__name__}, {method}, {relation}", partial(_fitted, estimator=build)


def _means(seed: int) -> Iterator[Trial]:
    x = table(seed)[0]
    for relation, radius in itertools.product(RELATIONS, (1.0, PrivateRadius(0.1, 10.0))):
        options: dict[str, Any] = {"relation": relation, "radius": radius, "epsilon": 1.0}
        for mean in (
            partial(clipped_mean, **options),
            partial(iterative_mean, groups=6, **options),
            partial(iterative_mean, groups=6, grouping="partition", **options),
        ):
            yield Trial(f"{mean.func.__name__}, {mean.keywords}", mean, x)
        scaler = PrivateScaler(-3, 3, epsilon=1.0, relation=relation)
        yield Trial(f"PrivateScaler, {relation}", scaler.fit, x, absent=np.zeros(FEATURES))
