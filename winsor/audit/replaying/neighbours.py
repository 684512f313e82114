"""Neighbouring datasets: one row taken away, or replaced by a hostile one.

A row that is taken away keeps its place, so that n stays what it is (docs/privacy.md, "The
setting": n is public, one row's contribution is present or absent): samplers never draw it
(`rows.py`), and the place holds a hostile row, so that whoever reads the table around the samplers
is seen.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from winsor.core.contract import ConfigurationError

REMOVE = "removed"
ABSENT = "absent"
HUGE = 1e30
OPPOSED = 1e20  # places this long that cancel leave a rounding of 10,000 in float64
_LOOKED_AT = 512  # rows in which other labels are looked for


class Exchanged(Dataset[Any]):
    """A map-style dataset with one row exchanged. Other attributes are the original's."""

    def __init__(self, dataset: Any, row: int, content: Any) -> None:
        self._dataset, self._row, self._content = dataset, row, content

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        if int(index) % len(self) == self._row:
            return copy.deepcopy(self._content)
        return self._dataset[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._dataset, name)


class Copies(Exchanged):
    """A map-style dataset whose every row is a copy of one."""

    def __init__(self, dataset: Any, row: int) -> None:
        super().__init__(dataset, row, dataset[row])

    def __getitem__(self, index: int) -> Any:
        return copy.deepcopy(self._content)


def size(dataset: Any) -> int:
    """Return the number of rows: of a dataset, a table, or a tuple of tables."""
    return len(dataset[0]) if _is_tables(dataset) else len(dataset)


def copied(dataset: Any) -> Any:
    """Copy the data for a run: a training that writes into them must not change the next run's."""
    if type(dataset) is TensorDataset:
        return TensorDataset(*(tensor.clone() for tensor in dataset.tensors))
    if _is_tables(dataset):
        return type(dataset)(copy.deepcopy(table) for table in dataset)
    if _is_table(dataset):
        return copy.deepcopy(dataset)
    return dataset


class Person(dict[int, Any]):
    """Several rows of one unit with their contents, which are exchanged together."""


def with_row(dataset: Any, row: int, content: Any) -> Any:
    """Return a copy of ``dataset`` whose row ``row`` is ``content``."""
    if isinstance(content, Person):
        for own, part in content.items():
            dataset = with_row(dataset, own, part)
        return dataset
    if type(dataset) is TensorDataset:
        return TensorDataset(*_written(dataset.tensors, row, content))
    if _is_tables(dataset):
        return type(dataset)(_written(dataset, row, content))
    if _is_table(dataset):
        return _written((dataset,), row, (content,))[0]
    return Exchanged(dataset, row, content)


def read_row(dataset: Any, row: int) -> Any:
    """Return one row of a dataset, or of a tuple of tables."""
    if _is_tables(dataset):
        return tuple(table[row] for table in dataset)
    return dataset[row]


def all_copies(dataset: Any) -> Any:
    """Return as many rows, all copies of one: where others agree, one that does not moves most."""
    n = size(dataset)
    same = [n // 3] * n
    if type(dataset) is TensorDataset:
        return TensorDataset(*(tensor[same].clone() for tensor in dataset.tensors))
    if _is_tables(dataset):
        return type(dataset)(table[same] for table in dataset)
    return dataset[same] if _is_table(dataset) else Copies(dataset, n // 3)


def labels(dataset: Any) -> list[Any]:
    """Return the last fields of the first rows: where another label comes from."""
    first = read_row(dataset, 0)
    if not isinstance(first, tuple | list) or _dimensions(first[-1]):
        return []
    return [read_row(dataset, i)[-1] for i in range(min(size(dataset), _LOOKED_AT))]


def hostile_rows(
    dataset: Any, row: int, labels: list[Any], unit: Sequence[int] = ()
) -> dict[str, Any]:
    """Name -> what takes the row's place. Kinds that would change nothing are left out.

    ``unit`` are all rows of the row's unit, if it has more than one.
    """
    own = read_row(dataset, row)
    others = [int(other) for other in unit if other != row]
    n = size(dataset)
    kinds: dict[str, Callable[[], Any]] = {
        "zeros": lambda: _mapped(own, lambda x: x * 0),
        "times -100": lambda: _mapped(own, lambda x: x * -100),
        "1e30": lambda: _mapped(own, lambda x: _of_size(x, HUGE)),  # its square is no float32
        "-1e30": lambda: _mapped(own, lambda x: -_of_size(x, HUGE)),
        "places that cancel": lambda: _mapped(own, _opposed),
        "squares that vanish": lambda: _vanishing(own),
        "another label": lambda: _relabelled(own, labels),
        "a copy of another row": lambda: read_row(dataset, (row + n // 2) % n),
    }
    made = {name: make() for name, make in kinds.items()}
    found = {name: content for name, content in made.items() if not _same(content, own)}
    if others:
        contents = {row: _mapped(own, _long), others[0]: _mapped(own, lambda x: -_long(x))}
        found["rows that cancel"] = Person(contents)
    return found


# --------------------------------------------------------------------------------------- fields


def _is_table(dataset: Any) -> bool:
    return isinstance(dataset, np.ndarray | Tensor)


def _is_tables(dataset: Any) -> bool:
    return (
        isinstance(dataset, tuple | list)
        and bool(dataset)
        and all(_is_table(table) for table in dataset)
    )


def _written(tables: Iterable[Any], row: int, content: Sequence[Any]) -> list[Any]:
    found = []
    for table, value in zip(tables, content, strict=True):
        fresh = copy.deepcopy(table)
        fresh[row] = value
        found.append(fresh)
    return found


def _mapped(row: Any, change: Callable[[Any], Any]) -> Any:
    """``change`` on every floating-point field."""
    if isinstance(row, tuple | list):
        return type(row)(_mapped(field, change) for field in row)
    if isinstance(row, dict):
        return {name: _mapped(field, change) for name, field in row.items()}
    if isinstance(row, Tensor):
        return change(row) if row.is_floating_point() else row
    if isinstance(row, np.ndarray | np.floating):
        return change(row) if row.dtype.kind == "f" else row
    return change(row) if isinstance(row, float) else row


def _of_size(field: Any, size: float) -> Any:
    """``size`` in every coordinate, with its sign, as far as the type goes."""
    if isinstance(field, Tensor):
        size = min(size, torch.finfo(field.dtype).max)
        return torch.full_like(field, size).copysign(field)
    return np.copysign(size, field).astype(np.asarray(field).dtype)


def _long(field: Any) -> Any:
    """`OPPOSED` in every coordinate of a field that is not a label."""
    return _of_size(field, OPPOSED) if _dimensions(field) else 1 * field


def _vanishing(row: Any) -> Any:
    """The first field in such small numbers that their squares are zero, the others so large that
    products of the two are not."""
    sizes: list[float] = []

    def change(field: Any) -> Any:
        width = getattr(field, "itemsize", 8)
        sizes.append((1e-23, 1e18)[bool(sizes)] if width == 4 else (1e-170, 1e300)[bool(sizes)])
        return _of_size(field, sizes[-1])

    return _mapped(row, change)


def _opposed(field: Any) -> Any:
    """About 1e20 in every coordinate, and 0 in sum along every axis of a field that has places:
    pixels, words, hours.

    A gradient that adds up places is then short and full of rounding (tests/grads,
    `test_cancelling_places`). A field without places stays as it is.
    """
    if _dimensions(field) < 2:
        return field
    values = OPPOSED * np.random.default_rng(0).normal(size=tuple(field.shape))
    for axis, length in enumerate(values.shape):
        if length > 1:
            values = values - np.flip(values, axis)
    if isinstance(field, Tensor):
        most = torch.finfo(field.dtype).max
        return torch.as_tensor(values.clip(-most, most)).to(field)
    return values.astype(field.dtype)


def _relabelled(own: Any, labels: list[Any]) -> Any:
    """The row with its last scalar field exchanged for another row's, or for one far off."""
    if not labels:
        return own
    label = own[-1]
    if isinstance(label, float) or getattr(label, "dtype", np.dtype(int)) in _REAL:
        other = -label + 1000
    else:
        other = next((value for value in labels if not _same(value, label)), label)
    return type(own)([*own[:-1], other])


_REAL = (torch.float32, torch.float64, np.dtype(np.float32), np.dtype(np.float64))


def _dimensions(field: Any) -> int:
    return len(getattr(field, "shape", ()))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if isinstance(a, Tensor):
        return torch.equal(a, torch.as_tensor(b))
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))


def check(dataset: Any) -> None:
    """Refuse datasets whose rows cannot be exchanged."""
    try:
        n = size(dataset)
    except TypeError as error:
        raise ConfigurationError(
            "dataset must have rows by index: a map-style Dataset, a table, or a tuple of tables. "
            f"Got {type(dataset).__name__} instead."
        ) from error
    if n < 2:
        raise ConfigurationError(
            f"dataset must have at least 2 rows, so that one can be exchanged. Got {n} instead."
        )
