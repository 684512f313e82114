"""From features to the rows that a record trains on: row by row, then by what is released once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from records_features import PART, PER_ROW, by_chunks, unit
from torch import Tensor

from winsor.features import PrivateAxes, PrivateNorm, PrivateWhitening
from winsor.features.moments import ReleasedMoments

if TYPE_CHECKING:
    from records_training import Record

NORM_NOISE = 10.0
"""Over its sensitivity: moments at epsilon 0.4, a few thousandths of the training's noise."""

Transform = Callable[[Tensor], Tensor]


def normalised(
    x: Tensor, record: Record, shared: dict[str, Any], ledger: Path | None = None
) -> tuple[Transform, list[ReleasedMoments]]:
    """The transform of a row of features, and what was released for it, each with a ledger of its
    own beside ``ledger``."""
    norm = PER_ROW.get(record.norm)
    spent: list[ReleasedMoments] = []
    if norm is None:
        mean, square = record.bounds
        options = {"mean_bound": mean, "square_bound": square, "noise_multiplier": NORM_NOISE}
        norm = PrivateNorm(**options, **shared, ledger=before(ledger, "moments")).fit(x)
        spent.append(norm)
    if record.axes is not None:
        noise, power, *places = record.axes
        options = {"noise_multiplier": noise, "power": power, "place_power": (*places, None)[0]}
        kept = before(ledger, "axes")
        axes = PrivateAxes(**options, **shared, ledger=kept).fit(_maps(x, norm))
        norm = _then(norm, axes)
        spent.append(axes)
    if record.white is not None:
        rows = by_chunks(x, norm)
        options = {"noise_multiplier": record.white, "ledger": before(ledger, "whitening")}
        white = PrivateWhitening(**options, **shared).fit(rows)
        norm = _then(norm, white, flat=True)
        spent.append(white)
    if record.axes is not None and record.white is not None:
        norm = _then(norm, unit)  # each row by itself
    return norm, spent


def before(ledger: Path | None, name: str) -> Path | None:
    """Where the ledger of a release before the steps is kept, which are in ``ledger``."""
    return None if ledger is None else ledger.with_suffix(f".{name}.ledger")


def released_with(record: Record) -> list[float]:
    """The noise multipliers of what `normalised` releases."""
    moments = [] if record.norm in PER_ROW else [NORM_NOISE]
    axes = [] if record.axes is None else [record.axes[0]]
    return [*moments, *axes, *([] if record.white is None else 2 * [record.white])]


def _maps(x: Tensor, transform: Transform) -> Tensor:
    """As `by_chunks`, channels and places kept apart."""
    return torch.cat([transform(part.float()).half() for part in x.split(PART)])


def _then(first: Transform, second: Transform, flat: bool = False) -> Transform:
    """One after the other, in half precision between them, as rows are kept."""

    def both(rows: Tensor) -> Tensor:
        found = first(rows)
        return second((found.flatten(1) if flat else found).half().float())

    return both
