"""Histograms that pay for the columns left, under attack: two rounds of
`winsor.tables.ranges.zoom`.

Most columns hold zeros and are recognised as indicators in the first round; the second pays for the
one that is left. How much it pays, and where its cells are, depends on released counts, so that
both rounds are seen together: the adversary adds up the cells of the record in each, by their
noise. The record is no indicator in any column and lies where no other row does.

`AllColumns` is the mistake that this is about: a recognised column is not paid for any more, and
its counts are still released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray
from winsor_papers.neighbouring import Floats, audit_key

from winsor.audit.curve import PRESENT
from winsor.core.contract import Neighbouring
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor, Receipt
from winsor.tables.ranges.zoom import Zoom, counts_between

REPLACE = Neighbouring.REPLACE_ONE

INDICATORS, OTHERS = 7, 2_000
ORDINARY = np.array([[0.0] * INDICATORS + [30.0]])
RECORD = np.array([[7.0] * INDICATORS + [-1e9]])
OTHER = np.array([[-7.0] * INDICATORS + [1e9]])
"""What becomes of the record where it is replaced."""


class AllColumns(Zoom):
    """Pays for the columns that are left, and shows all of them."""

    def _shown(self, counts: Floats, looked: NDArray[np.bool_]) -> Floats:
        return counts


class KeptRounds(PrepaidDoor):
    """A prepaid door that keeps what left it, and how noisy it was."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rounds: list[tuple[Floats, float]] = []

    def pay(self, *arguments: Any) -> Receipt:
        receipt = super().pay(*arguments)
        release = receipt.release

        def kept_release(value: Floats) -> Floats:
            released = release(value).copy()
            self.rounds.append((released, receipt.std))
            return released

        receipt.release = kept_release  # type: ignore[method-assign]
        return receipt


@dataclass(frozen=True, eq=False)
class RangeExperiment:
    """Two rounds with a ``zoom`` that recognises indicators."""

    noise_multiplier: float
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    zoom: Zoom = field(default_factory=lambda: Zoom(INDICATORS + 1, rounds=2, indicators=True))
    columns: ClassVar[int] = INDICATORS + 1

    @property
    def _looks_at(self) -> Floats:
        """Columns of the second round that the adversary adds up."""
        return np.append(np.full(INDICATORS, float(isinstance(self.zoom, AllColumns))), 1.0)

    def _played(self, dataset: int, *label: object) -> tuple[KeptRounds, list[Floats]]:
        """The door, and round by round where the record's presence moves the counts."""
        key = audit_key("ranges", type(self.zoom).__name__, dataset, *label)
        door, lines = KeptRounds(Ledger({}), self.relation, key), []

        def counted(edges: Sequence[Floats], width: int) -> Floats:
            record, other = (counts_between(row, edges, width) for row in (RECORD, OTHER))
            other *= self.relation is REPLACE
            lines.append(record - other)
            counts = OTHERS * counts_between(ORDINARY, edges, width)
            return counts + (record if dataset == PRESENT else other)

        n = OTHERS + 1  # public, and stated the same for both datasets
        self.zoom.release_counts(counted, n, door, Gaussian(self.noise_multiplier))
        return door, lines

    @property
    def history(self) -> list[tuple[DpEvent, int]]:
        return self._played(PRESENT, "history")[0].ledger.history()

    def scores(self, dataset: int, runs: int, part: int) -> Floats:
        return np.array([self._score(dataset, part, run) for run in range(runs)])

    def _score(self, dataset: int, *label: object) -> float:
        door, lines = self._played(dataset, *label)
        lines[1] = lines[1] * self._looks_at[:, None]
        total = square = 0.0
        for (released, std), line in zip(door.rounds, lines, strict=True):
            total += float(np.sum(line * released)) / std**2
            square += float(np.sum(line**2)) / std**2
        return total / math.sqrt(square)
