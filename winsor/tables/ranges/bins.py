"""Bin edges of every column from private histograms: cells of about equal mass.

For a plan of one's own (many releases under one budget) use `Bins`: `zoom` says what it costs,
`release` makes the edges through the door. `private_bins` is the same with a budget of its own, and
`winsor.tables.PrivateBinner` a transformer for pipelines.

    edges[j]   ascending; cell c of column j holds edges[j][c-1] <= x < edges[j][c], cell 0 what is
               below the first edge and the last cell what is above: len(edges[j]) + 1 cells

Guarantee
---------
That of `zoom.py`: one Gaussian release per round for all columns together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.checks import whole
from winsor.core.contract import Guarantee, Neighbouring
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.randomness import key_for
from winsor.planning.budget import Target
from winsor.planning.shares import Session
from winsor.tables.inputs import as_bounds, as_rows
from winsor.tables.ranges.coarse import Coarse, anywhere
from winsor.tables.ranges.distribution import Distribution
from winsor.tables.ranges.grid import CELLS, cells_between
from winsor.tables.ranges.zoom import Zoom

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Bins:
    """A plan for the edges of ``columns`` columns with about ``bins`` cells each.

    ``bounds`` (columns, 2) are public, NaN where a column's are not known. With all of them known
    one round of histograms is enough, otherwise three, or two that are read bluntly (``coarse``).
    ``inside`` looks for where the rows are between bounds, no closer: a few cells are enough.
    ``indicators`` recognises columns of zeros and ones. ``looked_at`` are the
    numbers of the columns that are looked at, all if it is None.
    """

    columns: int
    bins: int = 32
    bounds: Array | None = None
    coarse: bool = False
    inside: bool = False
    indicators: bool = False
    looked_at: tuple[int, ...] | None = None

    @property
    def known(self) -> bool:
        """Return whether all columns have bounds."""
        return not self.unknown.any()

    @property
    def unknown(self) -> NDArray[np.bool_]:
        """Which columns have no bounds."""
        if self.bounds is None:
            return np.ones(self.columns, dtype=bool)
        return ~np.asarray(np.isfinite(self.bounds).all(axis=1))

    @property
    def zoom(self) -> Zoom:
        """The plan of the histograms."""
        looked = self.looked
        columns = len(looked)
        if self.coarse:
            return Coarse(columns)
        one_round = not self.unknown[looked].any()
        cells, rounds = max(2 * self.bins, 32), 1 if one_round else 3
        return Zoom(columns, cells, rounds, self.indicators)

    @property
    def looked(self) -> list[int]:
        """Numbers of the columns that are looked at."""
        return list(range(self.columns) if self.looked_at is None else self.looked_at)

    def by_bounds(self, column: int, found: Distribution | None = None) -> Distribution | None:
        """Return the ends and the middle of what was found, inside the bounds; or all that bounds
        say: anywhere between them."""
        if self.bounds is None or self.unknown[column]:
            return found
        low, high = (float(end) for end in self.bounds[column])
        if found is None or found.low >= high or low >= found.high:
            return anywhere(low, high)
        low, high = max(low, found.low), min(high, found.high)
        return anywhere(low, high, float(found.quantile(0.5)))

    def release(
        self, table: Array, door: PrepaidDoor, mechanism: Gaussian
    ) -> tuple[list[Array], list[Distribution]]:
        """Return edges per column and the released distributions they were read from."""
        zoom = self.zoom
        found = zoom.release(table, door, mechanism, self.start)
        return [each.cells(self.bins) for each in found], found

    @property
    def start(self) -> list[Array | None]:
        """Edges of the first round, where bounds say them."""
        if self.bounds is None or self.coarse:
            return [None] * len(self.looked)
        cells = CELLS if self.inside else self.zoom.cells
        return [
            cells_between(low, high, cells) if np.isfinite(high - low) else None
            for low, high in self.bounds[self.looked].tolist()
        ]


@dataclass(frozen=True)
class BinEdges:
    """Edges per column, and what they cost."""

    edges: list[Array]
    distributions: list[Distribution]
    guarantee: Guarantee
    ledger: Ledger


def private_bins(
    columns: ArrayLike,
    *,
    bins: int = 32,
    bounds: Any = None,
    epsilon: float,
    delta: float | None = None,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    random_state: int | bytes | None = None,
    allow_large_delta: bool = False,
) -> BinEdges:
    """Find edges of about ``bins`` cells of equal mass for every column of ``columns`` (n, k).

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).lognormal(7, 2, size=(20_000, 1))
    >>> found = private_bins(x, bins=4, epsilon=1.0, random_state=0)
    >>> shares = np.bincount(np.searchsorted(found.edges[0], x[:, 0]), minlength=6) / 20_000
    >>> bool(abs(shares[1:5] - 0.25).max() < 0.03)
    True
    """
    table, _ = as_rows(columns)
    n, k = table.shape
    plan = Bins(k, whole("bins", bins, 2), as_bounds(bounds, k))
    target = Target.of(n, epsilon, delta, relation, allow_large_delta)
    key = key_for(random_state, None, "bins", bins, bounds, target, table)
    session = Session.open(target, key, {"method": "bins", "n": n, "d": k})
    mechanism = Gaussian(session.multiplier([plan.zoom.payment(n)]))
    edges, found = plan.release(table, session.door, mechanism)
    return BinEdges(edges, found, session.guarantee(f"n = {n} is public"), session.ledger)


def codes(table: Array, edges: Sequence[Array]) -> NDArray[np.int64]:
    """Return the cell of every value, column by column."""
    return np.stack(
        [np.searchsorted(own, table[:, j], side="right") for j, own in enumerate(edges)], axis=1
    )
