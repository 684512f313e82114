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

from winsor.core.arithmetic.rows import clip_rows
from winsor.core.arithmetic.rows import row_norms as norms_of_rows

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

ROUNDING = 1e-9
"""Limits are divided by 1 + ROUNDING: float64 norms and sums carry relative errors near 1e-14."""

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
        self.norms = np.sqrt((unit * row_norms(x)) ** 2 + intercept)

    def limits(self, bound: float) -> Array:
        """Return (n,) largest |r_i| with |g_i| <= bound."""
        return bound / (np.maximum(self.norms, 1e-300) * (1 + ROUNDING))

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
        step = max(1, numbers // max(1, self.d))
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
        z = self.x @ (weights if self.unit == 1.0 else weights * self.unit)
        if self.intercept:
            z += theta[-1]
        return z

    def pull(self, residual: Array) -> Array:
        """Return sum_i r_i (x_i, 1): the shape of theta."""
        out = np.empty((self.x.shape[1] + self.intercept, *residual.shape[1:]))
        features = out[:-1] if self.intercept else out
        if residual.ndim == 1 and isinstance(self.x, np.ndarray):
            np.dot(residual, self.x, out=features)
        else:
            features[...] = self.x.T @ residual
        if self.unit != 1.0:
            features *= self.unit
        if self.intercept:
            out[-1] = residual.sum(axis=0)
        return out

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
        return norms_of_rows(x)
    return np.sqrt(np.asarray(x.multiply(x).sum(axis=1)).ravel())


def clip_residuals(residual: Array, limits: Array) -> Array:
    """Scale each residual so that its norm is at most its limit; in place where possible."""
    if residual.ndim == 1:
        # fmin and fmax prefer the limit to NaN.
        np.fmin(residual, limits, out=residual)
        return np.fmax(residual, -limits, out=residual)
    return clip_rows(residual, limits)
