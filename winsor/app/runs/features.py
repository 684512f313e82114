"""Features by name: what a run's model sees in place of pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from winsor.app.runs.data import Data
from winsor.app.runs.reading import Part, bind, value_of
from winsor.core.checks import choice
from winsor.features.named import FEATURES, cached


def build_features(part: Part) -> Callable[[Tensor], Tensor]:
    """The transform of a batch of rows; with ``cache``, results are kept in that folder."""
    options = dict(part.options)
    cache = value_of(str | None, options.pop("cache", None), "features.cache")
    make = FEATURES[choice("features.name", part.name, FEATURES)]
    transform = make(**bind(make, options, "features"))
    label = "-".join([part.name, *(f"{key}_{options[key]}" for key in sorted(options))])
    return lambda rows: cached(label, transform, rows, None if cache is None else Path(cache))


def with_features(part: Part, data: Data) -> Data:
    """The data with features in place of pixels, held-out rows too."""
    if part.name == "none":
        return data
    transform = build_features(part)
    train = transformed_rows(data.train, transform)
    held_out = None if data.held_out is None else transformed_rows(data.held_out, transform)
    shape = tuple(train.tensors[0].shape[1:])
    return replace(data, train=train, held_out=held_out, shape=shape)


def transformed_rows(rows: Dataset[Any], transform: Callable[[Tensor], Tensor]) -> TensorDataset:
    """In memory, with the first column transformed."""
    if not isinstance(rows, TensorDataset):
        columns = zip(*(rows[i] for i in range(len(rows))), strict=True)  # type: ignore[arg-type]
        rows = TensorDataset(*(torch.stack([torch.as_tensor(v) for v in c]) for c in columns))
    x, *rest = rows.tensors
    return TensorDataset(transform(x), *rest)
