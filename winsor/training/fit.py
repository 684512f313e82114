"""`winsor.fit`: make_private and its loop in one call, with a progress bar."""

from __future__ import annotations

from typing import Any, Unpack

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.nn import functional as F

from winsor.training.loop import PrivateTraining
from winsor.training.make_private import Arguments, make_private
from winsor.training.rehearsal import Loss


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """Per-row cross-entropy of an (inputs, labels) batch: the default loss of `fit`."""
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels, reduction="none")


def fit(
    loss: Loss = cross_entropy, *, progress: bool = True, **arguments: Unpack[Arguments]
) -> PrivateTraining:
    """Train privately to the end of the planned steps.

    Parameters
    ----------
    loss
        ``loss(model, batch)`` gives one value per row. Default: cross-entropy.
    progress
        Show a progress bar with the epsilon that the finished run will have spent.
    **arguments
        Those of `winsor.make_private`.

    Examples
    --------
    >>> import torch, winsor
    >>> from torch.utils.data import TensorDataset
    >>> x = torch.randn(500, 3)
    >>> model = torch.nn.Linear(3, 2)
    >>> private = winsor.fit(
    ...     model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    ...     dataset=TensorDataset(x, (x[:, 0] > 0).long()), rule=winsor.rules.Flat(1.0),
    ...     batch_size=50, steps=20, epsilon=2.0, delta=1e-4, progress=False,
    ... )
    >>> private.spent().epsilon <= 2.0
    True
    """
    private = make_private(**arguments)
    run(private, loss, progress)
    return private


def run(private: PrivateTraining, loss: Loss = cross_entropy, progress: bool = True) -> None:
    """The loop itself. Shows no value computed from private rows."""
    columns = (
        TextColumn("[bold]training privately"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    total = private.budget.planned_steps
    target = private.budget.epsilon
    note = f"epsilon {target:g} when done" if target is not None else ""
    private.check(loss)
    with Progress(*columns, disable=not progress) as bar:
        task = bar.add_task("train", total=total, completed=private.steps_done, note=note)
        for batch in private.batches():
            private.step(loss(private.model, batch))
            bar.update(task, completed=private.steps_done)
        bar.update(task, completed=private.steps_done)
