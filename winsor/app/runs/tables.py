"""Rows from files: .npz arrays, .csv and .parquet tables.

Nothing is computed from the rows: no scaling, no filling of gaps, no set of labels. What the rows
must satisfy is stated in the configuration and checked.
"""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winsor.app.runs.archives import check_arrays, refuse_bomb, refuse_too_large
from winsor.app.runs.config import DataSettings
from winsor.core.contract import ConfigurationError

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
    """The rows of one file."""
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
    """Names a file's content. Kept in checkpoints only: it would confirm a guess of the data."""
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
