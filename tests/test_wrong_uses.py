"""Wrong uses that people really make, one line each: the error is typed and says what to do.

Each case names the error's class and words of its message: those that say what to do. A message
must also be one of ours ("must ... Got ..."), not a stranger's, and never show a row.
"""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from wrong_uses import (
    LABELS,
    ROWS,
    TABLE,
    N,
    Wrong,
    X,
    Y,
    arguments,
    fit,
    linear,
    logistic,
    loop,
    losses,
    make,
    mean,
    plain,
    refused,
    saved,
)  # fmt: skip

import winsor
from winsor.core import contract as c
from winsor.metrics import Accuracy
from winsor.rules import Flat
from winsor.tables import PrivateAdditiveRegressor, PrivateLinearRegression


def second_round() -> None:
    private = make()
    for _ in range(2):
        for batch in private.batches():
            plain(private, batch)


def backward_before_step(private: winsor.PrivateTraining, batch: Any) -> None:
    found = losses(private, batch)
    found.mean().backward()
    private.step(found)


def step_twice(private: winsor.PrivateTraining, batch: Any) -> None:
    found = losses(private, batch)
    private.step(found)
    private.step(found)


def optimizer_by_hand(private: winsor.PrivateTraining, batch: Any) -> None:
    plain(private, batch)
    with torch.no_grad():
        next(iter(private.model.parameters())).sub_(0.1)


def without_graph(private: winsor.PrivateTraining, batch: Any) -> None:
    with torch.no_grad():
        found = losses(private, batch)
    private.step(found)


def of_another_model(private: winsor.PrivateTraining, batch: Any) -> None:
    private.step(F.cross_entropy(linear()(batch[0]), batch[1], reduction="none"))


def squares(private: winsor.PrivateTraining, batch: Any) -> None:
    private.step((private.model(batch[0]) - 1) ** 2)


def weights_alone(path: Any) -> Any:
    torch.save(linear().state_dict(), path / "weights.pt")
    return path / "weights.pt"


def pipe(path: Any) -> Any:
    """What must not be replaced by a file; like /dev/null, but nobody would miss it."""
    os.mkfifo(path / "pipe")
    return path / "pipe"


def another_ledger(path: Any) -> None:
    make(ledger=path / "ledger.jsonl").detach()
    make(ledger=path / "ledger.jsonl", noise_multiplier=3.0)


def same_seed_and_ledger(path: Any) -> None:
    private = make(ledger=path / "ledger.jsonl")
    for batch in private.batches():
        plain(private, batch)
    private.detach()
    again = make(ledger=path / "ledger.jsonl")
    for batch in again.batches():
        plain(again, batch)


def beyond_the_budget() -> None:
    private = make(epsilon=2.0, noise_multiplier=None)
    for batch in private.batches(5):
        plain(private, batch)


def frozen_later() -> None:
    private = make()
    private.model.requires_grad_(False)
    for batch in private.batches():
        plain(private, batch)


def two_runs_on_one_model() -> None:
    model = linear()
    first = make(model=model)
    try:
        make(model=model)
    finally:
        first.detach()


class Stream(IterableDataset):
    def __iter__(self):
        yield from ROWS


CASES = {
    # ------------------------------------------------------------------------------ the dataset
    "a loader": Wrong(
        lambda: make(dataset=DataLoader(ROWS)), c.ConfigurationError, r"dataset=loader\.dataset"
    ),
    "a tuple of tensors": Wrong(
        lambda: make(dataset=(X, Y)), c.ConfigurationError, r"TensorDataset\(x, y\)"
    ),
    "a list of arrays": Wrong(
        lambda: make(dataset=[TABLE, LABELS]), c.ConfigurationError, r"TensorDataset\(x, y\)"
    ),
    "a dictionary": Wrong(
        lambda: make(dataset={"x": X, "y": Y}), c.ConfigurationError, "Its keys are no rows"
    ),
    "a path": Wrong(lambda: make(dataset="rows.csv"), c.ConfigurationError, "Load it first"),
    "no dataset": Wrong(lambda: make(dataset=None), c.ConfigurationError, "Load it first"),
    "a stream": Wrong(lambda: make(dataset=Stream()), c.ConfigurationError, "into a list first"),
    "no rows": Wrong(
        lambda: make(dataset=TensorDataset(X[:0], Y[:0])), c.ConfigurationError, "at least one row"
    ),
    # --------------------------------------------------------------------------------- the rule
    "the name of a rule": Wrong(
        lambda: make(rule="flat"), c.ConfigurationError, r"Did you mean winsor\.rules\.Flat\(max_gr"
    ),
    "the class of a rule": Wrong(
        lambda: make(rule=Flat), c.ConfigurationError, r"Got the class Flat instead. Give it its"
    ),
    "a norm for a rule": Wrong(
        lambda: make(rule=1.5), c.ConfigurationError, r"Did you mean rule=winsor\.rules\.Flat\(1\.5"
    ),
    "no rule": Wrong(lambda: make(rule=None), c.ConfigurationError, r"winsor\.rules\.Flat\(1\.0\)"),
    "a negative norm": Wrong(lambda: Flat(-1.0), c.ConfigurationError, "max_grad_norm must be a p"),
    # -------------------------------------------------------------------------------- the model
    "all frozen": Wrong(
        lambda: make(model=linear().requires_grad_(False)), c.UnsupportedModel, "requires_grad_"
    ),
    "no parameters": Wrong(lambda: make(model=nn.ReLU()), c.UnsupportedModel, "without parameters"),
    "the class of a model": Wrong(
        lambda: make(model=nn.Linear), c.ConfigurationError, "Build it first"
    ),
    "compiled": Wrong(
        lambda: make(model=torch.compile(linear())), c.UnsupportedModel, "given to torch.compile"
    ),
    "on the device meta": Wrong(
        lambda: make(model=linear(device="meta")), c.UnsupportedModel, "to_empty"
    ),
    "in half precision": Wrong(
        lambda: make(model=linear(dtype=torch.float16)), c.UnsupportedModel, "torch.autocast"
    ),
    "BatchNorm": Wrong(
        lambda: make(model=nn.Sequential(linear(), nn.BatchNorm1d(2))),
        c.UnsupportedModel,
        r"winsor\.gradients\.replace_batchnorm\(model\)",
    ),
    "lazy layers": Wrong(
        lambda: make(
            model=nn.Sequential(linear(), nn.LazyLinear(2)), optimizer=torch.optim.SGD([X], lr=0.1)
        ),
        c.UnsupportedModel,
        "one forward pass on made-up data",
    ),
    "DataParallel": Wrong(
        lambda: make(model=nn.DataParallel(linear())), c.UnsupportedModel, "torchrun"
    ),
    "two runs on one model": Wrong(two_runs_on_one_model, c.ProtocolError, "Detach the other run"),
    "frozen after make_private": Wrong(frozen_later, c.ProtocolError, "Freeze parameters before"),
    # ---------------------------------------------------------------------------- the optimiser
    "the class of an optimiser": Wrong(
        lambda: make(optimizer=torch.optim.SGD), c.ConfigurationError, r"model\.parameters\(\), lr"
    ),
    "the name of an optimiser": Wrong(
        lambda: make(optimizer="adam"), c.ConfigurationError, r"torch\.optim\.SGD"
    ),
    "of other parameters": Wrong(
        lambda: make(optimizer=torch.optim.SGD(linear().parameters(), lr=0.1)),
        c.ConfigurationError,
        r"Build it from model\.parameters\(\)",
    ),
    "a schedule by name": Wrong(
        lambda: make(scheduler="cosine"), c.ConfigurationError, "CosineAnnealingLR"
    ),
    "the class of a schedule": Wrong(
        lambda: make(scheduler=StepLR), c.ConfigurationError, "stepped once per logical step"
    ),
    "a schedule that needs a metric": Wrong(
        lambda: make(scheduler=ReduceLROnPlateau(torch.optim.SGD([X.clone()], lr=0.1))),
        c.ConfigurationError,
        "Step it yourself",
    ),
    # ------------------------------------------------------------------------------ the numbers
    "epsilon in quotes": Wrong(
        lambda: make(epsilon="3", noise_multiplier=None), c.ConfigurationError, "quotes: epsilon=3"
    ),
    "batch_size in quotes": Wrong(
        lambda: make(batch_size="30"), c.ConfigurationError, "without quotes: batch_size=30"
    ),
    "steps in quotes": Wrong(lambda: make(steps="5"), c.ConfigurationError, "quotes: steps=5"),
    "half a step": Wrong(lambda: make(steps=2.5), c.ConfigurationError, "positive whole number"),
    "a negative epsilon": Wrong(
        lambda: make(epsilon=-1, noise_multiplier=None), c.ConfigurationError, "positive finite"
    ),
    "an infinite epsilon": Wrong(
        lambda: make(epsilon=float("inf")), c.ConfigurationError, "positive finite number. Got inf"
    ),
    "no noise": Wrong(lambda: make(noise_multiplier=0), c.ConfigurationError, "positive finite"),
    "neither epsilon nor noise": Wrong(
        lambda: make(noise_multiplier=None), c.ConfigurationError, "give epsilon"
    ),
    "delta above 1/n": Wrong(lambda: make(delta=0.1), c.ConfigurationError, "a smaller delta, or"),
    "delta in quotes": Wrong(lambda: make(delta="1e-5"), c.ConfigurationError, "quotes: delta=1e"),
    "a batch beyond n": Wrong(
        lambda: make(batch_size=1000), c.ConfigurationError, 'Use sampling="full"'
    ),
    "no length": Wrong(lambda: make(steps=None), c.ConfigurationError, "either epochs or steps"),
    "two lengths": Wrong(lambda: make(epochs=3), c.ConfigurationError, "either epochs or steps"),
    "too little budget for a step": Wrong(
        lambda: make(epsilon=0.01, noise_multiplier=0.5), c.CalibrationError, "Raise epsilon"
    ),
    "a physical batch in quotes": Wrong(
        lambda: make(max_physical_batch_size="8"), c.ConfigurationError, "max_physical_batch_size=8"
    ),
    "a seed in quotes": Wrong(lambda: make(seed="42"), c.ConfigurationError, "a whole number, or"),
    # ------------------------------------------------------------------------------- the options
    "a misspelt argument": Wrong(
        lambda: make(noise_multipler=1.0), c.UnknownArgument, "Did you mean noise_multiplier="
    ),
    "the learning rate": Wrong(
        lambda: make(lr=0.1), c.UnknownArgument, r"torch\.optim\.SGD\(model\.parameters\(\), lr="
    ),
    "Opacus's max_grad_norm": Wrong(
        lambda: make(max_grad_norm=1.0), c.UnknownArgument, r"rule=winsor\.rules\.Flat\(max_grad"
    ),
    "another relation": Wrong(
        lambda: make(relation="replace"), c.ConfigurationError, "Did you mean 'replace_one'"
    ),
    "shuffling": Wrong(lambda: make(sampling="shuffle"), c.ConfigurationError, "one of poisson"),
    "another engine": Wrong(lambda: make(engine="hooks"), c.ConfigurationError, "one of auto"),
    "another mechanism": Wrong(
        lambda: make(mechanism="gauss"), c.ConfigurationError, "Did you mean 'gaussian'"
    ),
    "the best iterate": Wrong(lambda: make(iterate="best"), c.ConfigurationError, "iterate must"),
    "a radius for a ball": Wrong(lambda: make(ball=3.0), c.ConfigurationError, r"winsor\.Ball\(r"),
    "a collate function by name": Wrong(
        lambda: make(collate_fn="pad"), c.ConfigurationError, "a function of a list of rows"
    ),
    "too few persons": Wrong(lambda: make(unit=[1, 2]), c.ConfigurationError, "one identifier for"),
    # ---------------------------------------------------------------------------------- the loop
    "backward before step": Wrong(
        lambda: loop(backward_before_step), c.ProtocolError, "Remove that line"
    ),
    "batches() in every epoch": Wrong(second_round, c.ProtocolError, r"private\.epochs\(\)"),
    "a scalar loss": Wrong(
        lambda: loop(lambda p, b: p.step(losses(p, b, reduction="mean"))),
        c.LossError,
        'Use reduction="none"',
    ),
    "a number for a loss": Wrong(
        lambda: loop(lambda p, b: p.step(losses(p, b, reduction="mean").item())),
        c.LossError,
        'Use reduction="none"',
    ),
    "a loss per output": Wrong(
        lambda: loop(squares), c.LossError, r"losses\.flatten\(1\)\.mean\(1\)"
    ),
    "a mean for every row": Wrong(
        lambda: loop(lambda p, b: p.step(losses(p, b, reduction="mean").expand(len(b[0])))),
        c.UnsupportedModel,
        "rows must not mix",
    ),
    "a detached loss": Wrong(
        lambda: loop(lambda p, b: p.step(losses(p, b).detach())), c.LossError, r"\.detach\(\)"
    ),
    "a loss without graph": Wrong(lambda: loop(without_graph), c.LossError, "outside torch.no_gr"),
    "the loss of another model": Wrong(
        lambda: loop(of_another_model), c.LossError, "Call private.model on the batch"
    ),
    "no step": Wrong(lambda: loop(lambda p, b: None), c.ProtocolError, "one private.step"),
    "two steps for a batch": Wrong(
        lambda: loop(step_twice), c.ProtocolError, "once for each batch"
    ),
    "a step outside": Wrong(
        lambda: (p := make()).step(losses(p, (X, Y))), c.ProtocolError, "inside `for batch in"
    ),
    "weights changed by hand": Wrong(
        lambda: loop(optimizer_by_hand), c.UnsoundRelease, r"private\.replacing_weights\(\)"
    ),
    "beyond the budget": Wrong(beyond_the_budget, c.BudgetExceeded, "Plan a new run"),
    "another noise by hand": Wrong(
        lambda: setattr(make(), "noise_multiplier", 0.1), c.UnsoundRelease, "Build a new run"
    ),
    "steps in quotes for batches": Wrong(
        lambda: next(make().batches("3")), c.ConfigurationError, "quotes: steps=3"
    ),
    "delta in quotes for spent": Wrong(
        lambda: make().spent("1e-5"), c.ConfigurationError, "quotes: delta=1e-5"
    ),
    # --------------------------------------------------------------------------------------- fit
    "a module for a loss": Wrong(
        lambda: fit(nn.CrossEntropyLoss()), c.ConfigurationError, "Write lambda model, batch"
    ),
    "the name of a loss": Wrong(
        lambda: fit("cross_entropy"), c.ConfigurationError, "Write lambda model, batch"
    ),
    "a loss of nothing": Wrong(lambda: fit(lambda m, b: None), c.LossError, "one value per row"),
    "targets of a regression": Wrong(
        lambda: fit(dataset=TensorDataset(X, X[:, 0])), c.LossError, "give a loss of your own"
    ),
    "labels in a column": Wrong(
        lambda: fit(dataset=TensorDataset(X, Y[:, None])), c.LossError, "one whole number per row"
    ),
    "labels from one": Wrong(
        lambda: fit(dataset=TensorDataset(X, Y + 1)), c.LossError, "between 0 and the number of"
    ),
    "no labels": Wrong(lambda: fit(dataset=TensorDataset(X)), c.LossError, "must be pairs"),
    "rows with names": Wrong(
        lambda: fit(dataset=[{"x": X[i], "y": Y[i]} for i in range(N)]),
        c.LossError,
        "a dictionary of x, y",
    ),
    "rows in float64": Wrong(
        lambda: fit(dataset=TensorDataset(X.double(), Y)), c.LossError, r"TensorDataset\(x\.float"
    ),
    "a metric for an evaluation": Wrong(
        lambda: fit(evaluate=Accuracy()), c.ConfigurationError, r"Evaluation\(\{name: metric\}"
    ),
    "a callback by name": Wrong(
        lambda: fit(callbacks=["wandb"]), c.ConfigurationError, r"callbacks=\[print\]"
    ),
    # ------------------------------------------------------------------------- tables and means
    "a misspelt method": Wrong(
        lambda: logistic(method="whitend").fit(TABLE, LABELS),
        c.ConfigurationError,
        "one of whitened, .*Did you mean 'whitened'",
    ),
    "sdg": Wrong(
        lambda: PrivateLinearRegression(epsilon=1.0, method="sdg").fit(TABLE, TABLE[:, 0]),
        c.ConfigurationError,
        "method must be one of restarted, robust_gd, .*suffstats.*DP-SGD is 'flat'",
    ),
    "an estimator's epsilon in quotes": Wrong(
        lambda: logistic(epsilon="1").fit(TABLE, LABELS), c.ConfigurationError, "without quotes"
    ),
    "labels of another length": Wrong(
        lambda: logistic().fit(TABLE, LABELS[:5]), c.ConfigurationError, "inconsistent numbers"
    ),
    "one class": Wrong(
        lambda: logistic().fit(TABLE, LABELS * 0), c.ConfigurationError, "at least two classes"
    ),
    "a table of words": Wrong(
        lambda: PrivateAdditiveRegressor(epsilon=1.0).fit(TABLE.astype(str), TABLE[:, 0]),
        c.ConfigurationError,
        "PrivateEncoder",
    ),
    "parameters from the rows": Wrong(
        lambda: logistic(method="simple").fit(TABLE, LABELS),
        c.ConfigurationError,
        "feature_bound must be given",
    ),
    "a mean without radius": Wrong(
        lambda: mean(radius=None), c.ConfigurationError, r"radius=R, .*moments=\(p, M\), .*winsoris"
    ),
    "a radius in quotes": Wrong(lambda: mean(radius="1"), c.ConfigurationError, "quotes: radius=1"),
    "words instead of numbers": Wrong(
        lambda: mean(np.array(["a", "b"])), c.ConfigurationError, "Convert it first"
    ),
    "norms by their file": Wrong(
        lambda: winsor.tails.fit("norms.npy"), c.ConfigurationError, r"numpy\.load\(path\)"
    ),
    "a recipe in quotes": Wrong(
        lambda: winsor.recipe(n="100", d=3, epsilon=1.0, delta=1e-5),
        c.ConfigurationError,
        "quotes: n=100",
    ),
}

WITH_FILES = {
    "another rule": Wrong(
        lambda path: winsor.resume(saved(path), **arguments(rule=Flat(2.0))),
        c.LedgerError,
        r"rule: Flat\(max_grad_norm=1\.0\) in the checkpoint, Flat\(max_grad_norm=2\.0\) here",
    ),
    "another batch size": Wrong(
        lambda path: winsor.resume(saved(path), **arguments(batch_size=20)),
        c.LedgerError,
        "rate: 0.25 in the checkpoint",
    ),
    "no checkpoint": Wrong(
        lambda path: winsor.resume(path / "none.pt", **arguments()), c.LedgerError, "no such file"
    ),
    "a folder": Wrong(
        lambda path: winsor.resume(path, **arguments()), c.LedgerError, "Got a folder instead"
    ),
    "weights alone": Wrong(
        lambda path: winsor.resume(weights_alone(path), **arguments()),
        c.LedgerError,
        "weights alone start a new run",
    ),
    "a ledger of another configuration": Wrong(
        another_ledger, c.LedgerError, "noise_multiplier: ledger 2.0, run 3.0"
    ),
    "the same seed and ledger": Wrong(
        same_seed_and_ledger, c.LedgerError, "another seed or ledger"
    ),
    "a folder for a ledger": Wrong(
        lambda path: make(ledger=path), c.LedgerError, "a path in a writable directory"
    ),
    "a folder for a checkpoint": Wrong(
        lambda path: make().save(path), c.LedgerError, "give a writable path"
    ),
    "a device for a checkpoint": Wrong(
        lambda path: make().save(pipe(path)), c.LedgerError, "Not a regular file"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_use_is_refused_with_what_to_do(name):
    refused(CASES[name])


@pytest.mark.parametrize("name", WITH_FILES)
def test_a_wrong_file_is_refused_with_what_to_do(name, tmp_path):
    refused(WITH_FILES[name], tmp_path)


def run_on_a_full_disk(path: Any) -> None:
    private = make(ledger=path / "ledger.jsonl", steps=5)
    for number, batch in enumerate(private.batches()):
        if number == 2:
            os.fsync = no_room
        plain(private, batch)


def no_room(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


FULL = {
    "a ledger": Wrong(run_on_a_full_disk, c.LedgerError, "No space left.*Nothing was released"),
    "a checkpoint": Wrong(
        lambda path: (p := make(), setattr(os, "fsync", no_room), p.save(path / "x.pt")),
        c.LedgerError,
        "No space left.*Make room",
    ),
    "a key": Wrong(
        lambda path: (
            setattr(os, "fsync", no_room),
            make(ledger=path / "l.jsonl", seed=None, mechanism=winsor.ModelMix(tau_over_lr=0.1)),
        ),
        c.LedgerError,
        "cannot write the key .*No space left",
    ),
}


@pytest.mark.parametrize("name", FULL)
def test_a_full_disk_is_said_and_not_masked(name, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", os.fsync)  # put back at the end
    refused(FULL[name], tmp_path)
    assert not [*tmp_path.glob(".*.new"), *tmp_path.glob("*.key")], "what was begun is removed"


def test_there_are_at_least_forty():
    assert len(CASES) + len(WITH_FILES) >= 40


def test_right_uses_that_look_wrong():
    """A list of pairs is a dataset; a loop over some steps may be repeated; eval is allowed."""
    private = make(dataset=[(X[i], Y[i]) for i in range(N)], model=linear().eval())
    for _ in range(2):
        for batch in private.batches(1):
            plain(private, batch)
    assert private.steps_done == 2
    probabilities = F.one_hot(Y, 2).float()
    assert fit(dataset=TensorDataset(X, probabilities)).steps_done == 2
