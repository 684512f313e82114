"""What a kind of layer must say for a gradient norm to be bounded without per-sample gradients.

For an operation y = op(x, theta) and the gradient e = d loss / d y of one row:

* ``back``: a number b with |d loss / d x| <= b |e|;
* ``own``: a number a^2 with |d loss / d theta|^2 <= a^2 |e|^2, whatever e is;
* ``given``: a bound on |d loss / d theta|^2 for this very e, tighter than a^2 |e|^2, from what is
  kept of the step (`winsor/gradients/weight_gradients.py`): its input and e, or its rows
  themselves.

Each is a proof obligation. The file of each kind carries the proof, and `check` refuses the
settings for which it does not hold or for which rows would mix.

Rows: a tensor of the graph holds n equal blocks, one per row, along its first dimension (n itself,
or n times the positions that a linear layer folds into it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from winsor.contrib.value.bounds.spectral import OperatorNorms
from winsor.core.contract import UnsupportedModel
from winsor.gradients.graph import Step
from winsor.gradients.weight_gradients import KeptRows

Factor = float | Tensor
"""A factor that all rows share, or one (n,) per row."""

SLACK = 1e-6
"""Share of the minuend that is added after a subtraction of squares: float32 cancels."""

TINY = 1e-37
"""Added to the squares of gradients and of activations before they are multiplied: what is below
1e-38 is lost, and the other factor may be as large as 1e38."""


class RowBlocks:
    """The number of rows of the batch, and the certified norms of the weights."""

    def __init__(self, n: int, norms: OperatorNorms) -> None:
        self.n = n
        self.norms = norms

    def squares(self, x: Tensor) -> Tensor:
        """Return (n,) squared norms of the rows."""
        # by cascade summation: `vector_norm` in float32 drifts
        flat = x if x.dim() == 2 and x.shape[0] == self.n else x.reshape(self.n, -1)
        squares: Tensor = torch.linalg.vecdot(flat, flat)
        return squares

    def of_rows(self, piece: KeptRows) -> Tensor:
        """Return (n,) squared norms of gradients that are known row by row, as they are summed."""
        squares = [self.squares(values) for values in piece.rows.values()]
        return squares[0] if len(squares) == 1 else torch.stack(squares).sum(0)

    def gradients(self, e: Tensor) -> Tensor:
        """Return (n,) squared norms of the rows of a gradient, not below `TINY`."""
        return self.squares(e) + TINY

    def largest(self, x: Tensor) -> Tensor:
        """Return (n,) largest entries of the rows."""
        return x.reshape(self.n, -1).amax(1)

    def blocks(self, step: Step) -> int:
        """Return the positions per row in the first dimension of the step's output."""
        return step.shape[0] // self.n


def summed(squares: Tensor, energy: Tensor, terms: float) -> Tensor:
    """Return squared norms of sums that may cancel, from the computed ``squares``.

    The sum of ``terms`` entries with squared norm ``energy`` carries a rounding error d of up to
    1e-6 sqrt(terms energy), and (a + d)^2 <= 1.001 a^2 + 1001 d^2. Without it a gradient that is
    zero up to rounding would have a bound that is smaller than its rounding.
    """
    return 1.001 * squares + (1.001e-9 * terms) * energy


def free(step: Step, rows: RowBlocks) -> None:
    """Check nothing: the operation works entry by entry."""


def one(step: Step, position: int, rows: RowBlocks) -> Factor:
    """Return the factor of an operation that keeps lengths."""
    return 1.0


@dataclass(frozen=True)
class Kind:
    """The bounds of one kind of operation, by the name autograd gives it."""

    ops: tuple[str, ...]
    back: Callable[[Step, int, RowBlocks], Factor] = one
    check: Callable[[Step, RowBlocks], None] = free
    own: Callable[[Step, RowBlocks], Factor] | None = None
    given: Callable[[Step, Any, RowBlocks], Tensor] | None = None
    data: frozenset[int] | None = frozenset({0})
    """Argument positions that may carry activations (None: any)."""
    weights: frozenset[int] = frozenset()
    """Argument positions that may carry trainable parameters."""
    local: bool = True
    """Cheap to differentiate exactly: no convolution."""


def refuse(step: Step, why: str) -> NoReturn:
    """Raise `UnsupportedModel`: the operation ``step`` has no proven bound."""
    raise UnsupportedModel(
        f"the rule Value must have a proven bound for every layer. Got {step}, which {why}. Use "
        "the rule Flat or Automatic, which compute the per-sample norms instead."
    )


def check_first_dimension(step: Step, rows: RowBlocks) -> None:
    """Refuse outputs whose first dimension is not whole blocks, one per row."""
    shape = step.shape
    if not shape or shape[0] % rows.n:
        refuse(step, f"has no place for the {rows.n} rows in the first dimension of {tuple(shape)}")
