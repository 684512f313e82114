"""`winsor.fit`: make_private and its loop in one call, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from winsor.core.checks import whole
from winsor.core.contract import ConfigurationError, LossError
from winsor.training.callbacks import Callbacks, as_list
from winsor.training.checks.arguments import fitting, refuse_no_loss, refuse_wrong_kinds
from winsor.training.checks.trial_pass import Loss
from winsor.training.evaluation import Evaluation, refuse_units, with_looks
from winsor.training.grouping import Augmentations, augmentations_of
from winsor.training.loop import PrivateTraining
from winsor.training.make_private import Arguments, make_private
from winsor.training.progress import make_progress

UNSUITABLE = (torch.bool, torch.int8, torch.int16, torch.int32)
"""Whole numbers that torch does not take as classes."""


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """Compute the cross-entropy of each row of (inputs, labels): the default loss of `fit`."""
    if not (isinstance(batch, list | tuple) and len(batch) == 2):
        raise _not_for_classes(
            f"rows must be pairs (inputs, label), such as TensorDataset(x, y) has. Got "
            f"{_parts(batch)} instead"
        )
    inputs, labels = batch
    is_tensor = isinstance(labels, Tensor)
    if not is_tensor or labels.ndim != 1 + labels.dtype.is_floating_point:  # float: probabilities
        got = f"{labels.dtype} of shape {tuple(labels.shape)}" if is_tensor else type(labels)
        raise _not_for_classes(f"labels must be one whole number per row. Got {got} instead")
    if labels.dtype in UNSUITABLE:
        raise LossError(
            f"labels must be torch.int64. Got {labels.dtype} instead. Convert them once, before "
            "training: TensorDataset(x, y.long())."
        )
    outputs = model(inputs)
    try:
        return F.cross_entropy(outputs, labels, reduction="none")
    except (IndexError, RuntimeError, TypeError) as error:
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise _not_for_classes(
            "labels must lie between 0 and the number of outputs, less one; the model must give "
            f"one output per class. Got outputs of shape {shape} for {len(labels)} rows instead"
        ) from error


def _not_for_classes(problem: str) -> LossError:
    return LossError(
        f"{problem}: the default loss is cross-entropy of (inputs, labels). Change the rows, or "
        'give a loss of your own: winsor.fit(lambda model, batch: F.mse_loss(..., reduction="none")'
        ", ...)."
    )


def _parts(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a dictionary of {', '.join(map(str, batch))}"
    return f"{len(batch)} parts" if isinstance(batch, list | tuple) else type(batch).__name__


def fit(
    loss: Loss = cross_entropy,
    *,
    progress: bool = True,
    evaluate: Evaluation | None = None,
    augment: Callable[[Any], Any] | None = None,
    views: int = 1,
    callbacks: Sequence[Any] = (),
    **arguments: Unpack[Arguments],
) -> PrivateTraining:
    """Train privately to the end of the planned steps.

    Parameters
    ----------
    loss
        ``loss(model, batch)`` gives one value per row. Default: cross-entropy.
    progress
        Show a progress bar with the running epsilon, a certified upper bound; where the output is
        no terminal, lines.
    evaluate
        Metrics to measure on private rows along the way (`Evaluation`), within the same epsilon.
        They leave through the door: the bar shows them with their intervals, and shows nothing
        else about rows. Metrics on public rows are yours to compute.
    augment, views
        Average every row's gradient over ``views`` augmented views of it before it is clipped:
        less variance at the same privacy, for ``views`` times the computation. ``augment(batch)``
        gets a batch in which every row stands ``views`` times in succession, and changes each by
        itself. ``max_physical_batch_size`` counts rows, not views.
    callbacks
        Functions of a dictionary, told after every step; or objects with ``on_step``, ``on_epoch``
        or ``on_end``. They are told released values only (`callbacks.py`, docs/callbacks.md).
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
    refuse_no_loss(loss)
    refuse_wrong_kinds(arguments)
    if evaluate is not None:
        if not isinstance(evaluate, Evaluation):
            raise ConfigurationError(
                f"evaluate must be an Evaluation. Got {type(evaluate).__name__} instead. Write "
                "Evaluation({name: metric}, noise_multiplier=...), of winsor.training.evaluation."
            )
        refuse_units(arguments.get("unit") is not None)
        arguments = with_looks(arguments, evaluate)
    augmented = augmentations_of(augment, whole("views", views), arguments.get("group_size", 1))
    if augmented is not None:
        arguments["group_size"] = augmented.count
    private = make_private(**arguments)
    run(private, loss, progress, evaluate, arguments["dataset"], target, augmented, callbacks)
    return private


def run(
    private: PrivateTraining,
    loss: Loss = cross_entropy,
    progress: bool = True,
    evaluate: Evaluation | None = None,
    rows: Dataset[Any] | None = None,
    target: float | None = None,
    views: Augmentations | None = None,
    callbacks: Sequence[Any] = (),
) -> None:
    """Run the loop. Shows no value computed from private rows that did not pass the door.

    ``rows`` are those that ``evaluate`` looks at if it names none, ``target`` the epsilon that the
    noise was chosen for.
    """
    of_batch = loss if views is None else views.each(loss)
    total = private.budget.planned_steps
    target = private.budget.epsilon if target is None else target
    goal = f"epsilon {target:g} when done" if target is not None else ""
    looked_at = rows if evaluate is None or evaluate.rows is None else evaluate.rows
    marks = set() if evaluate is None else evaluate.marks(total)
    private.check(of_batch)
    with make_progress(progress, goal, private.steps_done, total) as shown:
        told = Callbacks([*as_list(callbacks), *([shown] if progress else [])], private)

        def after(step: int, until: int) -> None:
            """Look if a look became due since ``step``: an empty batch passes by in silence."""
            if evaluate is not None and looked_at is not None:
                for _ in marks & set(range(step + 1, min(private.steps_done, until) + 1)):
                    evaluate.look(private, looked_at)

        before = told_of = private.steps_done
        for batch in private.batches():
            private.step(fitting(of_batch, private.model, batch))
            after(before, total - 1)  # the last look is at the iterate that is released
            before = min(private.steps_done, total - 1)
            told.stepped(told_of, _measured(evaluate))
            told_of = private.steps_done
        after(before, total)
        told.ended(_measured(evaluate))


def _measured(evaluate: Evaluation | None) -> dict[str, float]:
    return {} if evaluate is None else evaluate.as_numbers()
