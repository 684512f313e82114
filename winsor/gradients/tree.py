"""A gradient tree in one piece of memory, so that one operation can serve all parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

unflatten = torch._C._nn.unflatten_dense_tensors
SMALL = 1 << 18
"""Up to this many values, a copy into one piece costs less than an operation per leaf."""


class FlatTree(dict[str, Tensor]):
    """{name: leaf} whose leaves are consecutive views of ``flat``, in order.

    Adding noise or dividing by the batch size then takes one operation on ``flat`` instead of one
    per parameter. Leaves are written in place only: were one exchanged, noise added to ``flat``
    would miss it, so an attempt raises TypeError.
    """

    flat: Tensor

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "the leaves of a FlatTree must stay the views they are. Write into them, or build a "
            "new dictionary."
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse


class PartTree(dict[str, Tensor]):
    """{name: one rank's part of a leaf} of a tree of ``whole_size`` values.

    ``places`` says where each part begins in the whole: what a release costs, and which noise it
    gets, is a matter of the whole vector.
    """

    whole_size: int
    places: list[int]


class Layout:
    """Names, shapes and order of the leaves: made once, used at every step."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        first = next(iter(parameters.values()))
        self.dtype, self.device = first.dtype, first.device
        self.names = list(parameters)
        self.like = [p.detach() for p in parameters.values()]
        self.total = sum(p.numel() for p in parameters.values())

    def empty(self) -> FlatTree:
        """A tree with undefined values."""
        return self.over(torch.empty(self.total, dtype=self.dtype, device=self.device))

    def packed(self, leaves: Sequence[Tensor]) -> dict[str, Tensor]:
        """A tree of these leaves, in one piece where the copy is worth it."""
        if self.total > SMALL:
            return dict(zip(self.names, leaves, strict=True))
        return self.joined(leaves)

    def joined(self, leaves: Sequence[Tensor]) -> FlatTree:
        """A tree of a copy of these leaves, in one piece."""
        return self.over(torch.cat([leaf.reshape(-1) for leaf in leaves]))

    def over(self, flat: Tensor) -> FlatTree:
        """The tree whose leaves are views of ``flat``."""
        tree = FlatTree(zip(self.names, unflatten(flat, self.like), strict=True))
        tree.flat = flat
        return tree


def values_in(value: Any) -> int:
    """How many values a tree or a tensor has; of a part, the values of the whole."""
    if isinstance(value, PartTree):
        return value.whole_size
    leaves = value.values() if isinstance(value, dict) else (value,)
    return sum(leaf.numel() for leaf in leaves)
