"""Rows that people really have: other types, gaps, words, other shapes. Refused with what to do.

No message shows a value of a row: it would stand in a log.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Dataset, TensorDataset
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
    losses,
    make,
    mean,
    refused,
    saved,
)

import winsor
from winsor.core import contract as c
from winsor.metrics import ClippedLoss, measure
from winsor.tables import (
    PrivateAdditiveRegressor,
    PrivateLinearRegression,
    PrivateScaler,
    winsorised_mean,
)

SECRET = "4711.25"
FRAME = pd.DataFrame(TABLE, columns=["a", "b", "c"])
WORDS = FRAME.assign(colour=[f"secret {SECRET}"] * N)
GAPS = FRAME.where(np.arange(N)[:, None] + np.zeros(3) != 3)
SECRETS = np.full(N, float(SECRET))


class Given(Dataset):
    """Rows made one by one, and perhaps a length that is not theirs."""

    def __init__(self, row: Any, length: int = N) -> None:
        self.row, self.length = row, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Any:
        return self.row(i)


def of_another() -> StepLR:
    return StepLR(torch.optim.SGD(linear().parameters(), lr=0.1), 1)


def sparse() -> None:
    model = linear()
    make(model=model, optimizer=torch.optim.SparseAdam(model.parameters()))


def with_foreign_parameters() -> None:
    model = linear()
    both = [*model.parameters(), *linear().parameters()]
    make(model=model, optimizer=torch.optim.SGD(both, lr=0.1))


def labels(y: Any) -> TensorDataset:
    return TensorDataset(X, y)


CASES = {
    # -------------------------------------------------------------------------- rows of a training
    "labels in int32": Wrong(lambda: fit(dataset=labels(Y.int())), c.LossError, r"y\.long\(\)"),
    "labels in bool": Wrong(lambda: fit(dataset=labels(Y.bool())), c.LossError, r"y\.long\(\)"),
    "labels below zero": Wrong(lambda: fit(dataset=labels(Y - 1)), c.LossError, "between 0 and"),
    "whole numbers as inputs": Wrong(
        lambda: fit(dataset=TensorDataset(X.long(), Y)), c.LossError, r"TensorDataset\(x\.float\(\)"
    ),
    "NumPy's float64": Wrong(
        lambda: fit(dataset=Given(lambda i: (TABLE[i].astype(np.float64), LABELS[i]))),
        c.LossError,
        r"TensorDataset\(x\.float\(\)",
    ),
    "another width": Wrong(lambda: fit(model=nn.Linear(4, 2)), c.LossError, "width of the first"),
    "images for a linear layer": Wrong(
        lambda: fit(dataset=TensorDataset(X.view(N, 3, 1, 1), Y)), c.LossError, "shape of the rows"
    ),
    "colours that a convolution has not": Wrong(
        lambda: fit(
            model=nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten()),
            dataset=TensorDataset(X.view(N, 1, 3, 1), Y),
        ),
        c.LossError,
        "shape of the rows",
    ),
    "texts as rows": Wrong(
        lambda: fit(dataset=Given(lambda i: (SECRET, LABELS[i]))), c.LossError, "by a tokeniser"
    ),
    "rows of several lengths": Wrong(
        lambda: fit(dataset=Given(lambda i: (torch.zeros(1 + i % 3), 0))),
        c.ConfigurationError,
        "of several shapes.*collate_fn=",
    ),
    "rows that are missing": Wrong(
        lambda: fit(dataset=Given(lambda i: ROWS[i] if i % 2 else None)),
        c.ConfigurationError,
        "of another kind.*collate_fn=",
    ),
    "fewer rows than its length": Wrong(
        lambda: fit(dataset=Given(lambda i: [ROWS[0]][i]), steps=1),
        c.ConfigurationError,
        "Correct its __len__",
    ),
    "a tensor alone": Wrong(lambda: fit(dataset=X), c.LossError, r"TensorDataset\(x, y\)"),
    "a data frame": Wrong(
        lambda: make(dataset=FRAME), c.ConfigurationError, r"table\[columns\]\.to_numpy\("
    ),
    "nothing but gaps": Wrong(
        lambda: fit(dataset=TensorDataset(X * torch.nan, Y)), c.LossError, "gaps in the inputs"
    ),
    "inputs that overflow": Wrong(
        lambda: fit(dataset=TensorDataset(X * torch.inf, Y)), c.LossError, "far too large"
    ),
    # -------------------------------------------------------------------- what goes with the model
    "a run for a model": Wrong(
        lambda: make(model=make()), c.ConfigurationError, "It is a private run already"
    ),
    "foreign parameters too": Wrong(
        with_foreign_parameters, c.ConfigurationError, "trained without protection"
    ),
    "the schedule of another optimiser": Wrong(
        lambda: make(scheduler=of_another()), c.ConfigurationError, "Build it from the one that you"
    ),
    "SparseAdam": Wrong(sparse, c.ConfigurationError, "Use Adam"),
    "epsilon as a tensor": Wrong(
        lambda: make(epsilon=torch.tensor(3.0)), c.ConfigurationError, r"epsilon=float\(\.\.\.\)"
    ),
    "an epsilon beyond all noise": Wrong(
        lambda: make(epsilon=1e9, noise_multiplier=None), c.CalibrationError, "Lower epsilon"
    ),
    # --------------------------------------------------------------------------- tables and means
    "a table with words": Wrong(
        lambda: logistic().fit(WORDS, LABELS), c.ConfigurationError, "columns colour.*PrivateEncod"
    ),
    "one column for a table": Wrong(
        lambda: logistic().fit(SECRETS, LABELS), c.ConfigurationError, r"reshape\(-1, 1\)"
    ),
    "other columns to predict": Wrong(
        lambda: logistic().fit(FRAME, LABELS).predict(FRAME[["a", "b"]]),
        c.ConfigurationError,
        "now missing",
    ),
    "one row to predict": Wrong(
        lambda: logistic().fit(TABLE, LABELS).predict(SECRETS), c.ConfigurationError, "reshape"
    ),
    "amounts for labels": Wrong(
        lambda: logistic().fit(TABLE, SECRETS * TABLE[:, 0]), c.ConfigurationError, "continuous"
    ),
    "words for amounts": Wrong(
        lambda: PrivateLinearRegression(epsilon=1.0).fit(TABLE, WORDS["colour"]),
        c.ConfigurationError,
        "Choose another column, or a classifier",
    ),
    "words for an additive model": Wrong(
        lambda: PrivateAdditiveRegressor(epsilon=1.0).fit(WORDS, TABLE[:, 0]),
        c.ConfigurationError,
        "columns colour",
    ),
    "words to scale": Wrong(
        lambda: PrivateScaler(epsilon=1.0).fit(WORDS), c.ConfigurationError, "columns colour"
    ),
    "words to average": Wrong(
        lambda: mean(WORDS["colour"]), c.ConfigurationError, "Convert it first"
    ),
    "words to measure": Wrong(
        lambda: measure(ClippedLoss(1.0), losses=WORDS["colour"], epsilon=1.0, delta=1e-5),
        c.ConfigurationError,
        "losses must be numbers",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")  # fits of the same rows: said elsewhere
def test_rows_that_do_not_fit_are_refused_with_what_to_do(name):
    assert SECRET not in refused(CASES[name])


def test_fewer_rows_than_before(tmp_path):
    fewer = TensorDataset(X[:100], Y[:100])
    with pytest.raises(c.LedgerError, match="n: 120 in the checkpoint, 100 here"):
        winsor.resume(saved(tmp_path), **arguments(dataset=fewer))


def test_one_row_with_gaps_counts_as_none():
    """Refusing would tell of that row."""
    broken = X.clone()
    broken[3] = torch.nan
    private = fit(dataset=TensorDataset(broken, Y))
    assert all(bool(p.isfinite().all()) for p in private.model.parameters())


@pytest.mark.filterwarnings("ignore")
def test_cells_with_gaps_count_as_zeros():
    """The same for tables: that a fit was refused would tell of the row with the gap."""
    labels = [None, *LABELS.astype(str)[1:]]
    for given, filled in ((GAPS, GAPS.fillna(0.0)), (GAPS.to_numpy(object), GAPS.fillna(0.0))):
        fits = [logistic(random_state=bytes(32)).fit(table, LABELS) for table in (given, filled)]
        np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)
    amounts = [
        PrivateLinearRegression(random_state=bytes(32)).fit(TABLE, GAPS["a"].fillna(fill))
        for fill in (np.nan, 0.0)
    ]
    np.testing.assert_array_equal(amounts[0].coef_, amounts[1].coef_)
    assert set(winsorised_mean(TABLE[:, 0], by=labels, epsilon=1.0).groups) == {"0", "1"}


def test_a_run_under_way_is_not_stopped_by_what_its_rows_are():
    """Before the first release the data holder is told; from then on others may watch."""
    private = make(dataset=TensorDataset(X * torch.nan, Y))

    def loss(model, batch):
        return losses(private, batch)

    with pytest.raises(c.LossError, match="gaps in the inputs"):
        private.check(loss)
    for batch in private.batches(1):
        private.step(losses(private, batch))
    private.check(loss)


@pytest.mark.parametrize(
    ("home", "name", "near"),
    [(winsor, "make_privat", "make_private"), (winsor.rules, "Flatt", "Flat")],
)
def test_misspelt_names_are_told(home, name, near):
    with pytest.raises(AttributeError, match=f"Did you mean '{near}'"):
        getattr(home, name)
