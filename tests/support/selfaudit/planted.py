"""Trainings with one planted mistake each. Replay must find every one.

Most are the ordinary loop of `make_private` with a line that looks innocent; winsor refuses some of
them by itself, with a typed error, which counts as well. Those ``by hand`` release through a door
of their own, where nothing but replay can see what happens around it.

Out of reach, because no pair of runs shows them: noise of a lower precision or of a wrong size
(`winsor audit mechanisms` and `mutants` test the law of the noise), and a wrong division of delta
(the ledger is the same; the accountant's tests own that).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from selfaudit.honest_trials import CLASSES, FEATURES, Trial, linear, table, tensors, train_network
from selfaudit.mistakes import (
    CentredOutputs,
    ClaimFromBatch,
    Gated,
    HalfFlat,
    MedianThreshold,
    OneDraw,
    RankAtC1,
    RawSums,
    RealisedMean,
    Remembering,
    RoundedUp,
    Silent,
    Standardised,
    hard_examples,
    mixed_up,
    relative_loss,
)
from winsor.core.contract import Bounded, Neighbouring, Sensitivity
from winsor.core.door import Door
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.noise.source import NoiseSource
from winsor.core.randomness import new_key
from winsor.core.sampling.samplers import Poisson
from winsor.tables import FlatDescent, PrivateLogisticRegression, clipped_mean

Train = Callable[[Any], Any]


def planted(seed: int = 0) -> Iterator[Trial]:
    """Every planted mistake, on the data of ``seed``."""
    for name, train in _NETWORKS.items():
        yield Trial(name, train, tensors(seed))
    for name, train in _TABLES.items():
        yield Trial(name, train, table(seed))


# ----------------------------------------------------------------------------------- in the loop


def raw_step(private: Any, inputs: Tensor, labels: Tensor) -> None:
    """Plain SGD on the batch, beside the private step."""
    weights = list(private.model.parameters())
    with torch.enable_grad():
        loss = F.cross_entropy(inputs @ weights[0].T + weights[1], labels)
    for weight, grad in zip(weights, torch.autograd.grad(loss, weights), strict=True):
        weight.data.sub_(grad, alpha=0.1)


def edited(private: Any, inputs: Tensor, labels: Tensor) -> None:
    """The bias set from the batch."""
    private.model.bias.data[0] = inputs.mean()


def stops_early(private: Any, inputs: Tensor, labels: Tensor) -> bool:
    """Stops when the loss on the private rows is small, or explodes."""
    rows, classes = private._feed.dataset.tensors
    with torch.no_grad():
        loss = float(F.cross_entropy(F.linear(rows, *private.model.parameters()), classes))
    print(f"loss {loss:.3f}")
    return not loss < 50


def tuned_rate(private: Any, inputs: Tensor, labels: Tensor) -> None:
    """A learning rate that follows the size of the batch's inputs."""
    for group in private._update.optimizer.param_groups:
        group["lr"] = 0.5 / (1 + float(inputs.norm()))


# ------------------------------------------------------------------------------------ whole scripts


def twice_the_same_seed(dataset: Any) -> Any:
    """Other labels under the same noise: the difference of the releases has none."""
    rows, labels = dataset.tensors
    other = TensorDataset(rows, 1 - labels)
    return [train_network(data, seed=7) for data in (dataset, other)]


def scaled_by_its_own_data(dataset: Any) -> Any:
    rows, labels = dataset.tensors
    scaled = (rows - rows.mean(0)) / rows.std(0)
    return train_network(TensorDataset(scaled, labels))


def class_weights(dataset: Any) -> Any:
    counts = torch.bincount(dataset.tensors[1], minlength=CLASSES) + 1.0
    loss = partial(F.cross_entropy, weight=counts.sum() / counts)
    return train_network(dataset, loss=lambda a, b, reduction: loss(a, b, reduction=reduction))


def starts_at_class_means(dataset: Any) -> Any:
    rows, labels = dataset.tensors

    def model() -> nn.Module:
        net = linear()
        means = [rows[labels == c].mean(0) for c in range(CLASSES)]
        net.weight.data.copy_(torch.stack(means).nan_to_num(0.0))  # type: ignore[operator]
        return net

    return train_network(dataset, model=model)


def returns_accuracy(dataset: Any) -> Any:
    private = train_network(dataset)
    rows, labels = dataset.tensors
    with torch.no_grad():
        return private, F.cross_entropy(private.model(rows), labels)


def by_hand(
    dataset: Any,
    mechanism: type[Gaussian] = Gaussian,
    source: type[NoiseSource] = NoiseSource,
    divide: str = "expected",
    beside: str = "",
    sampler: Callable[[int, float], Poisson] = Poisson,
) -> nn.Module:
    """DP-SGD for least squares, written out, with a door of its own."""
    rows, labels = dataset.tensors
    sampling = sampler(len(rows), 0.34)
    ledger, key = Ledger({"method": "by hand"}), new_key()
    door = Door(ledger, mechanism(1.0), sampling, Neighbouring.ADD_OR_REMOVE_ONE, key)
    door.noise = source(key, prefetch=False)
    weights, seen = torch.zeros(FEATURES), torch.zeros(FEATURES)
    for step in range(4):
        picked = torch.from_numpy(sampling.indices(key, step))
        x, y = rows[picked], labels[picked].float()
        grads = ((x @ weights - y)[:, None] * x).nan_to_num(0.0, 1e30, -1e30).clamp(-1e15, 1e15)
        norms = grads.double().norm(dim=1).clamp_min(1.0)
        total = (grads / norms[:, None].float()).sum(0)
        if divide == "before":
            total = total * (len(rows) * 0.34) / max(1, len(picked))
        claim = Sensitivity.per_sample(1.001, "rows clipped to 1 one by one")
        released = door.release(step, {"grad": Bounded(total, claim)}).values["grad"]
        size = max(1, len(picked)) if divide == "after" else len(rows) * 0.34
        weights = weights - 0.5 * released / size
        if beside == "raw gradient" and len(picked):
            weights = weights - 0.1 * grads.clamp(-1, 1).mean(0)
        if beside == "running mean":
            seen = 0.9 * seen + 0.1 * x.sum(0)
        if beside == "row" and len(picked):
            seen = x[-1]
    model = nn.Linear(FEATURES, 1, bias=False)
    model.weight.data.copy_(weights)
    model.register_buffer("seen", seen)
    return model


class Scored(PrivateLogisticRegression):
    """Keeps its training score as an attribute."""

    def fit(self, X: Any, y: Any, unit: Any = None) -> Any:
        super().fit(X, y)
        self.score_ = float(np.mean(self.decision_function(X)))
        return self


# ----------------------------------------------------------------------------------------- the list


def _flat_fit(data: Any, model: type[PrivateLogisticRegression], **options: Any) -> Any:
    return model(method=FlatDescent(steps=3, **options), noise_multiplier=1.0).fit(*data)


def _built(model: Callable[..., nn.Module], *what: str) -> Callable[[], nn.Module]:
    return partial(model, *what, FEATURES, CLASSES, bias=True)


def _of_network(**options: Any) -> Train:
    return partial(train_network, **options)


_NETWORKS: dict[str, Train] = {
    "noise reused over two sums": twice_the_same_seed,
    "noise reused between steps, by hand": partial(by_hand, source=OneDraw),
    "no noise, by hand": partial(by_hand, mechanism=Silent),
    "after returns raw sums": _of_network(rule=RawSums(1.0)),
    "x - h.mean(0).detach()": _of_network(model=_built(CentredOutputs)),
    "L / L.mean().detach()": _of_network(loss=relative_loss),
    "inputs standardised by the batch": _of_network(model=_built(Standardised)),
    "a gate that a batch opens": _of_network(model=_built(Gated)),
    "a running mean in a buffer": _of_network(model=_built(Remembering, "mean")),
    "a row in a buffer": _of_network(model=_built(Remembering, "row")),
    "a running mean in a buffer, by hand": partial(by_hand, beside="running mean"),
    "a row in a buffer, by hand": partial(by_hand, beside="row"),
    "a row in a frozen weight": _of_network(model=_built(Remembering, "frozen")),
    "q rounded up": _of_network(sampling=RoundedUp(24, 1 / 3)),
    "q rounded up, by hand": partial(by_hand, sampler=RoundedUp),
    "divided by the realised size": _of_network(rule=RealisedMean(1.0)),
    "divided by the realised size, by hand": partial(by_hand, divide="before"),
    "released sum divided by the realised size, by hand": partial(by_hand, divide="after"),
    "clipped to the median of the batch": _of_network(rule=MedianThreshold(1.0)),
    "claim from the batch": _of_network(rule=ClaimFromBatch(1.0)),
    "early stopping on private rows": _of_network(in_loop=stops_early),
    "a step on raw gradients": _of_network(in_loop=raw_step),
    "a step on raw gradients, by hand": partial(by_hand, beside="raw gradient"),
    "a bias set from the batch": _of_network(in_loop=edited),
    "a learning rate set from the batch": _of_network(in_loop=tuned_rate),
    "data scaled by themselves": scaled_by_its_own_data,
    "class weights from the labels": class_weights,
    "weights start at class means": starts_at_class_means,
    "training loss returned": returns_accuracy,
    "rows harder than the average": _of_network(loss=hard_examples),
    "rows mixed up": _of_network(loss=mixed_up),
    "rank cut accounted at c1": _of_network(
        rule=RankAtC1(0.1, 0.01, selection="rank", rank_by="norm", tail_fraction=0.2, seed=0),
        sampling="full",
        batch_size=24,
    ),
    "half the sensitivity": _of_network(rule=HalfFlat(0.1)),
}

_TABLES: dict[str, Train] = {
    "centre from the data": lambda data: clipped_mean(
        data[0], radius=1.0, epsilon=1.0, centre=data[0].mean(0)
    ),
    "radius from the data": lambda data: clipped_mean(
        data[0], epsilon=1.0, radius=float(np.linalg.norm(data[0], axis=1).max())
    ),
    "a score kept by an estimator": partial(_flat_fit, model=Scored),
    "learning rate from the features": lambda data: _flat_fit(
        data, PrivateLogisticRegression, learning_rate=1 / float(np.abs(data[0]).max())
    ),
}
