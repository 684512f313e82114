"""What rounding may add to the bound of a row: charged in advance, and limited by public sizes.

Rows are cut to C / (1 + SLACK), so that the sensitivity C covers what float64 does between the
norm of a row and the sum that is released.

Guarantee
---------
Let w(N) N <= C / (1 + SLACK), with norms N and sums as in `winsor.gradients.arithmetic`: float64,
N^2 = |G|^2 + theta A^2 (theta = 0 for rows of one place), sums in chains of K additions. One row
moves the computed sum by at most

    C (1 + eps + 2 n K u kappa) / (1 + SLACK),    eps = 2^-30, kappa = theta^(-1/2), u = 2^-53,

among n rows (docs/privacy.md, "Arithmetic", has the proof), which is at most C while
`charge(n, T)` is at most SLACK.
"""

from __future__ import annotations

import bisect
import functools
import math
from numbers import Real

from winsor.core.contract import ConfigurationError

SLACK = 1e-4
"""Share of the bound that is set aside for rounding."""

SHORTEST_ROW = 2.0**-600
"""Length that a shorter row is divided by. No row but zero is shorter (see `wide`)."""

BLOCK, BLOCKS = 128, 256
"""Terms of a sum over rows that are added up one after the other, and such blocks likewise; sums of
that many blocks are then added up. So a sum of K terms has no longer chain than
BLOCK + BLOCKS + K / (BLOCK BLOCKS)."""

FRAGMENTS = 64
"""Physical batches, and ranks, whose sums are added up in the end."""

KAPPA = 2.0**10


@functools.lru_cache(maxsize=64)  # asked at every step
def bound_with_slack(threshold: float) -> float:
    """Return the length that rows are cut to, for a sum that one row moves by ``threshold``."""
    if not (isinstance(threshold, Real) and threshold >= 2.0**-300):  # a tensor could change
        raise ConfigurationError(
            f"a bound on rows must be at least 2^-300. Got {threshold!r} instead."
        )
    return float(threshold) / (1 + SLACK)


def charge(rows: float, places: float) -> float:
    """Return an upper bound on what rounding adds to the move of one row, in units of its bound.
    Rows may come in chunks, at worst one by one: in a chunk and over chunks, chains are as above.
    """
    chain = 2 * (BLOCK + BLOCKS) + FRAGMENTS + rows * (places + 1) / (BLOCK * BLOCKS)
    return 2.0**-30 + 2 * rows * chain * 2.0**-53 * (KAPPA if places > 1 else 1.0)


def most_rows(expected: float) -> float:
    """Return how many rows a draw with this mean has, except with probability below 2^-100.

    A sum of independent draws exceeds m >= 2 mean + 200 with probability at most
    exp(m - mean - m log(m / mean)) <= 2^-100 (Chernoff).
    """
    return 2 * expected + 200


def most_drawn(n: int, rate: float, chance: float) -> int:
    """Return the least m below n that a Binomial(n, rate) number reaches with probability at most
    ``chance`` by Chernoff's bound, exp(-n KL(m/n, rate)); n if there is none."""

    def exponent(m: int) -> float:
        return m * math.log(m / n / rate) + (n - m) * math.log((1 - m / n) / (1 - rate))

    mean = min(n, math.ceil(n * rate))
    return bisect.bisect_left(range(n), -math.log(chance), mean, key=exponent)


def most_places(rows: float) -> int:
    """Return the places that a row may have among so many, so that `SLACK` covers rounding."""
    if charge(rows, 1) > SLACK:
        raise ConfigurationError(
            f"a batch must have few enough rows for rounding to be covered. Got {rows:.3g} rows "
            "instead. Lower batch_size."
        )
    room = (SLACK - 2.0**-30) / (2 * rows * 2.0**-53 * KAPPA) - 2 * (BLOCK + BLOCKS) - FRAGMENTS
    return max(1, int(room * BLOCK * BLOCKS / rows) - 1)
