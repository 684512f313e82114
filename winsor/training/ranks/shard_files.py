"""Tensors of several ranks in one folder, through `torch.distributed.checkpoint`.

Each rank writes what it holds, and reads what it needs, on any number of ranks. Tensors only. torch
keeps their places in a pickle (``.metadata``), which could name any code; here it is read by an
unpickler that knows the classes of places and nothing else: a checkpoint is data, never code.
"""

from __future__ import annotations

import os
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from winsor.core.contract import LedgerError

PLACES = {
    "torch.distributed.checkpoint.metadata": (
        "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "torch": (
        "Size", "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
        "bool", "uint8", "int8", "int16", "int32", "int64",
    ),
    "pathlib": ("Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"),
}  # fmt: skip
"""All that a file of places may name."""


def write_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write into a new folder, durably. All ranks call it; they need not hold the same parts."""
    from torch.distributed import checkpoint

    writer = checkpoint.FileSystemWriter(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of one process: torch says that it is one
            checkpoint.save(dict(tensors), storage_writer=writer, no_dist=_alone())
    except (OSError, RuntimeError, checkpoint.CheckpointException) as error:
        raise LedgerError(
            f"cannot write the shards of a checkpoint to {folder}: {error}. The one before it is "
            "untouched. Give a folder that all ranks share and may write to."
        ) from error


def read_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Read into ``tensors``, whole ones or parts, in place. All ranks call it."""
    from torch.distributed import checkpoint

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoint.load(tensors, storage_reader=_reader(folder), no_dist=_alone())
    except (OSError, RuntimeError, ValueError, checkpoint.CheckpointException) as error:
        raise LedgerError(
            f"{folder} must hold the shards of this checkpoint. They cannot be read: {error}. "
            "Nothing was changed. Use an intact copy of the whole folder."
        ) from error


def forget_others(folder: Path, prefix: str, kept: str) -> None:
    """Remove the shards of earlier checkpoints, and of those that were never finished."""
    for path in folder.glob(f"{prefix}*"):
        if path.name != kept and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


class PlacesOnly(pickle.Unpickler):
    """Reads where shards are; refuses a file that names anything else."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Find the few classes that describe places of shards; refuse any other."""
        if name not in PLACES.get(module, ()):
            raise RuntimeError(f"a file of places names {module}.{name}, which is not one")
        return super().find_class(module, name)


def _reader(folder: Path) -> Any:
    from torch.distributed.checkpoint import FileSystemReader

    class PlainReader(FileSystemReader):
        def read_metadata(self, *_: Any, **__: Any) -> Any:
            with open(os.path.join(folder, ".metadata"), "rb") as file:
                try:
                    return PlacesOnly(file).load()
                except (pickle.UnpicklingError, EOFError, AttributeError, TypeError) as error:
                    raise RuntimeError(f"the file of places is damaged ({error})") from error

    return PlainReader(folder)


def _alone() -> bool:
    return not (dist.is_available() and dist.is_initialized())
