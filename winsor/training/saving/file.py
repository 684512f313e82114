"""A whole run in one file, or in a folder: model, optimiser, scheduler, and the private part.

A file is written in one act, readable by the owner only, loaded with ``weights_only=True``: a
checkpoint is data, never code. What does not fit is refused before anything changes, and what fails
in the middle is undone.

A model that FSDP2 has sharded is saved in a folder, so that no rank writes or gathers it whole:

    winsor.pt         as one file would be, with shapes for sharded tensors
    shards-STEP-.../  those tensors, weights and the optimiser's state, through
                      `torch.distributed.checkpoint`, written by all ranks

winsor.pt is replaced last, in one act, and names its shards: whoever dies before that leaves the
checkpoint before. Shards hold only what was released; winsor.pt holds the key.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import torch
from torch import Tensor, nn

from winsor.core.contract import ConfigurationError, LedgerError, WinsorError
from winsor.core.randomness import fingerprint
from winsor.training.checks.arguments import refuse_wrong_kinds
from winsor.training.files import replace_file
from winsor.training.ranks.ranks import Ranks, on_all_ranks
from winsor.training.ranks.shard_files import read_shards
from winsor.training.ranks.sharded import ShardedOptimizer, Shards, is_sharded
from winsor.training.saving.seal import refuse_changed
from winsor.training.saving.settings import refuse_different, settings_of_model

if TYPE_CHECKING:
    from winsor.training.loop import PrivateTraining
    from winsor.training.make_private import Arguments
    from winsor.training.saving.state import RunState

FORMAT = 2


class Stateful(Protocol):
    """Whatever can be saved and put back: a scheduler, an average of weights, a scaler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Put back a state that `state_dict` returned."""


def everything(
    private: RunState, also: Mapping[str, Stateful], gathered: bool = True
) -> dict[str, Any]:
    """Collect all that continues a run, as plain values; what the optimiser has in shards,
    ``gathered``."""
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
    private: RunState, state: Mapping[str, Any], also: Mapping[str, Stateful], repeat: bool
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
        key = private._key_of(state["private"])
        if fingerprint(key) == state["private"]["key_fingerprint"]:  # else it is refused below
            named = {"shards": Path(state["shards"]).name} if "shards" in state else {}
            refuse_changed(key, {**state, **named})

    try:
        on_all_ranks(private._ranks, check, "resume")
        if "shards" in state:
            state = filled(private, state)
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
        on_all_ranks(private._ranks, load, "load the checkpoint")
        private.load_state_dict(state["private"], repeat=repeat)
    except BaseException as error:
        private.model.load_state_dict(weights)
        for name, thing in things.items():
            thing.load_state_dict(before[name])
        private._guard.accept()
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
    """Read a checkpoint as plain values; a file that holds anything else is refused.

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
        state["shards"] = shards_beside(Path(path), state)
    return state


def _file_of(path: str | os.PathLike[str], ranks: Ranks | None) -> str | os.PathLike[str]:
    """Return the file to read: in a folder of shards, the one that is not of shards."""
    inside = Path(path) / FILE
    found = inside.is_file() if ranks is None or ranks.rank == 0 else None
    return inside if (found if ranks is None else ranks.from_first(found)) else path


def as_bytes(state: Mapping[str, Any]) -> bytes:
    """Serialise ``state`` in the format of `torch.save`."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


# -------------------------------------------------------------------------------------- checks


def _beside(private: RunState, gathered: bool = True) -> dict[str, Stateful]:
    """Return what the update uses beside the model."""
    names = ("optimizer", "scheduler")
    found: dict[str, Any] = {name: getattr(private._update, name, None) for name in names}
    if getattr(private._update, "shards", None) is not None:
        found["optimizer"] = ShardedOptimizer(found["optimizer"], gathered)
    return {name: thing for name, thing in found.items() if thing is not None}


def _refuse_other_tensors(saved: Mapping[str, Any], model: nn.Module) -> None:
    """Compare names and shapes, which settings cannot show: a buffer of another size."""

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
    """Refuse objects: only plain values can be loaded without running code from the file."""
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
    """Copy a state: optimisers and schedulers keep what they are given, and change it."""
    return copy.deepcopy(state)


def _damaged(error: Exception) -> LedgerError:
    return LedgerError(
        f"the checkpoint is damaged: {type(error).__name__}: {error}. Nothing was changed. Use an "
        "intact copy."
    )


FILE = "winsor.pt"
PREFIX = "shards-"


def refuse_whole(private: RunState) -> None:
    """Refuse ``shards=True`` for a model that every rank holds whole."""
    if getattr(private._update, "shards", None) is None:
        raise ConfigurationError(
            "shards=True needs a model that fully_shard has sharded. Got a model that every rank "
            "holds whole. Use private.save(path), which writes one file."
        )


def new_name(step: int) -> str:
    """Name a new folder of shards for ``step``."""
    return f"{PREFIX}{step}-{secrets.token_hex(4)}"


def apart(private: RunState, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Separate what one file keeps from the sharded tensors, of which this rank has its parts."""
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


def filled(private: RunState, state: Mapping[str, Any]) -> dict[str, Any]:
    """Fill ``state`` with its sharded tensors: weights whole, the optimiser's as its
    weights are."""
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
    """Return the path of the shard folder that checkpoint ``file`` refers to."""
    name = str(state["shards"])
    if Path(name).name != name or not name.startswith(PREFIX):
        raise LedgerError(
            f"{file} must name shards beside it. Got {name!r} instead. Use an intact copy."
        )
    return str(file.parent / name)


def resume(
    path: str | os.PathLike[str],
    *,
    also: Mapping[str, Stateful] | None = None,
    repeat: bool = True,
    **arguments: Unpack[Arguments],
) -> PrivateTraining:
    """Build the run of ``path`` again and continue it as if it had never stopped.

    The same batches, noise, dropout, augmentation, momentum and schedule follow; the account goes
    on where it was. A checkpoint that does not fit is refused with the fields that differ, and
    then neither the model nor the optimiser has changed.

    Parameters
    ----------
    path
        A file of `private.save`, or a folder of ``private.save(..., shards=True)``. It is loaded
        as data (``weights_only=True``), never run. Of several ranks, rank 0 reads a file for all.
    also
        The objects that were saved with ``also``, under the same names.
    repeat
        False goes on with new randomness and pays for every step since the checkpoint: for
        runs that cannot be repeated exactly, such as on another machine or number of ranks.
    **arguments
        Those of `winsor.make_private`, as they were. The model may have any weights.

    Examples
    --------
    >>> import tempfile, torch, winsor
    >>> from torch.utils.data import TensorDataset
    >>> x = torch.randn(500, 3)
    >>> def arguments():
    ...     model = torch.nn.Linear(3, 2)
    ...     return {
    ...         "model": model, "optimizer": torch.optim.Adam(model.parameters()),
    ...         "dataset": TensorDataset(x, (x[:, 0] > 0).long()), "rule": winsor.rules.Flat(1.0),
    ...         "batch_size": 50, "steps": 20, "epsilon": 2.0, "delta": 1e-4,
    ...     }
    >>> path = tempfile.mkdtemp() + "/checkpoint.pt"
    >>> winsor.make_private(**arguments()).save(path)
    >>> winsor.resume(path, **arguments()).steps_done
    0
    """
    from winsor.training.make_private import make_private  # which imports this module

    refuse_wrong_kinds(arguments)
    ranks = Ranks.here(next(arguments["model"].parameters()).device)
    state = read(path, ranks)
    ledger = arguments.get("ledger")
    made = [] if ledger is None else [Path(ledger), Path(ledger).with_suffix(".key")]
    made = [file for file in made if not file.exists()]
    private = make_private(**arguments)
    try:
        restore(private, state, also or {}, repeat)
    except BaseException:
        spent = len(private.ledger)
        private.detach()
        for file in made if not spent and (ranks is None or ranks.rank == 0) else ():
            file.unlink(missing_ok=True)
        raise
    return private
