"""Rows of tables that are larger than memory: read by index from .npy files, batch by batch.

Each batch opens the files, copies its rows and lets go, so that a process holds one batch and not
the part of the file it has ever touched. Nothing is computed from the rows. Which rows a batch has,
is the sampler's business; here they only arrive.

`npy_from_parquet` makes such files from a parquet table, one row group after the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from winsor.core.contract import ConfigurationError

Array = NDArray[Any]
Convert = Callable[..., tuple[Tensor, ...]]

SPARSE = 32
"""Below one row in so many, rows are fetched one by one, many at a time."""
_ASKED = 256
"""Rows that the disk is asked for at once: alone, each would wait for the one before it."""
_PIECE = 1 << 25  # bytes that are mapped and read at a time


class MappedRows(Dataset[tuple[Tensor, ...]]):
    """A dataset whose rows stay on disk: one .npy file for the inputs, one for the targets, ...

    Parameters
    ----------
    files
        .npy files with equally many rows: an array each, in C order, of numbers.
    convert
        From the arrays of a batch to the tensors the model sees, row by row; default: as they are.
        It must treat each row by itself, as a collate function must.

    Examples
    --------
    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "x.npy", np.arange(12, dtype=np.float32).reshape(6, 2))
    >>> np.save(folder / "y.npy", np.arange(6))
    >>> rows = MappedRows(folder / "x.npy", folder / "y.npy")
    >>> len(rows), rows[4]
    (6, (tensor([8., 9.]), tensor(4)))
    >>> rows.take_rows(np.array([0, 5]))[1]
    tensor([0, 5])
    """

    def __init__(self, *files: str | os.PathLike[str], convert: Convert | None = None) -> None:
        if not files:
            raise ConfigurationError("files must be at least one .npy file. Got none instead.")
        self.files = [Path(file) for file in files]
        self.convert = convert
        self._chosen: NDArray[np.int64] | None = None
        lengths = {str(file): len(_opened(file)) for file in self.files}
        if len(set(lengths.values())) != 1:
            raise ConfigurationError(f"files must have equally many rows. Got {lengths} instead.")
        (self._length,) = set(lengths.values())

    def __len__(self) -> int:
        return self._length if self._chosen is None else len(self._chosen)

    def __getitem__(self, row: int) -> tuple[Tensor, ...]:
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        return tuple(tensor[0] for tensor in self.take_rows(np.array([row % len(self)])))

    def take_rows(self, rows: NDArray[np.int64]) -> tuple[Tensor, ...]:
        """Return the rows at these places, as one tensor per file."""
        if self._chosen is not None:
            rows = self._chosen[rows]
        arrays = [self._rows_of(file, rows) for file in self.files]
        return self._tensors(arrays)

    def subset(self, rows: NDArray[np.int64]) -> MappedRows:
        """View the same files as these rows only."""
        part = MappedRows(*self.files, convert=self.convert)
        part._chosen = np.asarray(rows if self._chosen is None else self._chosen[rows], np.int64)
        return part

    def pieces(self) -> Iterator[list[Array]]:
        """Yield all rows of the files from first to last, as raw arrays of a few megabytes."""
        row = sum(_opened(file)[:1].nbytes for file in self.files)
        step = max(1, _PIECE // max(1, row))
        for first in range(0, self._length, step):
            yield [np.array(_opened(file)[first : first + step]) for file in self.files]

    def _rows_of(self, file: Path, rows: NDArray[np.int64]) -> Array:
        """Read in the order of the file, which disks like; mapped anew for every few megabytes,
        because a page that was touched counts as memory of the process until its map is gone."""
        like = _opened(file)
        if len(like) != self._length:
            raise ConfigurationError(
                f"{file} must stay as it is during a run. It had {self._length} rows, and has "
                f"{len(like)} now."
            )
        if len(rows) and not -self._length <= rows.min() <= rows.max() < self._length:
            raise IndexError(f"rows must be below {self._length}. Got {rows.max()} instead.")
        rows = rows % self._length  # places from the end, as in arrays
        found = np.empty((len(rows), *like.shape[1:]), like.dtype)
        order = np.argsort(rows, kind="stable")
        if SPARSE * len(rows) < self._length and hasattr(os, "posix_fadvise"):
            _fetch(file, like.offset, rows[order], order, found)
            return found
        for places in np.array_split(order, max(1, -(-found.nbytes // _PIECE))):
            found[places] = _opened(file)[rows[places]]
        return found

    def _tensors(self, arrays: Sequence[Array]) -> tuple[Tensor, ...]:
        if self.convert is not None:
            return self.convert(*arrays)
        return tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)


def _fetch(
    file: Path, start: int, rows: NDArray[np.int64], places: NDArray[np.int64], found: Array
) -> None:
    """Read rows far apart to these places of ``found``: the disk is asked for a block of them
    while the block before is copied. Reading them through a map asks for one page at a time and
    waits."""
    size = found[:1].nbytes
    if size == 0:
        return
    target = found.reshape(-1).view(np.uint8).data
    from_to = list(zip((start + rows * size).tolist(), (places * size).tolist(), strict=True))
    with file.open("rb", buffering=0) as opened:
        descriptor = opened.fileno()
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead

        def ask(block: list[tuple[int, int]]) -> None:
            for offset, _ in block:
                os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)

        blocks = [from_to[first : first + _ASKED] for first in range(0, len(from_to), _ASKED)]
        ahead = iter(blocks)
        ask(next(ahead, []))
        for block in blocks:
            ask(next(ahead, []))
            for offset, place in block:
                got = os.preadv(descriptor, [target[place : place + size]], offset)
                if got != size:
                    raise ConfigurationError(f"{file} must stay as it is during a run. It ended.")


def _opened(file: Path) -> np.memmap[Any, Any]:
    """Return a fresh map of the file: what it has read is let go with it."""
    try:
        mapped = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigurationError(f"cannot map {file} as an .npy file: {error}.") from error
    if not isinstance(mapped, np.memmap) or mapped.ndim == 0 or mapped.dtype.kind not in "fiub":
        raise ConfigurationError(
            f"{file} must be one array of numbers with a row for each record. Got "
            f"{type(mapped).__name__} instead."
        )
    if not mapped.flags.c_contiguous:
        raise ConfigurationError(
            f"{file} must have its rows one after the other (C order). Got Fortran order instead. "
            "Save numpy.ascontiguousarray(array)."
        )
    return mapped


def npy_from_parquet(
    source: str | os.PathLike[str],
    inputs: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    features: Iterable[str] | None = None,
    target_column: str | None = None,
    dtype: str = "float32",
) -> int:
    """Write the columns of a parquet table as .npy files for `MappedRows`; returns the rows.

    One row group is in memory at a time. ``features`` go to ``inputs`` (default: all columns but
    the target), ``target_column`` to ``target``. The files hold the rows as they are: guard them as
    you guard the table.
    """
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigurationError(
            "parquet files need pyarrow. Install it with: pip install 'winsor[parquet]'."
        ) from error
    if (target is None) != (target_column is None):
        raise ConfigurationError("target and target_column must be given together, or neither.")
    with parquet.ParquetFile(source) as table:
        names = [name for name in table.schema_arrow.names if name != target_column]
        names = names if features is None else list(features)
        count = table.metadata.num_rows
        x = _new(inputs, dtype, (count, len(names)))
        y = None
        row = 0
        for number in range(table.metadata.num_row_groups):
            group = table.read_row_group(number)
            last = row + group.num_rows
            for place, name in enumerate(names):
                x[row:last, place] = group[name].to_numpy()
            if target is not None:
                values = group[target_column].to_numpy()
                y = _new(target, str(values.dtype), (count,)) if y is None else y
                y[row:last] = values
            row = last
        x.flush()
        if y is not None:
            y.flush()
    return int(count)


def _new(path: str | os.PathLike[str], dtype: str, shape: tuple[int, ...]) -> np.memmap[Any, Any]:
    return np.lib.format.open_memmap(Path(path), mode="w+", dtype=np.dtype(dtype), shape=shape)
