"""Algorithm 1 of DC-DPSGD as printed, row by row, for models of a few thousand parameters.

    line 5    B_t: every record with probability B/n; g_i its gradient
    line 6    v_1..v_k: dense, entries symmetrised Weibull, P(|v| > x) = exp(-x^(1/theta)), then
              orthonormalised; drawn anew in every step;  V V' = (1/k) sum_i v_i v_i'
    line 7-8  trace_i = |V' g_i|^2 / |g_i|^2
    line 9    trace_i + N(0, sigma_tr^2); the p B largest are the tail
    line 10   tail: g_i / max(1, |g_i|/c1) + N(0, (c1 sigma_dp)^2 I)
              body: g_i / max(1, |g_i|/c2) + N(0, (c2 sigma_dp)^2 I)
    line 11   average over the nominal B
    line 12   w <- w - eta_t (that)

Line 10 prints one noise draw *per record*; ``reading="two noises"`` draws one for each of the two
sums, as the paper's budget suggests, and ``"public code"`` weighs these by p and 1 - p, as the
authors' code does (`claim.py`). Line 6 has the factor 1/k; Theorem 5.2 has V'V = I instead, which
is ``averaged=False``: traces k times as large under the same noise.

Guarantee
---------
None that is certified: a run returns a `PublishedClaim`. With noise per record the variance depends
on the number of rows in the batch, so that not even its law is that of one Gaussian. What winsor
certifies for this clipping is `winsor.rules.Discriminative`, whose directions have Kronecker
structure because k dense ones do not fit large models; `DcDpsgdRun.certified_history` says what the
noise of the two sums is worth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import positive, whole
from winsor.core.contract import ConfigurationError
from winsor.core.randomness import new_key, stream
from winsor.core.sampling.samplers import Poisson
from winsor_papers.dc_dpsgd.claim import DcDpsgdRun
from winsor_papers.published import PublishedClaim

Array = NDArray[np.float64]
Gradients = Callable[[Array, NDArray[np.int64]], Array]
"""(w, indices of the batch) -> (b, d) gradients, one row per record."""

LARGEST = 20_000_000
"""Most numbers in the d x k matrix of directions: it is drawn and orthonormalised at every step."""


@dataclass(frozen=True)
class StepDraws:
    """The randomness of one step, in standard units.

    ``directions`` is (d, k) before orthonormalisation, ``traces`` (b,) normals, ``noise`` normals:
    (b, d) where every record has its own, (2, d) for one draw each for tail and body.
    """

    directions: Array
    traces: Array
    noise: Array


@dataclass(frozen=True)
class Step:
    """Lines 6 to 11 of one step."""

    gradient: Array
    """(d,), averaged and noised: what line 12 descends along."""
    tail: NDArray[np.bool_]
    noisy_traces: Array


@dataclass(frozen=True)
class PublishedRun:
    """Where a run ended, and what the paper claims for it."""

    parameters: Array
    claim: PublishedClaim


@dataclass(frozen=True)
class Algorithm1:
    """Discriminative clipping DP-SGD as printed, with the noise of ``account``.

    >>> account = DcDpsgdRun(batch=20, records=100, steps=5, reading="per record")
    >>> rows = np.random.default_rng(0).standard_t(2, size=(100, 6))
    >>> printed = Algorithm1(account, learning_rate=0.1, k=3)
    >>> run = printed.run(lambda w, batch: w - rows[batch], np.zeros(6), seed=0)
    >>> run.parameters.shape, run.claim.published_epsilon
    ((6,), 8.0)
    """

    account: DcDpsgdRun
    learning_rate: float
    k: int = 200
    theta: float = 2.0
    averaged: bool = True

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)
        positive("theta", self.theta)
        whole("k", self.k)

    def run(
        self,
        gradients: Gradients,
        start: Array,
        *,
        seed: int | None = None,
        look: Callable[[int, Array], None] | None = None,
    ) -> PublishedRun:
        """T steps from ``start``; ``look(step, w)`` sees every iterate."""
        w = np.array(start, dtype=np.float64)
        self._check(w.size)
        account, key = self.account, new_key(seed)
        sampler = Poisson(account.records, account.sampling_probability)
        for t in range(account.steps):
            batch = sampler.indices(key, t)
            rows = gradients(w, batch)
            w = w - self.learning_rate * self.step(rows, self.draws(key, t, *rows.shape)).gradient
            if look is not None:
                look(t + 1, w)
        return PublishedRun(w, account.claim())

    def step(self, gradients: Array, draws: StepDraws) -> Step:
        """Lines 6 to 11 for the (b, d) gradients of one batch."""
        account = self.account
        norms = np.sqrt(np.einsum("ij,ij->i", gradients, gradients))
        traces = self.traces(gradients, norms, draws.directions)
        noisy = traces + account.sigma_trace * draws.traces
        tail = np.zeros(len(gradients), dtype=bool)
        tail[np.argsort(-noisy, kind="stable")[: round(account.tail_fraction * account.batch)]] = (
            True
        )
        bounds = np.where(tail, account.c1, account.c2)
        clipped = (gradients / np.maximum(1.0, norms / bounds)[:, None]).sum(axis=0)
        if account.reading == "per record":
            noise = account.sigma_gradient * (bounds @ draws.noise)
        else:
            noise = account.sigma_gradient * (np.array(account.sum_spreads) @ draws.noise)
        return Step((clipped + noise) / account.batch, tail, noisy)

    def traces(self, gradients: Array, norms: Array, directions: Array) -> Array:
        """(b,) traces of lines 6 to 8; 0 for a gradient of norm 0."""
        basis = orthonormal(directions)
        projected = (gradients @ basis) / np.where(norms > 0, norms, 1.0)[:, None]
        traces = np.einsum("ij,ij->i", projected, projected)
        return traces / self.k if self.averaged else traces

    def draws(self, key: bytes, step: int, rows: int, d: int) -> StepDraws:
        """The randomness of one step: a function of (key, step)."""
        generator = stream(key, "dc-dpsgd", step)
        directions = weibull_directions(generator, (d, self.k), self.theta)
        noises = rows if self.account.reading == "per record" else 2
        return StepDraws(
            directions, generator.standard_normal(rows), generator.standard_normal((noises, d))
        )

    def _check(self, d: int) -> None:
        if self.k > d:
            raise ConfigurationError(
                f"k must be at most the number of parameters, {d}: there are no more orthonormal "
                f"directions. Got {self.k!r} instead."
            )
        if d * self.k > LARGEST:
            raise ConfigurationError(
                f"k times the number of parameters must be at most {LARGEST:,}: the printed "
                f"algorithm orthonormalises a dense matrix of that size at every step. Got "
                f"{self.k} x {d} instead. Take fewer directions or a smaller model, or "
                'winsor.rules.Discriminative(selection="rank"), whose directions are structured.'
            )


def weibull_directions(
    generator: np.random.Generator, shape: tuple[int, int], theta: float
) -> Array:
    """(d, k) entries of random sign with P(|v| > x) = exp(-x^(1/theta)): powers of exponentials."""
    signs = 2.0 * generator.integers(0, 2, size=shape, dtype=np.int8) - 1.0
    found: Array = signs * generator.standard_exponential(shape) ** theta
    return found


def orthonormal(directions: Array) -> Array:
    """The Gram-Schmidt basis of the columns, by a QR factorisation with positive diagonal."""
    basis, triangle = np.linalg.qr(directions)
    return basis * np.where(np.diag(triangle) < 0, -1.0, 1.0)
