"""What must be the same in the run that continues a checkpoint, field by field.

The ledger's configuration says what privacy rests on. These fields say what exactness rests on:
the model's layers, the optimiser and its settings, the schedule, how a batch is cut into fragments.
They are noted when a run is built, before training changes any of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from winsor.core.contract import LedgerError

Settings = dict[str, str]
"""Name -> value, as text that reads the same in every process."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
SHOWN = 5


def settings_of_model(model: nn.Module) -> Settings:
    """Describe each module by what it says of itself: Dropout(p=0.2)."""
    return {
        f"model.{path}" if path else "model": _text(f"{_kind(m)}({m.extra_repr()})")
        for path, m in model.named_modules()
    }


def _kind(module: nn.Module) -> str:
    """Return the name of its class; of a module that FSDP2 has sharded, of the class that
    it was."""
    bases = type(module).__bases__
    sharded = len(bases) == 2 and bases[0].__name__ == "FSDPModule"
    return bases[1].__name__ if sharded else type(module).__name__


def settings_of_optimizer(
    optimizer: torch.optim.Optimizer | None,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None,
) -> Settings:
    """Describe kind and settings of both, as they were given."""
    found: Settings = {}
    if optimizer is not None:
        found["optimizer"] = type(optimizer).__name__
        for i, group in enumerate(optimizer.param_groups):
            found[f"optimizer.group[{i}].parameters"] = str(len(group["params"]))
            values = {name: value for name, value in group.items() if name != "params"}
            found |= dict(_plain(f"optimizer.group[{i}]", values))
    if scheduler is not None:
        found["scheduler"] = type(scheduler).__name__
        found |= dict(_plain("scheduler", scheduler.state_dict()))
    return found


def different(saved: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Name the fields that differ: what the checkpoint has, and what is here."""
    missing = "absent"
    return [
        f"{name}: {saved.get(name, missing)} in the checkpoint, {here.get(name, missing)} here"
        for name in dict.fromkeys((*saved, *here))
        if saved.get(name, missing) != here.get(name, missing)
    ]


def refuse_different(saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse to continue the checkpoint of another configuration."""
    found = different(saved, here)
    if found:
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise LedgerError(
            "the checkpoint must come from the same configuration. Got another one "
            f"({'; '.join(found[:SHOWN])}{more}). Build the run as it was; what may change later, "
            "such as a learning rate, is changed after resuming."
        )


def _plain(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield numbers and texts in nested containers; functions and other objects are left out."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        yield path, _text(repr(value))
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _plain(f"{path}.{name}", part)
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from _plain(f"{path}[{i}]", part)


def _text(value: str) -> str:
    return _ADDRESS.sub("", value)
