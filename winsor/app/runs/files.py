"""Rows from files: arrays (.npz), tables (.csv, .parquet), and .npy files whose rows stay on disk.

Nothing is computed from the rows: no scaling, no filling of gaps, no set of labels. What the rows
must satisfy is stated in the configuration and checked. A file of a kilobyte can claim to unpack to
a terabyte, so the sizes that a file states are added up before it is read: what does not fit the
file, or the memory, is refused.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import math
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from winsor.app.runs.config import DataSettings
from winsor.core.contract import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor

    from winsor.training.feeding.mapped import MappedRows


Array = NDArray[Any]
GAPS = ("", "na", "n/a", "nan", "null", "none", "?", "-")
"""How tables write that there is nothing."""


@dataclass(frozen=True)
class RawRows:
    """Inputs and targets; ``held_out`` if the file itself says which rows those are; ``unit``, if
    the file has it, says whose each row is."""

    x: Array
    y: Array | None
    held_out: tuple[Array, Array | None] | None = None
    unit: Array | None = None


def read_rows(source: str, settings: DataSettings) -> RawRows:
    """Read the rows of one file."""
    path = Path(source)
    if not path.is_file():
        setting = "data.held_out" if source == settings.held_out else "data.source"
        raise ConfigurationError(
            f"{setting} must be a file that exists. Got {source!r} instead. Paths are relative to "
            "the folder of the configuration."
        )
    try:
        if path.suffix.lower() == ".npz":
            return _npz(path, settings)
        columns = _csv(path) if path.suffix.lower() == ".csv" else _parquet(path)
    except ConfigurationError:
        raise
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{path} must be text in UTF-8. Got something else instead. Save it as CSV, UTF-8."
        ) from error
    except Exception as error:  # readers of other people's files raise whatever they like
        raise ConfigurationError(f"cannot read {path}: {type(error).__name__}: {error}.") from error
    return _from_columns(columns, path, settings)


def file_digest(source: str) -> str:
    """A name of the file's content. Kept in checkpoints: it would confirm a guess of the data."""
    with Path(source).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


# ------------------------------------------------------------------------------------------- npz


def _npz(path: Path, settings: DataSettings) -> RawRows:
    suffixes = ("", "_train", "_test")
    wanted = (settings.inputs, settings.target, *([settings.unit] if settings.unit else []))
    names = [name + suffix for name in wanted for suffix in suffixes]
    check_arrays(path, names)
    with np.load(path, allow_pickle=False) as arrays:
        return _from_arrays(arrays, path, settings)


def _from_arrays(arrays: Any, path: Path, settings: DataSettings) -> RawRows:
    """``x`` and ``y``, or ``x_train``, ``y_train`` and, if there, ``x_test``, ``y_test``."""
    needs_target = settings.task != "language"

    def pair(suffix: str) -> tuple[Array, Array | None]:
        x = _array(arrays, settings.inputs + suffix, path, "data.inputs")
        y = None
        if needs_target:
            y = _array(arrays, settings.target + suffix, path, "data.target")
        return x, y

    split = f"{settings.inputs}_train" in arrays and settings.inputs not in arrays
    suffix = "_train" if split else ""
    whose = f"{settings.unit}{suffix}"
    unit = None if settings.unit is None or whose not in arrays else np.asarray(arrays[whose])
    if not split:
        return RawRows(*pair(""), unit=unit)
    has_test = f"{settings.inputs}_test" in arrays
    return RawRows(*pair("_train"), held_out=pair("_test") if has_test else None, unit=unit)


def _array(arrays: Any, name: str, path: Path, setting: str) -> Array:
    if name not in arrays:
        raise ConfigurationError(
            f"{setting} must be the name of an array in {path}. Got {name!r} instead; the file has "
            f"{', '.join(arrays)}."
        )
    return np.asarray(arrays[name])


# ---------------------------------------------------------------------------------------- tables


def _csv(path: Path) -> dict[str, list[Any]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, skipinitialspace=True)
        names = next(reader, [])
        _check_header(path, names)
        lines = [line for line in reader if line]
    for number, line in enumerate(lines, start=2):
        if len(line) != len(names):
            raise ConfigurationError(
                f"{path} must have {len(names)} values in each line, as in its header. Got "
                f"{len(line)} in line {number} instead."
            )
    if len(set(names)) != len(names):
        raise ConfigurationError(f"{path} must have different names in its header. Got {names}.")
    return dict(zip(names, (list(column) for column in zip(*lines, strict=True)), strict=False))


def _check_header(path: Path, names: list[str]) -> None:
    """Names, separated by commas. What stands there is not shown: it may be a row."""
    if names and all(map(_reads_as_number, names)):
        raise ConfigurationError(
            f"{path} must have names of columns in its first line. Got numbers instead. Put a line "
            "with names above the rows."
        )
    for sign, called in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and sign in names[0]:
            raise ConfigurationError(
                f"{path} must be separated by commas. Got {called} instead. Save it with commas, "
                "and with points in numbers."
            )


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parquet(path: Path) -> dict[str, list[Any]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigurationError(
            "parquet files need pyarrow. Install it with: pip install 'winsor[parquet]'."
        ) from error
    with parquet.ParquetFile(path) as file:
        about = file.metadata
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        refuse_too_large(path, sum(group.total_byte_size for group in groups))
        rows = max(about.num_rows, sum(group.num_rows for group in groups))
        refuse_bomb(path, path.stat().st_size, 8 * rows * about.num_columns)
        table = file.read()
        table.validate(full=True)
    return {name: table[name].to_numpy() for name in table.column_names}


def _from_columns(columns: dict[str, Any], path: Path, settings: DataSettings) -> RawRows:
    if not columns:
        raise ConfigurationError(f"{path} must have rows. Got none.")
    needs_target = settings.task != "language"
    features = settings.features
    if features is None:
        apart = {settings.unit, settings.target if needs_target else None}
        features = [name for name in columns if name not in apart]
    wanted = [("data.features", name) for name in features]
    wanted += [("data.target", settings.target)] * needs_target
    for setting, name in wanted:
        if name not in columns:
            raise ConfigurationError(
                f"{setting} must name columns of {path}. Got {name!r} instead; it has "
                f"{', '.join(columns)}."
            )
    if not features:
        raise ConfigurationError(
            f"data.features must be at least one column of {path}. Got none instead."
        )
    x = np.stack([_numbers(columns[name], name, path) for name in features], axis=1)
    y = np.asarray(columns[settings.target]) if needs_target else None
    whose = None if settings.unit is None else columns.get(settings.unit)
    return RawRows(x, y, unit=None if whose is None else np.asarray(whose))


def _numbers(column: Any, name: str, path: Path) -> Array:
    try:
        values = np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        gaps = any(str(value).strip().lower() in GAPS for value in column)
        raise (_gaps(name, path) if gaps else _words(name, path)) from None  # it names a value
    if not np.isfinite(values).all():
        raise _gaps(name, path)
    return values


def _words(name: str, path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"data.features must be columns of numbers. {name!r} of {path} has words, or numbers "
        "written with signs that are not part of them. Name the columns to use in data.features, "
        "or encode it before: one column of 0 and 1 per public category."
    )


def _gaps(name: str, path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"data.features must be columns of finite numbers. {name!r} of {path} has gaps or "
        "infinite values. Fill them by a public rule before (a constant you know, and a column "
        "that says where), or leave the column out of data.features."
    )


# ------------------------------------------------------------------------------------ rows on disk


def mapped_source(
    source: str, settings: DataSettings, checked: Callable[..., tuple[Tensor, ...]]
) -> tuple[MappedRows, None, str, NDArray[Any] | None]:
    """Rows that stay on disk, no held-out ones, their digest, and whose they are.

    One pass over the files comes first: it names their content, for resuming, and checks every row
    as rows of other files are checked, a few megabytes at a time. After that only drawn rows are
    read.
    """
    from winsor.training.feeding.mapped import MappedRows

    files = [Path(source)]
    if settings.task != "language":
        files.append(_beside(source, settings.target, "data.target"))
    convert = functools.partial(checked, settings)
    rows = MappedRows(*files, convert=convert)
    digest = hashlib.blake2b(digest_size=16)
    for piece in rows.pieces():
        for array in piece:
            digest.update(np.ascontiguousarray(array).data)
        convert(*piece)  # refuses what a run could not use
    unit = None
    if settings.unit is not None:
        unit = np.load(_beside(source, settings.unit, "data.unit"), allow_pickle=False)
    return rows, None, digest.hexdigest(), unit


def _beside(source: str, name: str, setting: str) -> Path:
    """The .npy file called ``name`` in the folder of ``source``."""
    file = Path(source).parent / (name if name.lower().endswith(".npy") else f"{name}.npy")
    if not file.is_file():
        raise ConfigurationError(
            f"{setting} must name an .npy file in the folder of data.source. Got {name!r} instead: "
            f"{file} is not there."
        )
    return file


# --------------------------------------------------------------------------------- stated sizes

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
