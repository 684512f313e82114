"""What can go wrong in the user's own loop, and what to write instead.

for batch in private.batches():      once: it spans all epochs
    losses = ...                     one value per row, with its graph
    private.step(losses)             once, in place of losses.mean().backward()
"""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor, nn

from winsor.core.contract import LossError, ProtocolError, WinsorError
from winsor.training.rehearsal import Loss

MISFITS = ("dtype", "shapes cannot be", "channels", "expected input", "Expected 3D")
"""How torch says that a layer was made for other rows."""


def refuse_bad_losses(losses: Tensor, rows: int) -> None:
    """One value per row of the batch, with its graph to the parameters."""
    if not isinstance(losses, Tensor) or losses.ndim != 1 or losses.shape[0] != rows:
        raise LossError(
            f"losses must be a vector with one value per row of the batch: shape ({rows},). Got "
            f"{_shape(losses)} instead. {_remedy(losses, rows)}"
        )
    if not losses.requires_grad:
        raise LossError(
            "losses must carry their graph to the parameters. Got a tensor without one. Do not "
            "call .detach() or .item(), and compute the losses outside torch.no_grad()."
        )
    if not losses.dtype.is_floating_point:
        raise LossError(f"losses must be floating point. Got {losses.dtype} instead.")


def _shape(losses: object) -> str:
    return str(tuple(losses.shape)) if isinstance(losses, Tensor) else type(losses).__name__


def _remedy(losses: object, rows: int) -> str:
    if isinstance(losses, Tensor) and losses.ndim > 1 and losses.shape[0] == rows:
        return (
            "Average within each row: losses.flatten(1).mean(1). Check that outputs and targets "
            "have the same shape, or they are broadcast against each other."
        )
    return 'Use reduction="none" and average only within a row.'


def fitting(loss: Loss, model: nn.Module, batch: Any) -> Tensor:
    """``loss(model, batch)``; rows that do not fit the model are refused in our words.

    The usual case by far: NumPy's float64 rows for float32 weights.
    """
    try:
        return loss(model, batch)
    except (RuntimeError, TypeError) as error:
        refuse_misfit(error, model)
        raise


def refuse_misfit(error: Exception, model: nn.Module) -> None:
    """Rows of another type or width than the model's; every other error passes."""
    text = str(error).strip()
    if isinstance(error, WinsorError):
        return
    if "must be Tensor, not" in text:
        raise LossError(
            f"the rows must be tensors when they reach the model. Got {text} instead. Convert them "
            "in the dataset or in collate_fn: text by a tokeniser, images by a transform to "
            "tensors, and take the inputs out of the batch."
        ) from error
    if any(sign in text for sign in MISFITS):
        weights = next(model.parameters())
        raise LossError(
            f"the rows must fit the model, whose weights are {weights.dtype}. Got {text} "
            "instead. Convert the rows once, before training: TensorDataset(x.float(), y); or "
            "change the width of the first layer, or the shape of the rows."
        ) from error


def refuse_nothing_finite(losses: Tensor, rows: int) -> None:
    """Losses of several rows, none of them a number: nothing would be learnt but noise.

    A row that is not finite counts as nothing, and saying so would tell about it. This refusal does
    tell, in the case that one finite row among broken ones decides it: so it is for the data holder
    before the first release, and never for a run under way, whose releases others may watch.
    """
    if rows >= len(losses) and not bool(losses.isfinite().any()):
        raise LossError(
            "losses must be finite numbers. Got NaN or infinity for every row that was tried "
            "instead: nothing would be learnt but noise. Look for gaps in the inputs (fill them by "
            "a public rule), inputs that are far too large (divide by a constant that you know), "
            "or a logarithm of zero in the loss."
        )


def refuse_used_graph(error: RuntimeError) -> None:
    """A graph that `loss.backward()` has freed; every other error passes."""
    if not isinstance(error, WinsorError) and "backward through the graph a second" in str(error):
        raise ProtocolError(
            "private.step(losses) must take the place of loss.backward() and optimizer.step(). Got "
            "losses whose graph was used up by a backward pass before. Remove that line: step "
            "computes, bounds and applies the gradients by itself."
        ) from None


def refuse_another_round(planned: int) -> NoReturn:
    """`batches()` once per epoch would train, and spend, several times over."""
    raise ProtocolError(
        f"private.batches() spans all epochs and must be looped over once. Got a second loop after "
        f"all {planned} planned steps were done. For a loop per epoch write `for epoch in "
        "private.epochs(): for batch in epoch: ...`; to go on beyond the plan, and pay for it, "
        "say how far: private.batches(steps)."
    )
