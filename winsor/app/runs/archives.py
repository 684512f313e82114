"""Received archives are measured before they are read.

A file of a kilobyte can say that it unpacks to a terabyte, and reading believes it. Here the sizes
that a file states are added up first: what does not fit the file, or the memory, is refused.
"""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import IO

from numpy.lib import format as npy

from winsor.core.contract import ConfigurationError

SUSPECT_BYTES, SUSPECT_RATIO = 2**28, 100
"""More than this, packed more densely than this, is called a bomb."""


def refuse_too_large(path: Path, needed: int) -> None:
    """Refuse content of which a copy or two would not fit into the memory that is free."""
    room = _free_memory() // 4
    if needed > room:
        raise ConfigurationError(
            f"the content of {path} must fit into memory, at most {room / 2**30:.3g} GiB now. It "
            f"says that it needs {needed / 2**30:.3g} GiB. Use fewer rows, or a larger machine."
        )


def refuse_bomb(path: Path, packed: int, unpacked: int) -> None:
    """Refuse what unpacks to a large multiple of itself, and what does not fit into memory."""
    if unpacked > SUSPECT_BYTES and unpacked > SUSPECT_RATIO * packed:
        raise ConfigurationError(
            f"{path} must not unpack to much more than itself. Got {packed:,} bytes that unpack to "
            f"{unpacked:,} instead. If it is yours, store it without compression."
        )
    refuse_too_large(path, unpacked)


def check_arrays(path: Path, names: list[str]) -> None:
    """Measure the arrays ``names`` of an .npz file: headers against sizes, sizes against memory."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
        wanted = [members[f"{name}.npy"] for name in names if f"{name}.npy" in members]
        packed = sum(min(info.compress_size, path.stat().st_size) for info in wanted)
        refuse_bomb(path, packed, sum(info.file_size for info in wanted))
        for info in wanted:
            with archive.open(info) as file:
                stated = _stated_bytes(file)
            if stated != info.file_size:
                raise ConfigurationError(
                    f"{info.filename} of {path} must be as long as its header says, {stated:,} "
                    f"bytes. Got {info.file_size:,} instead. The file is damaged."
                )


def check_array(path: Path) -> None:
    """Measure an .npy file: a header that promises more than the file has is not believed."""
    with path.open("rb") as file:
        stated = _stated_bytes(file)
    if stated > path.stat().st_size:
        raise ConfigurationError(
            f"{path} must be as long as its header says, {stated:,} bytes. Got "
            f"{path.stat().st_size:,} instead. The file is damaged."
        )


def check_checkpoint(path: Path) -> None:
    """Torch stores tensors as they are: whatever is packed in a checkpoint is not torch's."""
    with zipfile.ZipFile(path) as archive:
        total = sum(info.file_size for info in archive.infolist())
    if total > path.stat().st_size:
        raise ConfigurationError(
            f"{path} must not be compressed. Its content says {total:,} bytes, the file has "
            f"{path.stat().st_size:,}."
        )


def _stated_bytes(file: IO[bytes]) -> int:
    """The length of an .npy file by its own header, the header included."""
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("object arrays are programs, and are not read")
    return file.tell() + math.prod(shape) * dtype.itemsize


def _free_memory() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not every system tells
        return 2**32
