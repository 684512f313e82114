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
from winsor.gradients.arithmetic import THETA, squares
from winsor.gradients.graph import Step
from winsor.gradients.weight_gradients import KeptRows

Factor = float | Tensor
"""A factor that all rows share, or one (n,) per row."""


class RowBlocks:
    """The number of rows of the batch, and the certified norms of the weights."""

    def __init__(self, n: int, norms: OperatorNorms) -> None:
        self.n = n
        self.norms = norms

    def squares(self, x: Tensor) -> Tensor:
        """Return (n,) squared norms of the rows, in float64."""
        return squares(x.reshape(self.n, -1))

    def of_rows(self, piece: KeptRows) -> Tensor:
        """Return (n,) squared norms of gradients that are known row by row, as they are summed."""
        return torch.stack([squares(values) for values in piece.rows.values()]).sum(0)

    def largest(self, x: Tensor) -> Tensor:
        """Return (n,) largest entries of the rows."""
        return x.reshape(self.n, -1).amax(1)

    def blocks(self, step: Step) -> int:
        """Return the positions per row in the first dimension of the step's output."""
        return step.shape[0] // self.n


def summed(sums: Tensor, energy: Tensor, terms: int) -> Tensor:
    """Return squared bounds from squared ``sums`` of that many terms of squared length ``energy``
    together: terms that cancel leave what rounding makes of them (`arithmetic.THETA`; the squared
    sum of their lengths is at most terms * energy)."""
    return sums + THETA * terms * energy


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
