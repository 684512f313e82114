"""Tables with row norms, for per-sample gradients in closed form: residual times row.

For a loss l(z, y) of the score z = <x, w> + b the gradient of one record is

    g_i = r_i (x_i, 1),   r_i = dl/dz,     |g_i| = |r_i| sqrt(|x_i|^2 + 1),

so norms cost one multiplication per record, clipping is a limit on the residual, and a clipped sum
is one matrix-vector product. With K outputs r_i is a row of K numbers. Parameters are one array
theta of shape (d + 1,) or (d + 1, K), intercept last.

Guarantee
---------
`clip_residuals` makes every |r_i| sqrt(|x_i|^2 + 1) <= C, whatever the scores were: a residual that
is not a number counts as the limit itself, so no row escapes its bound.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from winsor.core.arithmetic import rows as arithmetic

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_DENSE_NUMBERS = 1 << 25  # up to 256 MiB a table is dense, however empty: that would be private
_CHUNK = 1 << 17  # numbers of a full-batch chunk: one read from memory serves both products


class Design:
    """The table X (dense, or CSR if wide and sparse) with its row norms.

    Features count as ``unit`` times what the table holds: a public scale that costs no copy.
    """

    def __init__(self, x: Array | sparse.csr_array, intercept: bool, unit: float = 1.0) -> None:
        if not isinstance(x, np.ndarray) and x.shape[0] * x.shape[1] <= _DENSE_NUMBERS:
            x = x.toarray()
        self.x = x
        self.intercept = intercept
        self.unit = unit
        self.n, self.d = x.shape
        self.size = self.d + intercept
        with np.errstate(all="ignore"):
            self.norms = np.hypot(unit * row_norms(x), intercept)
        finite = np.isfinite(self.norms)
        if isinstance(x, np.ndarray) and not finite.all():  # 0 times infinity would be no number
            self.x = np.where(finite[:, None], x, 0.0)

    def limits(self, bound: float) -> Array:
        """Return (n,) largest |r_i| with |g_i| <= bound; 0 for a row so long that r_i would lose
        digits."""
        far = arithmetic.FARTHEST
        return np.where(self.norms <= far, bound / np.maximum(self.norms, 1 / far), 0.0)

    def whitened(self, root: Array) -> Design:
        """Return the design of the rows (x, 1) ``root``, whose norms are those of what is summed:
        to bound rows in one metric and add them up in another would magnify rounding."""
        return Design(DesignRows(self.x, self.intercept, self.unit).scores(root), intercept=False)

    def cut(self, piece: slice | Indices, bound: float, beside: Array | None = None) -> Array:
        """Return rows (x, 1), with the column ``beside`` behind them, cut to length ``bound``."""
        ones = [np.ones(len(self.x[piece]))] if self.intercept else []
        more = [] if beside is None else [beside[piece]]
        return arithmetic.clip_rows(np.column_stack([self.x[piece], *ones, *more]), bound)

    def shape(self, outputs: int) -> tuple[int, ...]:
        """Return the shape of theta for so many ``outputs``."""
        return (self.size,) if outputs == 1 else (self.size, outputs)

    def rows(self, indices: Indices) -> DesignRows:
        """Return the rows with these numbers."""
        if isinstance(self.x, np.ndarray):
            return DesignRows(self.x.take(indices, axis=0), self.intercept, self.unit)
        return DesignRows(self.x[indices], self.intercept, self.unit)

    def chunks(self, numbers: int = _CHUNK) -> Iterator[tuple[slice, DesignRows]]:
        """Return all rows in order, in pieces of about this many numbers and without copies."""
        step = min(max(1, numbers // max(1, self.d)), arithmetic.BLOCK)
        for start in range(0, self.n, step):
            piece = slice(start, min(start + step, self.n))
            yield piece, DesignRows(self.x[piece], self.intercept, self.unit)


class DesignRows:
    """Some rows of a design, ready for the two products of a gradient step."""

    __slots__ = ("intercept", "unit", "x")

    def __init__(self, x: Array | sparse.csr_array, intercept: bool, unit: float) -> None:
        self.x = x
        self.intercept = intercept
        self.unit = unit

    def scores(self, theta: Array) -> Array:
        """Return z = X w + b: (m,) or (m, K)."""
        weights = theta[:-1] if self.intercept else theta
        weights = weights if self.unit == 1.0 else weights * self.unit
        dense = isinstance(self.x, np.ndarray)
        z = arithmetic.products(self.x, weights) if dense else self.x @ weights
        if self.intercept:
            z += theta[-1]
        return z

    def pull(self, residual: Array) -> Array:
        """Return sum_i r_i (x_i, 1): the shape of theta."""
        scaled = residual if self.unit == 1.0 else residual * self.unit
        features = arithmetic.summed(
            self.x[own].T @ scaled[own] for own in arithmetic.blocks(len(residual))
        )
        if not self.intercept:
            return features
        return np.concatenate([features, arithmetic.sum_rows(residual)[None]])

    def gradients(self, residual: Array) -> Array:
        """Return (m, *shape of theta) explicit per-sample gradients; only for rules on
        coordinates."""
        dense = self.x if isinstance(self.x, np.ndarray) else self.x.toarray()
        extended = dense * self.unit
        if self.intercept:
            extended = np.concatenate([extended, np.ones((len(dense), 1))], axis=1)
        if residual.ndim == 1:
            return extended * residual[:, None]
        return extended[:, :, None] * residual[:, None, :]


def row_norms(x: Array | sparse.csr_array) -> Array:
    """Return the (n,) Euclidean norms of the rows of a table."""
    if isinstance(x, np.ndarray):
        return arithmetic.row_norms(x)
    norms, counts = np.zeros(x.shape[0]), np.diff(x.indptr)
    for count in np.unique(counts):  # rows of as many entries are a table
        own = np.flatnonzero(counts == count)
        norms[own] = arithmetic.row_norms(x.data[x.indptr[own, None] + np.arange(count)])
    return norms


def clip_residuals(residual: Array, limits: Array) -> Array:
    """Scale each residual so that its norm is at most its limit; in place where possible."""
    if residual.ndim == 1:
        # fmin and fmax prefer the limit to NaN.
        np.fmin(residual, limits, out=residual)
        return np.fmax(residual, -limits, out=residual)
    return arithmetic.clip_rows(residual, limits)
