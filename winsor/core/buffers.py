"""Values that come to the door: arrays of any registered library, alone or as trees of leaves.

NumPy arrays are served here. Other libraries register their own type: tensors of PyTorch are known
once `winsor.gradients.buffers` is imported. The core itself imports none of them.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from winsor.core.contract import UnsoundRelease

Doubles = NDArray[np.float64]
Place = tuple[int, int, int]
"""Address of the first value, number of values, bytes of a value."""


class Kind(Protocol):
    """How values of one type of array are read and overwritten. Order is row-major throughout."""

    def size(self, array: Any) -> int:
        """Return the number of values."""

    def place(self, array: Any) -> Place | None:
        """Return where the values are, if they are contiguous, writeable float32 or float64 values
        in this process's memory. None otherwise: then the core works on a copy."""

    def view(self, array: Any) -> np.ndarray:
        """Return a flat NumPy view that shares memory with an array that has a `place`."""

    def doubles(self, array: Any) -> Doubles:
        """Return the values as a flat float64 array in memory of its own."""

    def write(self, array: Any, values: Doubles) -> None:
        """Overwrite the array with these values, rounded to its own type."""

    def contents(self, array: Any) -> memoryview | None:
        """Return the bytes of the values in their own type; None if a value is not finite."""


class _Kinds(dict[type, Kind]):
    """The kinds by type; a subclass of a known type is served like it."""

    def __missing__(self, wanted: type) -> Kind:
        for base in wanted.__mro__:
            if base in self:
                self[wanted] = self[base]
                return self[wanted]
        raise UnsoundRelease(
            "a released value must be a NumPy array, or of a type that is registered. Got "
            f"{wanted.__module__}.{wanted.__qualname__} instead. Import what registers it "
            "(winsor.gradients.buffers for tensors of PyTorch), or convert it to a NumPy array."
        )


class _NumPy:
    """Arrays of NumPy."""

    def size(self, array: np.ndarray) -> int:
        return array.size

    def place(self, array: np.ndarray) -> Place | None:
        width = _WIDTHS.get(array.dtype)
        if width is None or not array.flags.carray:
            return None
        return array.__array_interface__["data"][0], array.size, width

    def view(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(-1)

    def doubles(self, array: np.ndarray) -> Doubles:
        return np.array(array, dtype=np.float64, order="C").reshape(-1)

    def write(self, array: np.ndarray, values: Doubles) -> None:
        array[...] = values.reshape(array.shape)

    def contents(self, array: np.ndarray) -> memoryview | None:
        flat = np.ascontiguousarray(array).reshape(-1)
        return flat.view(np.uint8).data if all_finite(flat) else None


def all_finite(flat: np.ndarray) -> bool:
    """Return whether every value is finite; usually from their sum alone."""
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(flat.sum()) or bool(np.isfinite(flat).all())


_WIDTHS = {np.dtype(np.float32): 4, np.dtype(np.float64): 8}
KINDS = _Kinds({np.ndarray: _NumPy()})


def register(array_type: type, kind: Kind) -> None:
    """Serve arrays of ``array_type`` and its subclasses through ``kind`` from here on."""
    KINDS[array_type] = kind


def size(array: Any) -> int:
    """Return the number of values in an array of a known type."""
    return KINDS[type(array)].size(array)


def flat_doubles(arrays: list[Any]) -> Doubles:
    """Return the values of all arrays, one after another, in float64 memory of their own."""
    out = np.empty(sum(map(size, arrays)))
    first = 0
    for array in arrays:
        kind = KINDS[type(array)]
        values = kind.doubles(array) if kind.place(array) is None else kind.view(array)
        out[first : first + len(values)] = values
        first += len(values)
    return out


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
    return sum(size(leaf) for leaf in leaves_of(value))
