"""Per-sample gradients of generalised linear models in closed form: residual times row.

For a loss l(z, y) of the score z = <x, w> + b the gradient of one record is

    g_i = r_i (x_i, 1),   r_i = dl/dz,     |g_i| = |r_i| sqrt(|x_i|^2 + 1),

so norms cost one multiplication per record (row norms are constants of the data), clipping is a
limit on the residual, and a clipped sum is one matrix-vector product. With K outputs r_i is a row
of K numbers and the same holds with |r_i| its norm. No autograd; BLAS does the work.

Parameters are one array theta of shape (d + 1,) or (d + 1, K), intercept last.

Guarantee
---------
`clip_residuals` makes every |r_i| sqrt(|x_i|^2 + 1) <= C, whatever the scores were: a residual that
is not a number counts as the limit itself, so no row escapes its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit, log_softmax, softmax
from torch import Tensor

from winsor.core.contract import Tree
from winsor.gradients.rows import RowsView
from winsor.gradients.view import Directions, View

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

ROUNDING = 1e-9
"""Limits are divided by 1 + ROUNDING: float64 norms and sums carry relative errors near 1e-14."""

_DENSE_NUMBERS = 1 << 25  # a sparse table up to 256 MiB is faster as a dense one, if not too empty
_DENSE_SHARE = 0.02
_CHUNK = 1 << 17  # numbers of a full-batch chunk: one read from memory serves both products


# ------------------------------------------------------------------------------------- losses


class Loss(Protocol):
    """A convex loss of the score."""

    outputs: int
    curvature: float
    """Upper bound on the second derivative (for K outputs: on the Hessian's largest eigenvalue);
    infinite for a loss with a kink."""
    slope: float
    """Upper bound on |dl/dz|; infinite for squared errors."""

    def value(self, scores: Array, y: Array) -> Array: ...
    def residual(self, scores: Array, y: Array) -> Array: ...


class Logistic:
    """log(1 + e^z) - y z with y in {0, 1}."""

    outputs, curvature, slope = 1, 0.25, 1.0

    def value(self, scores: Array, y: Array) -> Array:
        return np.logaddexp(0.0, scores) - y * scores

    def residual(self, scores: Array, y: Array) -> Array:
        return expit(scores) - y


class Softmax:
    """Cross-entropy of K scores; y holds class numbers."""

    curvature, slope = 0.5, 2**0.5

    def __init__(self, classes: int) -> None:
        self.outputs = classes

    def value(self, scores: Array, y: Array) -> Array:
        return -log_softmax(scores, axis=1)[np.arange(len(y)), y.astype(np.intp)]

    def residual(self, scores: Array, y: Array) -> Array:
        residual = softmax(scores, axis=1)
        residual[np.arange(len(y)), y.astype(np.intp)] -= 1.0
        return residual


class Squared:
    """(z - y)^2 / 2."""

    outputs, curvature, slope = 1, 1.0, float("inf")

    def value(self, scores: Array, y: Array) -> Array:
        return (scores - y) ** 2 / 2

    def residual(self, scores: Array, y: Array) -> Array:
        return scores - y


class Huber:
    """Quadratic up to ``threshold``, linear beyond: residuals never exceed the threshold."""

    outputs, curvature = 1, 1.0

    def __init__(self, threshold: float) -> None:
        self.slope = threshold

    def value(self, scores: Array, y: Array) -> Array:
        gap = np.abs(scores - y)
        return np.where(gap <= self.slope, gap**2 / 2, self.slope * (gap - self.slope / 2))

    def residual(self, scores: Array, y: Array) -> Array:
        return np.clip(scores - y, -self.slope, self.slope)


class Hinge:
    """max(0, 1 - s z) with s = 2y - 1 and y in {0, 1}; at the kink the subgradient is 0."""

    outputs, curvature, slope = 1, float("inf"), 1.0

    def value(self, scores: Array, y: Array) -> Array:
        return np.maximum(0.0, 1.0 - (2 * y - 1) * scores)

    def residual(self, scores: Array, y: Array) -> Array:
        signs = 2 * y - 1
        return np.where(signs * scores < 1.0, -signs, 0.0)


class Absolute:
    """|z - y|: the median instead of the mean; at the kink the subgradient is 0."""

    outputs, curvature, slope = 1, float("inf"), 1.0

    def value(self, scores: Array, y: Array) -> Array:
        return np.abs(scores - y)

    def residual(self, scores: Array, y: Array) -> Array:
        return np.sign(scores - y)


# ------------------------------------------------------------------------------------- design


class Design:
    """The table X (dense, or CSR if wide and sparse) with its row norms.

    Features count as ``unit`` times what the table holds: a public scale that costs no copy.
    """

    def __init__(self, x: Array | sparse.csr_array, intercept: bool, unit: float = 1.0) -> None:
        if not isinstance(x, np.ndarray) and _better_dense(x):
            x = x.toarray()
        self.x = x
        self.intercept = intercept
        self.unit = unit
        self.n, self.d = x.shape
        self.size = self.d + intercept
        self.norms = np.sqrt((unit * row_norms(x)) ** 2 + intercept)

    def limits(self, bound: float) -> Array:
        """(n,) largest |r_i| with |g_i| <= bound."""
        return bound / (np.maximum(self.norms, 1e-300) * (1 + ROUNDING))

    def shape(self, outputs: int) -> tuple[int, ...]:
        return (self.size,) if outputs == 1 else (self.size, outputs)

    def rows(self, indices: Indices) -> DesignRows:
        if isinstance(self.x, np.ndarray):
            return DesignRows(self.x.take(indices, axis=0), self.intercept, self.unit)
        return DesignRows(self.x[indices], self.intercept, self.unit)

    def chunks(self, numbers: int = _CHUNK) -> Iterator[tuple[slice, DesignRows]]:
        """All rows in order, in pieces of about this many numbers and without copies."""
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
        """z = X w + b: (m,) or (m, K)."""
        weights = theta[:-1] if self.intercept else theta
        z = self.x @ (weights if self.unit == 1.0 else weights * self.unit)
        if self.intercept:
            z += theta[-1]
        return z

    def pull(self, residual: Array) -> Array:
        """sum_i r_i (x_i, 1): the shape of theta."""
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
        """(m, *shape of theta) explicit per-sample gradients; only for rules on coordinates."""
        dense = self.x if isinstance(self.x, np.ndarray) else self.x.toarray()
        extended = dense * self.unit
        if self.intercept:
            extended = np.concatenate([extended, np.ones((len(dense), 1))], axis=1)
        if residual.ndim == 1:
            return extended * residual[:, None]
        return extended[:, :, None] * residual[:, None, :]


def _better_dense(x: sparse.csr_array) -> bool:
    numbers = x.shape[0] * x.shape[1]
    return bool(numbers <= _DENSE_NUMBERS and x.nnz >= _DENSE_SHARE * numbers)


def row_norms(x: Array | sparse.csr_array) -> Array:
    if isinstance(x, np.ndarray):
        return np.sqrt(np.einsum("ij,ij->i", x, x))
    return np.sqrt(np.asarray(x.multiply(x).sum(axis=1)).ravel())


def clip_residuals(residual: Array, limits: Array) -> Array:
    """Scale each residual so that its norm is at most its limit; in place where possible."""
    if residual.ndim == 1:
        # fmin and fmax prefer the limit to NaN.
        np.fmin(residual, limits, out=residual)
        return np.fmax(residual, -limits, out=residual)
    norms = np.sqrt(np.einsum("ij,ij->i", residual, residual))
    kept = np.isfinite(norms)
    scale = np.where(kept, limits / np.maximum(np.where(kept, norms, 1.0), limits), 0.0)
    return np.where(kept[:, None], residual, 0.0) * scale[:, None]


# --------------------------------------------------------------------------------------- view


class GlmView(View):
    """The `View` of some rows of a GLM, for rules written against the protocol.

    Parameters are "coef" (d, K) and, with an intercept, "intercept" (K,); everything is float64.
    Only `sketch` and `map_sum` form per-sample gradients, a chunk at a time.
    """

    def __init__(
        self, rows: DesignRows, y: Array, loss: Loss, theta: Array, chunk: int = 256
    ) -> None:
        self._rows = rows
        self._chunk = chunk
        with np.errstate(over="ignore", invalid="ignore"):  # such rows are neutralised below
            scores = rows.scores(theta)
            residual = loss.residual(scores, y).reshape(len(y), loss.outputs)
            self.raw_losses = torch.from_numpy(loss.value(scores, y))
        self._residual = torch.from_numpy(residual)
        feature_norms = torch.from_numpy(rows.unit * row_norms(rows.x))
        length = torch.linalg.vector_norm(self._residual, dim=1)
        self._kept = self.raw_losses.isfinite() & length.isfinite() & feature_norms.isfinite()
        self._feature_norms = torch.where(self._kept, feature_norms, 0.0)
        self._length = torch.where(self._kept, length, 0.0)

    @property
    def neutralised(self) -> int:
        return self.size - int(self._kept.sum())

    def norms(self) -> Tensor:
        return self._length * torch.sqrt(self._feature_norms**2 + int(self._rows.intercept))

    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        squares = {"coef": self._feature_norms**2, "intercept": torch.ones_like(self._length)}
        table = [
            torch.sqrt(sum((squares[name] for name in group), start=torch.zeros(1)))
            for group in groups
        ]
        return self._length[:, None] * torch.stack(table, dim=1)

    def sketch(self, directions: Directions) -> Tensor:
        parts = [view.sketch(directions) for view in self._materialised()]
        return torch.cat(parts) if parts else torch.zeros(0, directions.k, dtype=torch.float64)

    def total(self) -> Tree:
        return self._tree(self._residual, self._residual)

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        if isinstance(weights, Tensor):
            scaled = self._weighted(weights)
            return self._tree(scaled, scaled)
        intercept = weights["intercept"] if self._rows.intercept else weights["coef"]
        return self._tree(self._weighted(weights["coef"]), self._weighted(intercept))

    def map_sum(self, f: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Tree:
        nothing = torch.zeros_like(self._residual)
        total = self._tree(nothing, nothing)
        for view in self._materialised():
            for name, value in view.map_sum(f).items():
                total[name] += value
        return total

    def _weighted(self, weights: Tensor) -> Tensor:
        # The weight of a neutralised row is irrelevant: it may be infinite, and inf * 0 is NaN.
        usable = torch.where(self._kept, weights.to(torch.float64), 0.0)
        return usable[:, None] * torch.where(self._kept[:, None], self._residual, 0.0)

    def _tree(self, for_coef: Tensor, for_intercept: Tensor) -> Tree:
        coef = np.asarray(self._rows.x.T @ for_coef.numpy()) * self._rows.unit
        tree = {"coef": torch.from_numpy(coef)}
        if self._rows.intercept:
            tree["intercept"] = for_intercept.sum(0)
        return tree

    def _materialised(self) -> Iterator[RowsView]:
        """Explicit per-sample gradients of a chunk of rows at a time."""
        for start in range(0, self.size, self._chunk):
            piece = slice(start, start + self._chunk)
            residual = self._residual[piece]
            chunk = DesignRows(self._rows.x[piece], self._rows.intercept, self._rows.unit)
            explicit = torch.from_numpy(chunk.gradients(residual.numpy()))
            rows = {"coef": explicit[:, : self._rows.x.shape[1]]}
            if self._rows.intercept:
                rows["intercept"] = explicit[:, -1]
            yield RowsView(rows, self.raw_losses[piece], self._chunk)
