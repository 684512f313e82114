"""The metric in which whitened descent steps: X'X as released, raised where noise hides it.

    H        the mean of (u, 1)(u, 1)' over rows cut to length B, plus noise
    raised   eigenvalues of H, no smaller than twice the largest that its noise has by itself
    size     sum of eigenvalues over raised ones, E|v|^2 of v = H^-1/2 (u, 1): the dimension that
             rows have in this metric. All p where rows are many; where noise hides H, rows are
             short, and a bound for those of length sqrt(p) would drown them in noise for nothing

Guarantee
---------
The upper triangle of a a', off-diagonal entries times sqrt(2), has the length |a|^2 <= B^2 for a
row a that is cut to length B. Everything else here is computed from what was released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.core.arithmetic.rows import summed
from winsor.core.contract import Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch
from winsor.tables.design import Design

Array = NDArray[np.float64]

_PROOF_GRAM = "rows cut to length B: the triangle of (u, 1)(u, 1)' has length at most B^2"


@dataclass(frozen=True)
class Metric:
    """``root`` is H^-1/2 (p, p), its columns along the eigenvectors of H."""

    root: Array
    size: float

    @staticmethod
    def of(gram: Array, noise: float) -> Metric:
        """Invert a released ``gram`` with this ``noise`` of an entry of its diagonal."""
        values, vectors = np.linalg.eigh(gram)
        # Twice the largest eigenvalue that the noise has by itself, sqrt(2 p) times its deviation.
        raised = np.maximum(values, 2 * noise * math.sqrt(2 * len(gram)))
        # Noise is as often below zero as above it, and cancels in the sum of both.
        size = min(max(float(np.sum(values / raised)), 1.0), float(len(gram)))
        return Metric(np.asarray(vectors / np.sqrt(raised)), size)


def release_triangle(
    total: Array, bound: float, n: int, door: PrepaidDoor, mechanism: Gaussian
) -> tuple[Array, float]:
    """Release a symmetric sum of outer products of rows no longer than ``bound``, per row; also
    return the noise of an entry of its diagonal."""
    sensitivity, packed = Sensitivity.per_sample(bound**2, _PROOF_GRAM), packed_triangle(total)
    receipt = door.pay(mechanism, FullBatch(n), sensitivity, 1, (len(packed),))
    return unpacked_triangle(receipt.release(packed), len(total)) / n, receipt.std / n


def gram_of(design: Design, bound: float, beside: Array | None = None) -> Array:
    """Return sum_i a_i a_i', a_i = (u_i, 1) with what stands ``beside`` it, cut to length
    ``bound``, a chunk at a time."""
    pieces = (design.cut(piece, bound, beside) for piece, _ in design.chunks(1 << 20))
    return summed(rows.T @ rows for rows in pieces)


def packed_triangle(square: Array) -> Array:
    """Return the upper triangle of a symmetric matrix as a vector of the same norm."""
    rows, columns = np.triu_indices(len(square))
    return np.where(rows == columns, 1.0, math.sqrt(2)) * square[rows, columns]


def unpacked_triangle(packed: Array, size: int) -> Array:
    """Return the symmetric matrix of a `packed_triangle`."""
    rows, columns = np.triu_indices(size)
    square = np.zeros((size, size))
    square[rows, columns] = packed / np.where(rows == columns, 1.0, math.sqrt(2))
    return np.asarray(square + np.triu(square, 1).T)


# ---------------------------------------------------------- estimates without what chance explains


def kept_share(squares: Array, chance: Array | float) -> Array:
    """Return the share of estimates with these sums of ``squares`` that chance does not explain,
    1 - v / |c|^2 or nothing: v is the sum of the variances of the coordinates of c.

    This is James & Stein's (1961) shrinkage, a Wiener filter whose signal is estimated. Chance is
    the noise of the releases and the randomness of rows together.

    >>> kept_share(np.array([0.5, 2.0, 100.0]), 1.0).tolist()
    [0.0, 0.5, 0.99]
    """
    return np.maximum(0.0, 1.0 - chance / np.maximum(squares, 1e-300))


def towards_level(theta: Array, constant: Array | None, variance: Array) -> Array:
    """Draw whitened parameters (p, outputs) towards their part along ``constant``, the parameters
    of a model without slopes, or towards zero: where noise is all there is, the mean remains.

    Every coordinate has this ``variance`` (outputs,) by chance.
    """
    level, free = np.zeros_like(theta), len(theta)
    if constant is not None:
        level = np.outer(constant, constant @ theta) / (constant @ constant)
        free -= 1
    slopes = theta - level
    return level + kept_share(np.sum(slopes**2, axis=0), free * variance) * slopes
