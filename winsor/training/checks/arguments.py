"""Checks of arguments and losses, with what to write instead.

Arguments are looked at before anything else: a loader instead of its dataset, a rule's name instead
of a rule, an optimiser's class. Each is taken for what the user meant by it. The errors about
losses are those of the user's own loop:

    for batch in private.batches():      once: it spans all epochs
        losses = ...                     one value per row, with its graph
        private.step(losses)             once, in place of losses.mean().backward()
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from numbers import Integral
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset

from winsor import rules
from winsor.core.checks import whole
from winsor.core.contract import (
    ConfigurationError,
    LossError,
    ProtocolError,
    UnsupportedModel,
    WinsorError,
)
from winsor.rules.rule import Rule
from winsor.training.checks.trial_pass import Loss
from winsor.training.iterates import Ball


def refuse_wrong_kinds(arguments: Mapping[str, Any]) -> None:
    """Look at the arguments of `make_private`, by name, those that are there. No row is read."""
    if "model" in arguments:
        refuse_no_model(arguments["model"])
    if "dataset" in arguments:
        refuse_no_dataset(arguments["dataset"])
    if "rule" in arguments:
        refuse_no_rule(arguments["rule"])
    if "optimizer" in arguments:
        refuse_no_optimizer(arguments["optimizer"])
    _refuse_no_scheduler(arguments.get("scheduler"), arguments.get("optimizer"))
    ball, collate = arguments.get("ball"), arguments.get("collate_fn")
    if ball is not None and not isinstance(ball, Ball):
        raise _wrong("ball", "a winsor.Ball", ball, "Write ball=winsor.Ball(radius).")
    if collate is not None and not callable(collate):
        raise _wrong("collate_fn", "a function of a list of rows", collate)
    if arguments.get("max_physical_batch_size") is not None:
        whole("max_physical_batch_size", arguments["max_physical_batch_size"])
    seed = arguments.get("seed")
    if seed is not None and not isinstance(seed, Integral):
        raise _wrong("seed", "a whole number, or None for secret noise", seed)


def refuse_no_model(model: Any) -> None:
    """Refuse anything but a module with weights that can be trained."""
    if not isinstance(model, nn.Module):
        remedy = "Build it first, and pass what you built."
        if hasattr(model, "budget") and isinstance(getattr(model, "model", None), nn.Module):
            remedy = "It is a private run already: loop over its batches(), or call detach() first."
        raise _wrong("model", "a torch.nn.Module", model, remedy)
    parameters = list(model.parameters())
    if not any(p.requires_grad for p in parameters):
        got = f"all {len(parameters)} frozen" if parameters else "a model without parameters"
        raise UnsupportedModel(
            f"model must have at least one trainable parameter. Got {got} instead. Unfreeze what "
            "is to be trained with requires_grad_(True), then build the optimiser and the run."
        )
    away = next((name for name, p in model.named_parameters() if p.device.type == "meta"), None)
    if away is not None:
        raise UnsupportedModel(
            f"model must hold its weights. Got {away} on the device meta instead, which has shapes "
            'only. Give it memory with model.to_empty(device="cpu"), load or initialise the '
            "weights, and build the optimiser anew."
        )


def refuse_no_dataset(dataset: Any) -> None:
    """Refuse anything but rows by index, of a known number."""
    wanted = "map-style, with a length and rows by index"
    if isinstance(dataset, DataLoader):
        remedy = (
            "Its batches have no sampling rate that could be accounted for: winsor draws them. "
            "Pass dataset=loader.dataset and batch_size=..., with collate_fn= and num_workers= "
            "if you use them."
        )
    elif isinstance(dataset, IterableDataset):
        remedy = "The sampling rate must be known: read the rows into a list first."
    elif _are_columns(dataset):
        remedy = "Write torch.utils.data.TensorDataset(x, y), of tensors with one row per record."
    elif hasattr(dataset, "iloc") and hasattr(dataset, "to_numpy"):
        remedy = 'Write TensorDataset(torch.from_numpy(table[columns].to_numpy("float32")), ...).'
    elif isinstance(dataset, Mapping):
        remedy = "Its keys are no rows. Write TensorDataset(*its values), or a list of rows."
    elif isinstance(dataset, str | bytes | type) or not hasattr(dataset, "__getitem__"):
        remedy = "Load it first: a torch Dataset, a list of rows, or TensorDataset(x, y)."
    else:
        return
    raise _wrong("dataset", wanted, dataset, remedy)


def refuse_no_rule(rule: Any) -> None:
    """Refuse anything but a rule with its numbers, such as its name or its class."""
    if isinstance(rule, Rule) and not isinstance(rule, type):
        return
    if isinstance(rule, type) and issubclass(rule, Rule):
        remedy = f"Give it its numbers: {_call(rule)}."
    elif isinstance(rule, str):
        known = {_plain(name): kind for name, kind in rules.all_rules().items()}
        near = difflib.get_close_matches(_plain(rule), known, n=1)
        names = ", ".join(rules.all_rules())
        meant = f"Did you mean {_call(known[near[0]])}? " if near else ""
        remedy = f"{meant}The rules are {names}."
    elif isinstance(rule, int | float) and not isinstance(rule, bool):
        remedy = f"Did you mean rule=winsor.rules.Flat({rule:g})?"
    else:
        remedy = "The plainest is winsor.rules.Flat(1.0), which clips each row to norm 1."
    raise _wrong("rule", "a rule with its numbers, such as winsor.rules.Flat(1.0)", rule, remedy)


def refuse_no_optimizer(optimizer: Any) -> None:
    """Refuse anything but an optimiser that has been built."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        remedy = "Write torch.optim.SGD(model.parameters(), lr=0.1), or another of torch.optim."
        raise _wrong("optimizer", "a torch.optim optimiser that was built", optimizer, remedy)


def refuse_no_loss(loss: Any) -> None:
    """Refuse anything but a function of the model and a batch."""
    if isinstance(loss, nn.Module) or not callable(loss):
        remedy = (
            "Write lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], "
            'reduction="none"), with your own loss in its place.'
        )
        raise _wrong("loss", "a function loss(model, batch) of one value per row", loss, remedy)


def _refuse_no_scheduler(scheduler: Any, optimizer: Any) -> None:
    if scheduler is None:
        return
    if isinstance(scheduler, ReduceLROnPlateau):
        remedy = (
            "It needs a metric at every step, and winsor has none that was released. Step it "
            "yourself with metrics on public rows, and pass no scheduler=."
        )
    elif isinstance(scheduler, type) or not callable(getattr(scheduler, "step", None)):
        remedy = (
            "Write CosineAnnealingLR(optimizer, T_max=steps): it is stepped once per logical step."
        )
    elif _moves_another(scheduler, optimizer):
        raise ConfigurationError(
            "scheduler must move the learning rate of optimizer=. Got a "
            f"{type(scheduler).__name__} of another optimiser instead. Build it from the one that "
            "you pass."
        )
    else:
        return
    raise _wrong("scheduler", "a schedule of torch.optim.lr_scheduler", scheduler, remedy)


def _moves_another(scheduler: Any, optimizer: Any) -> bool:
    """Tell whether its learning rates are not those of ``optimizer``, or of what a
    framework wraps."""
    own = getattr(scheduler, "optimizer", None)
    if own is None or optimizer is None:
        return False
    return getattr(own, "param_groups", own) is not getattr(optimizer, "param_groups", optimizer)


def _are_columns(dataset: Any) -> bool:
    """Recognise (x, y) in place of a dataset of pairs: a few long arrays."""
    if not isinstance(dataset, list | tuple) or not 1 <= len(dataset) <= 8:
        return False
    sizes = [_rows(part) for part in dataset]
    return None not in sizes and len(set(sizes)) == 1 and (sizes[0] or 0) > len(dataset)


def _rows(part: Any) -> int | None:
    if isinstance(part, Tensor):
        return part.shape[0] if part.ndim else None
    shape = getattr(part, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    return len(part) if isinstance(part, list) else None


def _call(rule: type) -> str:
    """Write the rule as a user would: winsor.rules.Flat(max_grad_norm=...)."""
    needed = [
        f"{name}=..."
        for name, parameter in inspect.signature(rule).parameters.items()
        if parameter.default is inspect.Parameter.empty
    ]
    return f"winsor.rules.{rule.__name__}({', '.join(needed)})"


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _wrong(name: str, wanted: str, value: Any, remedy: str = "") -> ConfigurationError:
    """Show a value only if it is a name or a number: private rows may be in any other."""
    if isinstance(value, type):
        got = f"the class {value.__name__}"
    elif isinstance(value, str | int | float) or value is None:
        got = repr(value)
    else:
        got = type(value).__name__
    return ConfigurationError(f"{name} must be {wanted}. Got {got} instead. {remedy}".strip())


MISFITS = ("dtype", "shapes cannot be", "channels", "expected input", "Expected 3D")
"""How torch says that a layer was made for other rows."""


def fitting(loss: Loss, model: nn.Module, batch: Any) -> Tensor:
    """Compute ``loss(model, batch)``; rows that do not fit the model are refused in our words.

    The usual case by far: NumPy's float64 rows for float32 weights.
    """
    try:
        return loss(model, batch)
    except (RuntimeError, TypeError) as error:
        refuse_misfit(error, model)
        raise


def refuse_misfit(error: Exception, model: nn.Module) -> None:
    """Refuse rows of another type or width than the model's; every other error passes."""
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
    """Refuse losses of several rows, none of them a number: nothing would be learnt but noise.

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
    """Refuse a graph that `loss.backward()` has freed; every other error passes."""
    if not isinstance(error, WinsorError) and "backward through the graph a second" in str(error):
        raise ProtocolError(
            "private.step(losses) must take the place of loss.backward() and optimizer.step(). Got "
            "losses whose graph was used up by a backward pass before. Remove that line: step "
            "computes, bounds and applies the gradients by itself."
        ) from None


def refuse_many_places(places: int, most: int) -> NoReturn:
    """Refuse rows of so many places that rounding is not covered by what was set aside."""
    raise ConfigurationError(
        f"a row of this run must have at most {most:,} places. Got {places:,} instead: rounding of "
        "its sums is not covered. Lower batch_size, or shorten the rows."
    )


def refuse_another_round(planned: int) -> NoReturn:
    """Refuse `batches()` once per epoch: it would train, and spend, several times over."""
    raise ProtocolError(
        f"private.batches() spans all epochs and must be looped over once. Got a second loop after "
        f"all {planned} planned steps were done. For a loop per epoch write `for epoch in "
        "private.epochs(): for batch in epoch: ...`; to go on beyond the plan, and pay for it, "
        "say how far: private.batches(steps)."
    )
