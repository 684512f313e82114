"""Shapes in which values come to the door: one array, a tree of named leaves, one rank's part."""

from __future__ import annotations

from typing import Any, NoReturn

from winsor.core import buffers


class FlatTree(dict[str, Any]):
    """{name: leaf} whose leaves are consecutive views of ``flat``, in order.

    Adding noise or dividing by the batch size then takes one operation on ``flat`` instead of one
    per parameter. Leaves are written in place only: were one exchanged, noise added to ``flat``
    would miss it, so an attempt raises TypeError.
    """

    flat: Any

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "the leaves of a FlatTree must stay the views they are. Write into them, or build a "
            "new dictionary."
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse


class PartTree(dict[str, Any]):
    """{name: one rank's part of a leaf} of a tree of ``whole_size`` values.

    ``places`` says where each part begins in the whole: cost and noise of a release are those of
    the whole vector.
    """

    whole_size: int
    places: list[int]


def leaves_of(value: Any) -> list[Any]:
    """Return the arrays of a part; a flat tree is one array."""
    if isinstance(value, FlatTree):
        return [value.flat]
    return list(value.values()) if isinstance(value, dict) else [value]


def values_in(value: Any) -> int:
    """Return how many values a part has; for one rank's part, those of the whole."""
    if isinstance(value, PartTree):
        return value.whole_size
    return sum(buffers.size(leaf) for leaf in leaves_of(value))
