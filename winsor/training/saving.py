"""A whole run in one file: model, optimiser, scheduler, and the private part (`checkpoint.py`).

Written in one act, readable by the owner only, loaded with ``weights_only=True``: a checkpoint is
data, never code. What does not fit is refused before anything changes, and what fails in the middle
is undone.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from winsor.core.contract import ConfigurationError, LedgerError, WinsorError
from winsor.training import in_shards
from winsor.training.files import replace_file
from winsor.training.ranks.ranks import Ranks, together
from winsor.training.ranks.sharded import ShardedOptimizer
from winsor.training.settings import refuse_different, settings_of_model

if TYPE_CHECKING:
    from winsor.training.checkpoint import Resumable

FORMAT = 1


class Stateful(Protocol):
    """Whatever can be saved and put back: a scheduler, an average of weights, a scaler."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


def everything(
    private: Resumable, also: Mapping[str, Stateful], gathered: bool = True
) -> dict[str, Any]:
    """All that continues a run, as plain values; what the optimiser has in shards, ``gathered``."""
    state = {
        "whole_run": FORMAT,
        "settings": settings_of_model(private.model) | private._built_with,
        "model": private.model.state_dict(),
        "also": {name: thing.state_dict() for name, thing in also.items()},
        "private": private.state_dict(),
    }
    for name, thing in _beside(private, gathered).items():
        state[name] = thing.state_dict()
    _refuse_objects(state, "")
    return state


def restore(
    private: Resumable, state: Mapping[str, Any], also: Mapping[str, Stateful], repeat: bool
) -> None:
    """Continue from ``state``. If anything is wrong with it, nothing has changed afterwards."""
    if state.get("whole_run") != FORMAT:
        found = state.get("whole_run", "a file without format, such as weights alone")
        raise LedgerError(
            f"the checkpoint must be of a whole run, in format {FORMAT}. Got {found} instead. Save "
            "it with private.save(path) of this version; weights alone start a new run, with "
            "model.load_state_dict."
        )

    def check() -> None:
        here = private.settings() | settings_of_model(private.model) | private._built_with
        refuse_different({**state["private"]["settings"], **state["settings"]}, here)
        _refuse_other_tensors(state["model"], private.model)
        _refuse_other_names(state["also"], also)

    try:
        together(private._ranks, check, "resume")
        if "shards" in state:
            state = in_shards.filled(private, state)
    except WinsorError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _damaged(error) from error
    things = {**_beside(private), **{f"also {name}": thing for name, thing in also.items()}}
    saved = {**state, **{f"also {name}": value for name, value in state["also"].items()}}
    weights = _copied(private.model.state_dict())
    before = {name: _copied(thing.state_dict()) for name, thing in things.items()}

    def load() -> None:
        private.model.load_state_dict(state["model"])
        for name, thing in things.items():
            thing.load_state_dict(_copied(saved[name]))

    try:
        together(private._ranks, load, "load the checkpoint")
        private.load_state_dict(state["private"], repeat=repeat)
    except BaseException as error:
        private.model.load_state_dict(weights)
        for name, thing in things.items():
            thing.load_state_dict(before[name])
        private._guard.adopt()
        if isinstance(error, WinsorError) or not isinstance(error, Exception):
            raise
        raise _damaged(error) from error


# --------------------------------------------------------------------------------------- files


def write(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Replace the file in one act; only its owner may read it."""
    try:
        replace_file(Path(path), as_bytes(state), private=True)
    except OSError as error:
        raise LedgerError(
            f"cannot write the checkpoint {path}: {error.strerror or error}. The one before it is "
            "untouched. Make room or give a writable path."
        ) from error


def read(path: str | os.PathLike[str], ranks: Ranks | None = None) -> dict[str, Any]:
    """A checkpoint as plain values; a file that holds anything else is refused.

    Of several ranks, rank 0 reads the file, and the others may not have it; shards are read later,
    by all of them.
    """
    content: bytes | None = None
    path = _file_of(path, ranks)
    if ranks is not None:
        with contextlib.suppress(OSError):
            content = Path(path).read_bytes() if ranks.rank == 0 else None
        content = ranks.from_first(content)
    try:
        file = path if ranks is None else io.BytesIO(content or b"")
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (FileNotFoundError, IsADirectoryError) as error:
        kind = "a folder" if isinstance(error, IsADirectoryError) else "no such file"
        raise LedgerError(
            f"{path} must be a checkpoint of private.save. Got {kind} instead. Check the path; a "
            "first run has nothing to resume: begin it with winsor.make_private."
        ) from None
    except Exception as error:  # torch raises many kinds for damaged files
        raise LedgerError(
            f"{path} must be a checkpoint of private.save. It cannot be read "
            f"({type(error).__name__}). Use an intact copy."
        ) from error
    if not isinstance(state, dict):
        raise LedgerError(
            f"{path} must be a checkpoint of private.save. Got {type(state).__name__} instead."
        )
    if "shards" in state:
        state["shards"] = in_shards.shards_beside(Path(path), state)
    return state


def _file_of(path: str | os.PathLike[str], ranks: Ranks | None) -> str | os.PathLike[str]:
    """The file to read: in a folder of shards, the one that is not of shards."""
    inside = Path(path) / in_shards.FILE
    found = inside.is_file() if ranks is None or ranks.rank == 0 else None
    return inside if (found if ranks is None else ranks.from_first(found)) else path


def as_bytes(state: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


# -------------------------------------------------------------------------------------- checks


def _beside(private: Resumable, gathered: bool = True) -> dict[str, Stateful]:
    """What the update uses beside the model."""
    names = ("optimizer", "scheduler")
    found: dict[str, Any] = {name: getattr(private._update, name, None) for name in names}
    if getattr(private._update, "shards", None) is not None:
        found["optimizer"] = ShardedOptimizer(found["optimizer"], gathered)
    return {name: thing for name, thing in found.items() if thing is not None}


def _refuse_other_tensors(saved: Mapping[str, Any], model: nn.Module) -> None:
    """Names and shapes: what settings cannot show, such as a buffer of another size."""

    def shape(value: Any) -> str:
        return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else "no tensor"

    refuse_different(
        {f"model's {name}": shape(value) for name, value in saved.items()},
        {f"model's {name}": shape(value) for name, value in model.state_dict().items()},
    )


def _refuse_other_names(saved: Mapping[str, Any], also: Mapping[str, Any]) -> None:
    if set(saved) != set(also):
        raise ConfigurationError(
            f"also must name what was saved beside the run: {sorted(saved)}. Got {sorted(also)} "
            "instead."
        )


def _refuse_objects(value: Any, path: str) -> None:
    """Only plain values can be loaded again without running code from the file."""
    if value is None or isinstance(value, bool | int | float | str | bytes | Tensor | torch.dtype):
        return
    if isinstance(value, Mapping):
        for name, part in value.items():
            _refuse_objects(part, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple | set):
        for i, part in enumerate(value):
            _refuse_objects(part, f"{path}[{i}]")
    else:
        raise ConfigurationError(
            f"a checkpoint must hold plain values and tensors. Got {type(value).__name__} at "
            f"{path} instead, which could not be loaded again. Give that object a state_dict of "
            "plain values."
        )


def _copied(state: Any) -> Any:
    """Optimisers and schedulers keep what they are given, and change it."""
    return copy.deepcopy(state)


def _damaged(error: Exception) -> LedgerError:
    return LedgerError(
        f"the checkpoint is damaged: {type(error).__name__}: {error}. Nothing was changed. Use an "
        "intact copy."
    )
