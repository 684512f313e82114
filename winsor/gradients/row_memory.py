"""Rows or factors: what to keep of a layer until the weights of the rows are known.

Explicit rows cost no second pass, but may be larger than the input and output-gradient ("factors")
that they replace. Rows are kept when they are cheapest and

* take at most ROWS_OVER_FACTORS times the memory of the factors, or
* fit into what is left of a common allowance: SHARE_OF_INPUTS times all recorded inputs, which
  plain training holds as well. Layers draw on it in the order of the backward pass.

Choices are made once per layer and input shape, per row of the batch, so they do not depend on the
number of rows. Costs are multiply-adds per row.
"""

from __future__ import annotations

MAC = 1.0
TRAFFIC = 2.0
"""Reading or writing one float, in multiply-adds of a matrix product."""

ROWS_OVER_FACTORS = 1.75
SHARE_OF_INPUTS = 0.25


class RowMemory:
    """What rows may take beyond the factors that they replace, in floats per row."""

    def __init__(self) -> None:
        self._inputs = 0.0
        self._spent = 0.0

    def note_input(self, floats: float) -> None:
        """Note one recorded input, seen in the forward pass."""
        self._inputs += floats

    def choose(self, costs: dict[str, float], rows: int, factors: int) -> str:
        """Choose the cheapest of ``costs`` that memory allows; "rows" is the one that keeps
        rows."""
        cheapest = min(costs, key=lambda name: costs[name])
        if cheapest != "rows" or rows <= ROWS_OVER_FACTORS * factors:
            return cheapest
        excess = rows - factors
        if self._spent + excess <= SHARE_OF_INPUTS * self._inputs:
            self._spent += excess
            return "rows"
        return min((name for name in costs if name != "rows"), key=lambda name: costs[name])
