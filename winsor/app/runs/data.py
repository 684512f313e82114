"""The rows of a run: protected training rows, and held-out rows for metrics.

A row is held out by a coin that looks at nothing but the seed and the row's position, so the choice
for one row does not depend on any other. Where persons are protected, all rows of a person have one
coin, from the seed and the person's identifier: nobody is on both sides.

Guarantee
---------
None here: the guarantee is for the training rows, as they leave this module. What is known about
them beforehand (their number, shapes, classes, the constants of the scaling) is public.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from winsor.app.runs.config import DataSettings, is_file
from winsor.app.runs.files import GAPS, RawRows, file_digest, mapped_source, read_rows
from winsor.app.runs.reading import bind, call_imported, import_object, is_import_path
from winsor.core.contract import ConfigurationError
from winsor.core.sampling.units import UnitRows

BUILT_IN = ("digits", "synthetic")


@dataclass(frozen=True)
class Data:
    """What a run trains on, and what it is measured on."""

    train: Dataset[Any]
    held_out: Dataset[Any] | None
    shape: tuple[int, ...]
    """Of one row's input; for language, the length of a sequence."""
    outputs: int
    """Classes, tokens, or 1 for regression."""
    digest: str
    """Names the content, so that a resumed run can tell that the data changed."""
    unit: NDArray[Any] | None = None
    """Whose each training row is, where persons are protected."""

    @property
    def protected(self) -> int:
        """How many there are of what is protected: units, or rows."""
        return self.size if self.unit is None else len(np.unique(self.unit))

    @property
    def count(self) -> dict[str, int]:
        """The public count: persons, or rows. How many rows a person has is not public."""
        return {"rows" if self.unit is None else "units": self.protected}

    @property
    def size(self) -> int:
        """The number of training rows."""
        return len(self.train)  # type: ignore[arg-type]

    @property
    def held_out_size(self) -> int:
        """The number of held-out rows."""
        return 0 if self.held_out is None else len(self.held_out)  # type: ignore[arg-type]


def load_data(settings: DataSettings, protected: bool = True) -> Data:
    """Load the training and held-out rows that the settings describe.

    Rows that are not ``protected`` need not say whose they are.
    """
    rows, held_out, digest, unit = _source(settings.source, settings)
    if settings.unit is not None and protected:
        _check_units(unit, len(rows), settings)  # type: ignore[arg-type]
    if len(rows) == 0:  # type: ignore[arg-type]
        raise ConfigurationError(
            f"data.source must have at least one training row. Got none from {settings.source!r}."
        )
    if settings.held_out is not None:
        held_out = _source(settings.held_out, settings)[0]
    if held_out is None and settings.held_out_fraction > 0:
        out = _coins(len(rows), unit, settings)  # type: ignore[arg-type]
        rows, held_out = _split(rows, out, settings.held_out_fraction)
        unit = None if unit is None else unit[~out]
    return Data(rows, held_out, _shape(rows, settings), _outputs(settings), digest, unit)


Source = tuple[Dataset[Any], Dataset[Any] | None, str, NDArray[Any] | None]


def _source(source: str, settings: DataSettings) -> Source:
    if source in BUILT_IN:
        return (_digits if source == "digits" else _synthetic)(settings), None, source, None
    if source.lower().endswith(".npy"):
        return mapped_source(source, settings, checked_tensors)
    if is_file(source):
        rows = read_rows(source, settings)
        held_out = None if rows.held_out is None else _tensors(RawRows(*rows.held_out), settings)
        return _tensors(rows, settings), held_out, file_digest(source), rows.unit
    if is_import_path(source):
        return _imported(source, settings)
    raise ConfigurationError(
        f"data.source must be one of {', '.join(BUILT_IN)}, a file ending in .npz, .npy, .csv "
        f'or .parquet, or an import path "package.module:name". Got {source!r} instead.'
    )


# -------------------------------------------------------------------------------------- sources


def _digits(settings: DataSettings) -> Dataset[Any]:
    """Handwritten digits that ship with scikit-learn, scaled by their public range 0..16."""
    if settings.task != "classification":
        raise ConfigurationError(
            f"data.task must be classification for digits. Got {settings.task!r} instead."
        )
    table = _digits_table()
    return _tensors(RawRows(table[:, :-1] / 16.0, table[:, -1].astype(int)), settings)


def _digits_table() -> NDArray[np.float64]:
    """The file that `sklearn.datasets.load_digits` reads, without importing scikit-learn, which
    brings pandas and takes longer than all of a small run."""
    found = find_spec("sklearn")
    place = Path(found.origin).parent if found is not None and found.origin else Path()
    file = place / "datasets" / "data" / "digits.csv.gz"
    if file.exists():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # laid out in another way: as it wants to be asked

    x, y = load_digits(return_X_y=True)
    return np.column_stack([x, y])


def _synthetic(settings: DataSettings) -> Dataset[Any]:
    from winsor.app.runs import synthetic

    maker: Any = getattr(synthetic, "tokens" if settings.task == "language" else settings.task)
    options = bind(maker, settings.options, "data.options")
    if settings.task == "regression":
        x, y = synthetic.regression(settings.seed, **options)
        return _tensors(RawRows(x, y), settings)
    if settings.task == "language":
        sequences = synthetic.tokens(_outputs(settings), settings.seed, **options)
        return _tensors(RawRows(sequences, None), settings)
    inputs, labels = synthetic.classification(_outputs(settings), settings.seed, **options)
    return _tensors(RawRows(inputs, labels), settings)


def _imported(source: str, settings: DataSettings) -> Source:
    """A dataset, or a class or function that gives one, or gives a pair (training, held out)."""
    found = import_object(source, "data.source")
    if not isinstance(found, Dataset) and callable(found):
        found = call_imported(found, settings.options, "data.source")
    pair = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    for dataset in pair:
        if dataset is not None and not (
            hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        ):
            raise ConfigurationError(
                "data.source must be a map-style dataset, with a length and rows by index, or a "
                f"pair of them. Got {type(dataset).__name__} from {source!r} instead."
            )
    whose = None if settings.unit is None else getattr(pair[0], settings.unit, None)
    unit = None if whose is None else np.asanyarray(whose)
    return pair[0], pair[1], f"{source} {len(pair[0])}", unit


# ------------------------------------------------------------------------------------- to tensors


def checked_tensors(settings: DataSettings, x: Any, y: Any = None) -> tuple[Tensor, ...]:
    """Turn rows into tensors as the model sees them, or refuse them with the reason."""
    return _tensors(RawRows(x, y), settings).tensors


def _tensors(rows: RawRows, settings: DataSettings) -> TensorDataset:
    if settings.task == "language":
        return TensorDataset(_token_rows(rows.x, settings))
    assert rows.y is not None
    if rows.x.ndim < 2 or 0 in rows.x.shape[1:]:
        raise ConfigurationError(
            "data.inputs must have at least one feature in each row. Got an array of shape "
            f"{rows.x.shape} instead."
        )
    if rows.y.ndim == 0 or math.prod(rows.y.shape) != len(rows.y):
        raise ConfigurationError(
            f"data.target must be one value per row. Got shape {rows.y.shape} instead."
        )
    if len(rows.x) != len(rows.y):
        raise ConfigurationError(
            f"data.inputs and data.target must have equally many rows. Got {len(rows.x)} and "
            f"{len(rows.y)} instead."
        )
    if rows.x.dtype.kind not in "fiub":
        raise ConfigurationError(f"data.inputs must be numbers. Got {rows.x.dtype} instead.")
    with np.errstate(over="ignore"):  # too large for 32 bits is infinite, and refused below
        x = torch.from_numpy(np.array(rows.x, dtype=np.float32))
    if not bool(torch.isfinite(x).all()):
        raise ConfigurationError(
            "data.inputs must be finite. Got gaps or infinite values instead. Fill them by a "
            "public rule before."
        )
    x = _scaled(x, settings)
    if not bool(torch.isfinite(x).all()):
        raise ConfigurationError(
            "data.inputs must be finite after scaling. Got infinite values instead. Correct "
            "data.subtract and data.divide."
        )
    if settings.shape is not None:
        x = _reshaped(x, settings.shape)
    if settings.task == "regression":
        return TensorDataset(x, _real_targets(rows.y))
    return TensorDataset(x, _labels(rows.y, settings))


def _scaled(x: Tensor, settings: DataSettings) -> Tensor:
    subtract, divide = torch.tensor(settings.subtract), torch.tensor(settings.divide)
    for name, constant in (("subtract", subtract), ("divide", divide)):
        if constant.ndim and (x.ndim != 2 or len(constant) != x.shape[1]):
            raise ConfigurationError(
                f"data.{name} must be one number or one for each of the features. Got "
                f"{len(constant)} for inputs of shape {tuple(x.shape[1:])} instead."
            )
    return x.sub_(subtract).div_(divide)


def _reshaped(x: Tensor, shape: list[int]) -> Tensor:
    values = math.prod(x.shape[1:])
    if math.prod(shape) != values:
        raise ConfigurationError(
            f"data.shape must have as many values as a row, {values}. Got {shape} instead."
        )
    return x.reshape(len(x), *shape)


def _real_targets(y: Any) -> Tensor:
    try:
        with np.errstate(over="ignore"):
            values = torch.from_numpy(np.array(y, dtype=np.float32))
    except (TypeError, ValueError):
        raise ConfigurationError(
            "data.target must be numbers for regression. Got words or gaps instead. Choose another "
            'column, or say data.task = "classification" and data.classes.'
        ) from None  # the error names a value
    if values.ndim != 1 or not bool(torch.isfinite(values).all()):
        raise ConfigurationError(
            f"data.target must be one finite number per row. Got shape {tuple(values.shape)}, or "
            "gaps, instead."
        )
    return values


def _labels(y: Any, settings: DataSettings) -> Tensor:
    """Labels 0..k-1. They are checked against the public classes, never counted."""
    classes = _outputs(settings)
    if isinstance(settings.classes, list):
        place = {label: k for k, label in enumerate(settings.classes)}
        found = [place.get(str(label), -1) for label in np.asarray(y).reshape(-1)]
        labels = torch.tensor(found, dtype=torch.int64)
    else:
        try:
            numbers = np.asarray(y, dtype=np.float64).reshape(-1)
        except (TypeError, ValueError):
            raise ConfigurationError(
                "data.classes must list the labels if they are text, for instance "
                '["no", "yes"]. Got a number instead, with labels that are text, or missing.'
            ) from None  # the error names a label
        whole = np.where(np.isfinite(numbers) & (numbers == np.floor(numbers)), numbers, -1)
        labels = torch.from_numpy(whole.astype(np.int64))
    if bool(((labels < 0) | (labels >= classes)).any()):
        wanted = settings.classes if isinstance(settings.classes, list) else f"0..{classes - 1}"
        raise ConfigurationError(
            f"data.target must have labels among {wanted}. Got others. Correct data.classes: those "
            'that do not count from 0 are listed as they are written, for instance ["1", "2"].'
        )
    return labels


def _token_rows(x: Any, settings: DataSettings) -> Tensor:
    """Whole numbers (rows, length) below the number of tokens; negative ones are padding."""
    tokens = np.asarray(x)
    if tokens.ndim != 2 or tokens.shape[1] < 2 or tokens.dtype.kind not in "iu":
        raise ConfigurationError(
            "data.inputs must be whole numbers of shape (rows, length >= 2) for language. Got "
            f"{tokens.dtype} of shape {tuple(tokens.shape)} instead."
        )
    if bool((tokens >= _outputs(settings)).any()):
        raise ConfigurationError(
            f"data.inputs must be tokens below data.classes = {settings.classes}. Got larger ones."
        )
    return torch.from_numpy(tokens.astype(np.int64))


# --------------------------------------------------------------------------------- what is public


def _outputs(settings: DataSettings) -> int:
    if settings.task == "regression":
        return 1
    if isinstance(settings.classes, list):
        return len(settings.classes)
    if settings.classes is None:
        if settings.source == "digits":
            return 10
        what = "tokens" if settings.task == "language" else "classes"
        raise ConfigurationError(
            f"data.classes must be given: the number of {what}, or the labels as they are written. "
            "It is missing. It must be public, so it is not read off the rows."
        )
    return settings.classes


def _shape(rows: Dataset[Any], settings: DataSettings) -> tuple[int, ...]:
    row = rows[0]
    x = row[0] if isinstance(row, tuple | list) else row
    if not isinstance(x, Tensor):
        raise ConfigurationError(
            "data.source must give rows (input, target) with a tensor as input. Got "
            f"{type(x).__name__} instead."
        )
    return tuple(x.shape)


def _check_units(unit: NDArray[Any] | None, n: int, settings: DataSettings) -> None:
    """One identifier for each row, of somebody."""
    if unit is None:
        raise ConfigurationError(
            "data.unit must be a column of the table, an array of the file or an attribute of the "
            f"dataset. Got {settings.unit!r} instead, which {settings.source!r} does not have."
        )
    if unit.shape != (n,):
        raise ConfigurationError(
            f"data.unit must be one identifier for each of the {n} rows. Got shape {unit.shape} "
            "instead."
        )
    if any(str(value).strip().lower() in GAPS for value in unit.tolist()):
        raise ConfigurationError(
            f"data.unit must name somebody for every row. Got {settings.unit!r} with gaps instead. "
            "Give each such row an identifier of its own, or leave it out."
        )
    UnitRows(unit, 1)  # refuses NaT and others


def _coins(n: int, unit: NDArray[Any] | None, settings: DataSettings) -> NDArray[np.bool_]:
    """Which rows are held out."""
    if unit is None:
        drawn = np.random.default_rng([settings.seed, 0x5EED]).random(n)
    else:
        known = {name: _coin(name, settings.seed) for name in set(unit.tolist())}
        drawn = np.array([known[name] for name in unit.tolist()])
    return np.asarray(drawn < settings.held_out_fraction)


def _coin(name: Any, seed: int) -> float:
    """In [0, 1), from the seed and the identifier alone: who else is there changes nothing."""
    digest = hashlib.blake2b(f"held out {seed} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def _split(
    rows: Dataset[Any], out: NDArray[np.bool_], fraction: float
) -> tuple[Dataset[Any], Dataset[Any]]:
    inside, outside = np.flatnonzero(~out), np.flatnonzero(out)
    if len(inside) == 0 or len(outside) == 0:
        raise ConfigurationError(
            f"data.held_out_fraction must leave rows on both sides. Got {fraction} for {len(out)} "
            "rows."
        )
    if isinstance(rows, TensorDataset):
        return _rows_of(rows, inside), _rows_of(rows, outside)
    if hasattr(rows, "subset"):  # `MappedRows`, which stay on disk
        return rows.subset(inside), rows.subset(outside)
    return Subset(rows, inside.tolist()), Subset(rows, outside.tolist())


def _rows_of(rows: TensorDataset, index: Any) -> TensorDataset:
    return TensorDataset(*(tensor[torch.from_numpy(index)] for tensor in rows.tensors))
