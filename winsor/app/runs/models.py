"""Models by name, or by the import path of a class or function that makes one.

Every model may start from public weights (``weights``, a file of `torch.save`d tensors by name) and
be trained through low-rank corrections only (``low_rank``, see `winsor.models.lora`).
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from winsor.app.runs.config import DataSettings
from winsor.app.runs.data import Data
from winsor.app.runs.reading import (
    Part,
    bind,
    call_imported,
    import_object,
    is_import_path,
    value_of,
)
from winsor.core.checks import refusal
from winsor.core.contract import ConfigurationError
from winsor.models.built_in import BUILT_IN

LARGEST_SIZE = 2**20


def _options(part: Part) -> dict[str, Any]:
    """The options of a built-in model. Its sizes are not zero, and fit into some machine."""
    options = bind(BUILT_IN[part.name], part.options, "model")
    for name, value in options.items():
        for size in value if isinstance(value, list) else [value]:
            least = 0 if name == "groups" else 1  # no groups: no normalisation
            if isinstance(size, int) and not isinstance(size, bool) and size > LARGEST_SIZE:
                raise refusal(f"model.{name}", f"at most {LARGEST_SIZE}", value)
            if isinstance(size, int) and size < least and not isinstance(size, bool):
                raise refusal(f"model.{name}", f"whole numbers >= {least}", value)
    return options


def check_model(part: Part, data: DataSettings) -> None:
    """Check everything about the model that can be checked before the data are read."""
    part, start = _start(part)
    start.check()
    if part.name in BUILT_IN:
        _options(part)
        if (part.name == "gpt") != (data.task == "language"):
            raise ConfigurationError(
                f"model gpt goes with data.task language, and only with it. Got {part.name!r} "
                f"with {data.task!r} instead."
            )
    elif is_import_path(part.name):
        _factory(part)
    else:
        raise ConfigurationError(
            f"model.name must be one of {', '.join(BUILT_IN)}, or an import path "
            f'"package.module:name". Got {part.name!r} instead.'
        )


def build_model(part: Part, data: Data, seed: int) -> nn.Module:
    """Build the model, started from ``seed``."""
    torch.manual_seed(seed)
    part, start = _start(part)
    if part.name in BUILT_IN:
        options = _options(part)
        try:
            model = BUILT_IN[part.name](data.shape, data.outputs, **options)
        except (RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(f"model cannot be built with {options}: {error}.") from error
    else:
        model = _imported(part, data)
    start.apply(model)
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigurationError(
            f"model must have at least one trainable parameter. Got none in {part.name!r}."
        )
    return model


@dataclass(frozen=True)
class Start:
    """Weights that a model starts from, and low-rank corrections, if only those are trained."""

    weights: str | None
    corrections: dict[str, Any] | None

    def check(self) -> None:
        """Refuse weights that are no file."""
        if self.weights is not None and not Path(self.weights).is_file():
            raise ConfigurationError(
                f"model.weights must be a file. Got {self.weights!r} instead, which is none."
            )

    def apply(self, model: nn.Module) -> None:
        """Load the weights into the model, and add its low-rank corrections."""
        self.check()
        if self.weights is not None:
            try:
                model.load_state_dict(torch.load(self.weights, weights_only=True))
            except (RuntimeError, OSError, EOFError, pickle.UnpicklingError, TypeError) as error:
                first = str(error).strip().splitlines()[0]
                raise ConfigurationError(
                    "model.weights must hold tensors by the names and shapes of the model's own. "
                    f"Got {self.weights!r} instead: {first}"
                ) from error
        if self.corrections is not None:
            from winsor.models.lora import low_rank

            try:
                low_rank(model, **self.corrections)
            except ConfigurationError as error:
                raise ConfigurationError(f"model.low_rank: {error}") from error


def _corrections(*, rank: int = 4, scale: float = 8.0, train: list[str] | None = None) -> None:
    """The options of ``low_rank``."""


def _start(part: Part) -> tuple[Part, Start]:
    """What every model may have, taken from its options."""
    options = dict(part.options)
    weights = value_of(str | None, options.pop("weights", None), "model.weights")
    given = options.pop("low_rank", None)
    if given is not None and not isinstance(given, Mapping):
        given = {"rank": given}
    found = None if given is None else bind(_corrections, given, "model.low_rank")
    if found is not None:
        found["train"] = tuple(found.get("train") or ())
    return Part(part.name, options), Start(weights, found)


def _factory(part: Part) -> Any:
    found = import_object(part.name, "model.name")
    if isinstance(found, nn.Module) or not callable(found):
        raise ConfigurationError(
            "model.name must point to a class or function that makes a model, so that each run "
            f"starts afresh. Got {type(found).__name__} from {part.name!r} instead."
        )
    return found


def _imported(part: Part, data: Data) -> nn.Module:
    """Calls the factory with the options, and with ``shape`` and ``outputs`` if it takes them."""
    factory = _factory(part)
    options = dict(part.options)
    offered = {"shape": data.shape, "outputs": data.outputs}
    names = inspect.signature(factory).parameters
    options |= {name: value for name, value in offered.items() if name in names}
    model = call_imported(factory, options, f"model {part.name!r}")
    if not isinstance(model, nn.Module):
        raise ConfigurationError(
            f"model.name must make a torch.nn.Module. Got {type(model).__name__} from "
            f"{part.name!r} instead."
        )
    return model
