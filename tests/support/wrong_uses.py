"""Rows, runs and loops for tests of wrong uses, and what every refusal must be like."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.core import contract as c
from winsor.rules import Flat
from winsor.tables import PrivateLogisticRegression, means

N = 120
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
ROWS = TensorDataset(X, Y)
TABLE, LABELS = X.numpy(), Y.numpy()


def linear(**options: Any) -> nn.Module:
    return nn.Linear(3, 2, **options)


def arguments(**changes: Any) -> dict[str, Any]:
    model = changes.pop("model", None)
    model = linear() if model is None else model
    if "optimizer" not in changes:
        trained = list(model.parameters()) if isinstance(model, nn.Module) else []
        optimizer = torch.optim.SGD(trained or [nn.Parameter(torch.zeros(1))], lr=0.1)
        changes["optimizer"] = optimizer
    given = {
        "model": model,
        "dataset": ROWS,
        "rule": Flat(1.0),
        "batch_size": 30,
        "steps": 2,
        "noise_multiplier": 2.0,
        "delta": 1e-4,
        "seed": 0,
    }
    return {**given, **changes}


def make(**changes: Any) -> winsor.PrivateTraining:
    return winsor.make_private(**arguments(**changes))


def fit(loss: Any = None, **changes: Any) -> winsor.PrivateTraining:
    extra = {k: changes.pop(k) for k in ("evaluate", "callbacks", "views") if k in changes}
    given = () if loss is None else (loss,)
    return winsor.fit(*given, progress=False, **extra, **arguments(**changes))


def losses(private: winsor.PrivateTraining, batch: Any, **options: Any) -> torch.Tensor:
    return F.cross_entropy(private.model(batch[0]), batch[1], **{"reduction": "none", **options})


def loop(body: Callable[[winsor.PrivateTraining, Any], Any], **changes: Any) -> None:
    private = make(**changes)
    for batch in private.batches():
        body(private, batch)


def plain(private: winsor.PrivateTraining, batch: Any) -> None:
    private.step(losses(private, batch))


def saved(path: Any) -> Any:
    make().save(path / "checkpoint.pt")
    return path / "checkpoint.pt"


class Wrong(NamedTuple):
    """A wrong use: what is done, the error, and the words that help."""

    do: Callable[..., Any]
    error: type[Exception]
    words: str


def logistic(**changes: Any) -> PrivateLogisticRegression:
    return PrivateLogisticRegression(**{"epsilon": 1.0, "delta": 1e-5, **changes})


def mean(x: Any = TABLE[:, 0], **changes: Any) -> Any:
    return means.clipped_mean(x, **{"radius": 1.0, "epsilon": 1.0, "delta": 1e-6, **changes})


def refused(case: Wrong, *given: Any) -> str:
    """The message, after what holds for all of them."""
    with warnings.catch_warnings(), pytest.raises(case.error, match=case.words) as caught:
        warnings.simplefilter("ignore")  # torch's own, of schedules and lazy layers
        case.do(*given)
    assert isinstance(caught.value, c.WinsorError)
    assert "0x" not in str(caught.value) and "tensor(" not in str(caught.value)
    assert not re.search(r" \(\d+\)|Theorem|equation", str(caught.value))
    return str(caught.value)
