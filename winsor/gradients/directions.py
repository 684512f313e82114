"""k random directions in parameter space that are never stored as a d x k matrix.

A parameter of shape (out, ...) is read as a matrix (out, in). Direction j = (a, b) is, on it,

    c u_a v_b^T,     c^2 = numel / d,

with u_1..u_p orthonormal in R^out and v_1..v_q orthonormal in R^in (QR of iid draws), p q >= k. The
inner product with a gradient G = sum_t g_t x_t^T is then (g_t . u_a)(x_t . v_b) summed over t:
p + q small products instead of k large ones, and G itself is never formed. Vectors use

    direction j = the entries i with i = j (mod k), filled with iid draws and normalised,

and parameters with fewer than k entries repeat an orthonormal basis with random signs.

Guarantee
---------
Every direction has unit norm. Restricted to a parameter with at least k entries (for a matrix: at
least k products u_a v_b^T, always so unless out * in < k), directions are exactly orthonormal up to
the factor c. Hence <D_i, D_j> = 0 for i != j up to rounding, except for the parameters with fewer
than k entries, which add at most their share numel / d of all coordinates, and only when
i = j modulo their numel.

The draws are iid standard normal, or symmetrised Weibull, s (-log U)^theta with a random sign s,
whose tails are sub-Weibull with parameter theta (paper 1, definition 2.3). They depend on the seed
and the parameter's name only, so every engine and every machine sees the same directions.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from winsor.core.contract import ConfigurationError, Tree
from winsor.gradients.arithmetic import form_rows, inner_products
from winsor.gradients.view import Directions


@dataclass(frozen=True)
class Kronecker:
    """Directions c u_a v_b^T on a matrix; j = a q + b."""

    u: Tensor  # (out, p), carries the factor c
    v: Tensor  # (in, q)
    k: int

    def rows(self, rows: Tensor) -> Tensor:
        """Map explicit rows (n, *shape) to inner products (n, k)."""
        matrix = rows.reshape(-1, self.v.shape[0])
        right = inner_products(matrix, self.v.T).view(len(rows), self.u.shape[0], self.v.shape[1])
        return self._core(form_rows(self.u.expand(len(rows), -1, -1), right))

    def factors(self, left: Tensor, right: Tensor) -> Tensor:
        """Map factors (n, T, out) and (n, T, in) of rows sum_t left_t right_t^T to (n, k)."""
        a, b = _at_places(left, self.u), _at_places(right, self.v)
        return self._core(form_rows(a, b))

    def indexed(self, index: Tensor, right: Tensor) -> Tensor:
        """Do as `factors`, where left_t is the unit vector of ``index`` (n, T); index < 0
        is none."""
        left = self.u[index.clamp_min(0)].masked_fill((index < 0).unsqueeze(-1), 0.0)
        return self._core(form_rows(left, _at_places(right, self.v)))

    def _core(self, core: Tensor) -> Tensor:
        return core.flatten(1)[:, : self.k]


@dataclass(frozen=True)
class Comb:
    """Direction j fills the entries i with i = j (mod k) of a vector."""

    values: Tensor  # (numel,)
    k: int

    def rows(self, rows: Tensor) -> Tensor:
        """Map explicit rows (n, *shape) to inner products (n, k)."""
        size = rows.shape[1:].numel()
        comb = torch.zeros(self.k, size, dtype=torch.float64)
        comb[torch.arange(size) % self.k, torch.arange(size)] = self.values.double()
        return inner_products(rows.reshape(len(rows), size), comb)


@dataclass(frozen=True)
class Cyclic:
    """Direction j is column j (mod numel) of an orthonormal basis, with a random sign."""

    basis: Tensor  # (numel, numel), carries the factor c
    signs: Tensor  # (k,)

    def rows(self, rows: Tensor) -> Tensor:
        """Map explicit rows (n, *shape) to inner products (n, k)."""
        inner = inner_products(rows.reshape(len(rows), len(self.basis)), self.basis.T)
        k = len(self.signs)
        return inner.repeat(1, -(-k // inner.shape[1]))[:, :k] * self.signs.double()


Basis = Kronecker | Comb | Cyclic


def _at_places(x: Tensor, vectors: Tensor) -> Tensor:
    """Return (n, T, p) inner products of the places of ``x`` (n, T, k) with columns (k, p)."""
    found = inner_products(x.reshape(-1, x.shape[-1]), vectors.T)
    return found.view(*x.shape[:-1], vectors.shape[1])


def bases(directions: Directions, parameters: Mapping[str, Tensor]) -> dict[str, Basis]:
    """Restrict the directions to each parameter. ``parameters`` gives names and shapes."""
    return _bases(directions, tuple((name, tuple(p.shape)) for name, p in parameters.items()))


def sketch_rows(rows: Tree, directions: Directions) -> Tensor:
    """Return (n, k) inner products of explicit rows {name: (n, *shape)} with the directions."""
    per_parameter = bases(directions, {name: r[0:0].sum(0) for name, r in rows.items()})
    return torch.stack([per_parameter[name].rows(r) for name, r in rows.items()]).sum(0)


@lru_cache(maxsize=4)
def _bases(
    directions: Directions, shapes: tuple[tuple[str, tuple[int, ...]], ...]
) -> dict[str, Basis]:
    _check(directions)
    d = sum(math.prod(shape) for _, shape in shapes)
    return {name: _basis(directions, name, shape, d) for name, shape in shapes}


def _basis(directions: Directions, name: str, shape: tuple[int, ...], d: int) -> Basis:
    k, numel = directions.k, math.prod(shape)
    generator = _generator(directions.seed, name)
    c = math.sqrt(numel / d)
    if numel < k:
        basis = _orthonormal(directions, generator, numel, numel)
        signs = generator.integers(0, 2, size=k) * 2.0 - 1.0
        return Cyclic((c * basis).float(), torch.from_numpy(signs).float())
    if len(shape) < 2:
        values = _draw(directions, generator, numel)
        comb = np.resize(np.arange(k), numel)
        norms = np.sqrt(np.bincount(comb, weights=values**2, minlength=k))
        return Comb(torch.from_numpy(c * values / norms[comb]).float(), k)
    out, inner = shape[0], numel // shape[0]
    p, q = _split(k, out, inner)
    u = _orthonormal(directions, generator, out, p)
    v = _orthonormal(directions, generator, inner, q)
    return Kronecker((c * u).float(), v.float(), k)


def _split(k: int, out: int, inner: int) -> tuple[int, int]:
    """Return the cheapest p <= out, q <= inner with p q >= k."""
    fits = [(p, -(-k // p)) for p in range(1, min(k, out) + 1) if -(-k // p) <= inner]
    return min(fits, key=lambda pq: pq[0] * out + pq[1] * inner)


def _orthonormal(
    directions: Directions, generator: np.random.Generator, size: int, count: int
) -> Tensor:
    draws = _draw(directions, generator, size * count).reshape(size, count)
    return torch.linalg.qr(torch.from_numpy(draws))[0]


def _draw(directions: Directions, generator: np.random.Generator, size: int) -> np.ndarray:
    if directions.distribution == "gaussian":
        return generator.standard_normal(size)
    magnitude = generator.standard_exponential(size) ** directions.theta
    return magnitude * (generator.integers(0, 2, size=size) * 2.0 - 1.0)


def _generator(seed: int, name: str) -> np.random.Generator:
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def _check(directions: Directions) -> None:
    if directions.k < 1:
        raise ConfigurationError(f"k must be at least 1. Got {directions.k!r} instead.")
    if directions.distribution not in ("gaussian", "weibull"):
        raise ConfigurationError(
            'distribution must be "gaussian" or "weibull". '
            f"Got {directions.distribution!r} instead."
        )
    if not directions.theta > 0:
        raise ConfigurationError(f"theta must be positive. Got {directions.theta!r} instead.")
