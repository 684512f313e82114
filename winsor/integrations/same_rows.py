"""Are these rows for evaluation the private ones? Metrics on them would leave without noise.

Found: the same object, a `Subset` of it, and a `datasets.Dataset` over the same table (a split, a
selection, a shuffle). Rows that were copied cannot be found, so the guarantee names evaluation
among its conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Subset

from winsor.core.contract import UnsoundRelease

PUBLIC_EVALUATION = "rows for evaluation are public: metrics on them are shown as they are"


def refuse_private_evaluation(private: Any, looked_at: Any, purpose: str) -> None:
    """Refuse ``looked_at`` (a dataset, or several by name) where it holds rows of ``private``."""
    several = looked_at.values() if isinstance(looked_at, Mapping) else [looked_at]
    if any(one is not None and _share(private, one) for one in several):
        raise UnsoundRelease(
            f"{purpose} must not use private rows. Got rows of train_dataset, whose metrics would "
            "leave without noise. Give public rows, or measure private ones through the door: "
            "winsor.metrics, winsor.fit(evaluate=...)."
        )


def _share(one: Any, other: Any) -> bool:
    (first, chosen), (second, looked_at) = _inside(one), _inside(other)
    if first is second:
        return chosen is None or looked_at is None or bool(set(chosen) & set(looked_at))
    tables = [getattr(getattr(each, "_data", None), "table", None) for each in (first, second)]
    names = [set(table.column_names) for table in tables if table is not None]
    common = sorted(names[0] & names[1]) if len(names) == 2 else []
    return any(
        np.intersect1d(_addresses(first, name, chosen), _addresses(second, name, looked_at)).size
        for name in common
    )


def _inside(dataset: Any) -> tuple[Any, list[int] | None]:
    """What a `Subset` is of, and which rows: None for all."""
    chosen: list[int] | None = None
    while isinstance(dataset, Subset):
        here = list(dataset.indices)
        chosen = here if chosen is None else [here[i] for i in chosen]
        dataset = dataset.dataset
    return dataset, chosen


def _addresses(dataset: Any, column: str, chosen: list[int] | None) -> NDArray[np.int64]:
    """Where in memory each row of a `datasets.Dataset` lies: views of a table share it."""
    found = [np.empty(0, np.int64)]
    for chunk in dataset._data.table.column(column).chunks:
        values = chunk.buffers()[1]
        if values is None:
            return found[0]  # a column without values
        found.append(values.address + chunk.offset + np.arange(len(chunk), dtype=np.int64))
    rows = np.concatenate(found)
    if dataset._indices is not None:
        rows = rows[dataset._indices.column(0).to_numpy().astype(np.int64)]
    return rows if chosen is None else rows[chosen]
