"""`winsor.fit`: make_private and its loop in one call, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from winsor.checks import whole
from winsor.training.evaluation import Evaluation, refuse_units, with_looks
from winsor.training.grouping import Views, views_of
from winsor.training.loop import PrivateTraining
from winsor.training.make_private import Arguments, make_private
from winsor.training.rehearsal import Loss


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """Per-row cross-entropy of an (inputs, labels) batch: the default loss of `fit`."""
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels, reduction="none")


def fit(
    loss: Loss = cross_entropy,
    *,
    progress: bool = True,
    evaluate: Evaluation | None = None,
    augment: Callable[[Any], Any] | None = None,
    views: int = 1,
    **arguments: Unpack[Arguments],
) -> PrivateTraining:
    """Train privately to the end of the planned steps.

    Parameters
    ----------
    loss
        ``loss(model, batch)`` gives one value per row. Default: cross-entropy.
    progress
        Show a progress bar with the epsilon that the finished run will have spent.
    evaluate
        Metrics to measure on private rows along the way (`Evaluation`), within the same epsilon.
        They leave through the door: the bar shows them with their intervals, and shows nothing
        else about rows. Metrics on public rows are yours to compute.
    augment, views
        Average every row's gradient over ``views`` augmented views of it before it is clipped:
        less variance at the same privacy, for ``views`` times the computation. ``augment(batch)``
        gets a batch in which every row stands ``views`` times in succession, and changes each by
        itself. ``max_physical_batch_size`` counts rows, not views.
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
    target = arguments.get("epsilon")
    if evaluate is not None:
        refuse_units(arguments.get("unit") is not None)
        arguments = with_looks(arguments, evaluate)
    augmented = views_of(augment, whole("views", views), arguments.get("group_size", 1))
    if augmented is not None:
        arguments["group_size"] = augmented.count
    private = make_private(**arguments)
    run(private, loss, progress, evaluate, arguments["dataset"], target, augmented)
    return private


def run(
    private: PrivateTraining,
    loss: Loss = cross_entropy,
    progress: bool = True,
    evaluate: Evaluation | None = None,
    rows: Dataset[Any] | None = None,
    target: float | None = None,
    views: Views | None = None,
) -> None:
    """The loop itself. Shows no value computed from private rows that did not pass the door.

    ``rows`` are those that ``evaluate`` looks at if it names none, ``target`` the epsilon that the
    noise was chosen for.
    """
    of_batch = loss if views is None else views.each(loss)
    columns = (
        TextColumn("[bold]training privately"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    total = private.budget.planned_steps
    target = private.budget.epsilon if target is None else target
    goal = f"epsilon {target:g} when done" if target is not None else ""
    looked_at = rows if evaluate is None or evaluate.rows is None else evaluate.rows
    marks = set() if evaluate is None else evaluate.marks(total)
    private.check(loss if views is None else views.averaged(loss))
    with Progress(*columns, disable=not progress) as bar:
        task = bar.add_task("train", total=total, completed=private.steps_done, note=goal)

        def after(step: int, until: int) -> None:
            """Look if a look became due since ``step``: an empty batch passes by in silence."""
            done = private.steps_done
            note = goal
            if evaluate is not None and looked_at is not None:
                for _ in marks & set(range(step + 1, min(done, until) + 1)):
                    evaluate.look(private, looked_at)
                note = "  ".join(filter(None, (goal, evaluate.in_words())))
            bar.update(task, completed=done, note=note)

        before = private.steps_done
        for batch in private.batches():
            private.step(of_batch(private.model, batch))
            after(before, total - 1)  # the last look is at the iterate that is released
            before = min(private.steps_done, total - 1)
        after(before, total)
