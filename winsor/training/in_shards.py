"""Checkpoints of a model that FSDP2 has sharded, in a folder: no rank writes or gathers it whole.

    winsor.pt         as one file would be (`saving.py`), with shapes for sharded tensors
    shards-STEP-.../  those tensors, weights and the optimiser's state, through
                      `torch.distributed.checkpoint`, written by all ranks

winsor.pt is replaced last, in one act, and names its shards: whoever dies before that leaves the
checkpoint before. Shards hold only what was released; winsor.pt holds the key.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from winsor.core.contract import ConfigurationError, LedgerError
from winsor.training.ranks.shard_files import read_shards
from winsor.training.ranks.sharded import Shards, is_sharded

if TYPE_CHECKING:
    from winsor.training.checkpoint import Resumable

FILE = "winsor.pt"
PREFIX = "shards-"


def refuse_whole(private: Resumable) -> None:
    """Only sharded tensors can be written by several ranks."""
    if getattr(private._update, "shards", None) is None:
        raise ConfigurationError(
            "shards=True needs a model that fully_shard has sharded. Got a model that every rank "
            "holds whole. Use private.save(path), which writes one file."
        )


def new_name(step: int) -> str:
    return f"{PREFIX}{step}-{secrets.token_hex(4)}"


def apart(private: Resumable, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What one file keeps, and the sharded tensors, of which this rank has its parts."""
    shards: Shards = private._update.shards  # type: ignore[attr-defined]
    shards.slice()  # weights may have been projected, averaged or loaded since the last step
    named = shards.by_name()
    tensors: dict[str, Tensor] = {}

    def out(place: str, value: Any) -> Any:
        if not is_sharded(value):
            return value
        tensors[place] = value.detach()
        return torch.empty(value.shape, dtype=value.dtype, device="meta")

    model = {k: out(f"model.{k}", named.get(k, v)) for k, v in state["model"].items()}
    kept = {
        place: {name: out(f"optimizer.{place}.{name}", v) for name, v in values.items()}
        for place, values in state["optimizer"]["state"].items()
    }
    optimizer = {**state["optimizer"], "state": kept}
    return {**state, "model": model, "optimizer": optimizer}, tensors


def filled(private: Resumable, state: Mapping[str, Any]) -> dict[str, Any]:
    """``state`` with its sharded tensors: weights whole, the optimiser's as its weights are."""
    tensors: dict[str, Tensor] = {}

    def room(place: str, value: Any, owner: Any) -> Any:
        if not (isinstance(value, Tensor) and value.is_meta):
            return value
        alike = is_sharded(owner) and owner.shape == value.shape
        tensors[place] = (
            torch.empty_like(owner.detach(), dtype=value.dtype)
            if alike
            else torch.empty(value.shape, dtype=value.dtype)
        )
        return tensors[place]

    model = {k: room(f"model.{k}", v, None) for k, v in state["model"].items()}
    groups = private._update.optimizer.param_groups  # type: ignore[attr-defined]
    owned = [p for group in groups for p in group["params"]]
    kept = {
        place: {
            name: room(f"optimizer.{place}.{name}", v, owned[place]) for name, v in values.items()
        }
        for place, values in state["optimizer"]["state"].items()
    }
    read_shards(Path(state["shards"]), tensors)
    return {**state, "model": model, "optimizer": {**state["optimizer"], "state": kept}}


def shards_beside(file: Path, state: Mapping[str, Any]) -> str:
    """Where the shards are that a file of a folder names."""
    name = str(state["shards"])
    if Path(name).name != name or not name.startswith(PREFIX):
        raise LedgerError(
            f"{file} must name shards beside it. Got {name!r} instead. Use an intact copy."
        )
    return str(file.parent / name)
