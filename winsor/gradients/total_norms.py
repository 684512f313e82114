"""Norms over all parameters at once: what their pieces share is computed once.

weight and bias of a linear layer     |e|^2 |x|^2 + |e|^2 is one operation
linear layers that read one input     (query, key, value) one Gram matrix of that input:
                                      sum_j <E_j E_j^T, X X^T> = <sum_j E_j E_j^T, X X^T>
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from winsor.gradients.pieces import Factors, Outer, Piece, Rows, careful, ghost


def total_square(pieces: Collection[Piece]) -> Tensor | None:
    """(n,) squared norms over all parameters. None if there are no parameters."""
    total: Tensor | None = None
    rows = {id(piece) for piece in pieces if isinstance(piece, Rows)}
    counted: set[int] = set()
    some = any(isinstance(piece, Factors) for piece in pieces)
    for piece in _together(pieces) if some else pieces:
        if id(piece) in counted:
            continue
        bias = id(piece.left) if isinstance(piece, Outer) else None
        if isinstance(piece, Outer) and bias in rows and bias not in counted:
            left = piece.left.square()
            square = torch.addcmul(left, left, piece.right.square())
            counted.add(bias)
        else:
            square = piece.square()
            counted.add(id(piece))
        total = square if total is None else total + square
    return total


class _SameInput(Piece):
    """Several factors with one right side, for their norms taken together."""

    def __init__(self, parts: Sequence[Factors]) -> None:
        self.parts = parts
        self.n = parts[0].n
        self.shape = torch.Size((sum(part.shape[0] for part in parts), parts[0].shape[1]))

    def rows(self, start: int, stop: int) -> Tensor:
        return torch.cat([part.rows(start, stop) for part in self.parts], dim=1)

    def select(self, index: Tensor) -> _SameInput:
        return _SameInput([part.select(index) for part in self.parts])

    def where(self, kept: Tensor) -> _SameInput:
        return _SameInput([part.where(kept) for part in self.parts])

    def square(self) -> Tensor:
        found = ghost([part.left for part in self.parts], self.parts[0].right)
        return careful(self, *found)


def _together(pieces: Collection[Piece]) -> list[Piece]:
    """The same pieces, with those put together whose norms share a Gram matrix."""
    alike: dict[Any, list[Factors]] = {}
    others: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Factors) and piece.is_ghostly():
            right = piece.right
            key = (right.data_ptr(), right.shape, right.stride(), right.dtype)
            alike.setdefault(key, []).append(piece)
        else:
            others.append(piece)
    return others + [same[0] if len(same) == 1 else _SameInput(same) for same in alike.values()]
