"""How much wider noise must be because it is added on a grid.

A release rounds the bounded sum to a grid of gamma = std 2^-bits before noise is added
(`lattice.py`). Rounding moves two neighbouring sums apart by at most 2 gamma per coordinate, so by

    growth = 2 sqrt(sum_j d_j 4^-bits_j)        (Laplace, in L1:  2 sum_j d_j 2^-bits_j)

in units of the noise. Noise wider by 1 / (1 - nm growth) makes up for it: the release is then at
most as revealing as the event says, which needs no change. The same factor covers smaller shifts
(a mixture's) and the largest coordinate of a record, each with its own multiplier. Where noise is
correlated over b steps, one visit of a record is rounded b times: d_j counts so often.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from winsor.core.accounting.lattice import MOST_BITS, MOST_BITS_L1, bits_for, compensated, growth
from winsor.core.contract import Bounded, ConfigurationError
from winsor.core.noise.protocol import Mechanism

WIDEST = 1.0005
"""Noise is never made wider than this: ModelMix relies on it (`contrib/modelmix/update.py`)."""


def on_grid(
    mechanism: Mechanism, parts: Mapping[str, Bounded], sizes: Mapping[str, int]
) -> tuple[dict[str, float], dict[str, int]]:
    """The standard deviations of ``mechanism`` for ``parts``, made wide enough for the grid, and
    how many bits finer than the noise the grid of each part is."""
    std = mechanism.std(parts)
    l1 = mechanism.law == "laplace"
    multiplier = mechanism.noise_multiplier / min(map(_smallest_shift, parts.values()))
    finer = max(0, math.ceil(math.log2(multiplier / 8)))  # loud noise needs a finer grid
    rounded = {name: mechanism.roundings * sizes[name] for name in parts}
    bits = {name: min(bits_for(rounded[name], l1) + finer, _most(l1)) for name in parts}
    grids: dict[int, int] = {}
    for name in parts:
        grids[bits[name]] = grids.get(bits[name], 0) + rounded[name]
    loss = multiplier * growth(grids, l1)
    for name, part in parts.items():
        shift = part.sensitivity.l1 if l1 else part.sensitivity.add_remove
        if part.coordinate_bound is not None and shift is not None:
            # 2 gamma over the bound of one coordinate
            ratio = shift / part.coordinate_bound
            loss = max(loss, multiplier * ratio * 2.0 * 2.0 ** -bits[name])
    if not loss < 1 - 1 / WIDEST:
        raise ConfigurationError(
            "noise_multiplier must leave the grid of the noise far finer than the bound. Got "
            f"{mechanism.noise_multiplier!r} instead, with {sum(sizes.values())} coordinates. Use "
            "less noise, or fewer steps for the same epsilon."
        )
    factor = compensated(1.0, loss)
    return {name: value * factor for name, value in std.items()}, bits


def _most(l1: bool) -> int:
    return MOST_BITS_L1 if l1 else MOST_BITS


def _smallest_shift(part: Bounded) -> float:
    """The smallest shift that a record can cause, over the largest; 1 unless it is random."""
    mixture = part.sensitivity.mixture
    shifts = [1.0] if mixture is None else [shift for _, shift in mixture if shift > 0]
    return min(shifts) / max(shifts)
