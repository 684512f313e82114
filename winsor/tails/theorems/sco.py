"""Paper 2 (heavy-tailed DP-SCO): R, T and eta from a p-th moment, and the error bound (11)."""

from __future__ import annotations

import math
from typing import NamedTuple

from winsor.core.checks import all_positive, all_probabilities
from winsor.core.contract import ConfigurationError


class ScoParameters(NamedTuple):
    """Clipping radius R, number of full-batch steps T, step size eta."""

    radius: float
    steps: float
    step_size: float


class ZcdpBudget(NamedTuple):
    """(epsilon, delta). A number of the paper's arithmetic, not a certified guarantee."""

    epsilon: float
    delta: float


class MeanError(NamedTuple):
    """The three terms of (11). Their sum bounds the error with probability 1 - beta."""

    sampling: float
    bias: float
    noise: float

    @property
    def total(self) -> float:
        """Bound on the error: the three terms added up."""
        return self.sampling + self.bias + self.noise


def checked_moments(p: float, **sizes: float) -> None:
    """Refuse p below 2 (Assumption 1c), and any size that is not positive."""
    all_positive(**sizes)
    if not (math.isfinite(p) and p >= 2):
        raise ConfigurationError(
            f"p must be at least 2 (Assumption 1c). Got {p!r} instead. With fewer moments none of "
            "these rates is proved; `winsor.tails.fit` reports the moment that is safe."
        )


def zcdp_budget_exact(epsilon: float, delta: float) -> float:
    """Return the rho with rho + 2 sqrt(rho ln(1/delta)) = epsilon (Lemma 1(4), exactly).

    Still a conversion with loss; certified runs calibrate the Gaussian itself instead.
    """
    all_positive(epsilon=epsilon)
    all_probabilities(delta=delta)
    log = math.log(1 / delta)
    return (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2


def zcdp_to_dp(rho: float, delta: float) -> ZcdpBudget:
    """Return (rho + 2 sqrt(rho ln(1/delta)), delta) of a rho-zCDP algorithm (Lemma 1(4)).

    Printed for rho = epsilon^2/2: epsilon^2/2 + epsilon sqrt(2 ln(1/delta)). Inside the proof of
    Theorem 3 the factor sqrt(rho) of the second term is missing; (13) has it.

    >>> round(zcdp_to_dp(0.5, 1e-5).epsilon, 3)
    5.299
    """
    all_positive(rho=rho)
    all_probabilities(delta=delta)
    return ZcdpBudget(rho + 2 * math.sqrt(rho * math.log(1 / delta)), delta)


def simple_clipping_error(
    radius: float, *, p: float, moment: float, n: float, d: float, rho: float, beta: float
) -> MeanError:
    """Return the bound of Theorem 2, (11), on the error of the clipped mean, term by term."""
    checked_moments(p, M=moment)
    all_positive(R=radius, n=n, d=d, rho=rho)
    all_probabilities(beta=beta)
    log = math.log(2 / beta) + d * math.log(6)
    sampling = max(math.sqrt(12 * moment**2 / n * log), 8 * radius / n * log)
    bias = d ** (p / 2) * moment**p / (p - 1) * radius ** (1 - p)
    return MeanError(sampling, bias, 4 * radius / (n * math.sqrt(rho)) * math.sqrt(log))


def simple_clipping_radius(p: float, moment: float, n: float, d: float, rho: float) -> float:
    """Return R of (16): M sqrt(d) min((n sqrt(rho) / sqrt(d))^(1/p), (n/d)^(1/p)).

    The paper prints it for M = 1; rescaling the gradients by M gives the factor M.
    """
    checked_moments(p, M=moment)
    all_positive(n=n, d=d, rho=rho)
    noise, sampling = n * math.sqrt(rho / d), n / d
    return moment * math.sqrt(d) * math.pow(min(noise, sampling), 1 / p)


def simple_clipping(
    p: float, moment: float, n: float, d: float, rho: float, *, smoothness: float = 1.0
) -> ScoParameters:
    """Return R, T = rho n^2 M^2 / (d R^2) and eta = 1 / (lambda sqrt(2 T)) of Theorem 4."""
    all_positive(smoothness=smoothness)
    radius = simple_clipping_radius(p, moment, n, d, rho)
    steps = max(1.0, rho * n**2 * moment**2 / (d * radius**2))
    return ScoParameters(radius, steps, 1 / (smoothness * math.sqrt(2 * steps)))


def iterative_updating(
    p: float, moment: float, n: float, d: float, epsilon: float, *, smoothness: float = 1.0
) -> ScoParameters:
    """Return R = M sqrt(d) (n epsilon / sqrt(d))^(1/p), T and eta of Theorem 7 (epsilon <= 1)."""
    checked_moments(p, M=moment)
    all_positive(n=n, d=d, epsilon=epsilon, smoothness=smoothness)
    radius = moment * math.sqrt(d) * (n * epsilon / math.sqrt(d)) ** (1 / p)
    steps = max(1.0, (n * epsilon * moment) ** 2 / (d * radius**2))
    return ScoParameters(radius, steps, 1 / (smoothness * math.sqrt(2 * steps)))


def iterative_error(
    radius: float,
    *,
    p: float,
    moment: float,
    n: float,
    d: float,
    rho: float,
    beta: float,
    groups: float,
    constant: float = 1.0,
) -> MeanError:
    """Return the bound behind (26): 6 r_0 of Lemma 8 with r_0 of (21), plus the bias of (11).

    ``constant`` is C_0 of Lemma 6, which the paper does not name: with the default this is a bound
    up to that constant. rho is that of one group mean, s^2 = 2R^2/(rho m^2). (21) is printed for
    M = 1; the factor M goes to its first term.
    """
    checked_moments(p, M=moment)
    all_positive(R=radius, n=n, d=d, rho=rho, k=groups, constant=constant)
    all_probabilities(beta=beta)
    log = d + math.log(1 / beta)
    sampling = 6 * constant * moment * math.sqrt(log / n)
    noise = 6 * constant * radius / n * math.sqrt(groups / rho * log)
    bias = d ** (p / 2) * moment**p / (p - 1) * radius ** (1 - p)
    return MeanError(sampling, bias, noise)


def iterative_groups(beta: float) -> int:
    """Return k = 800 ln(1/beta) groups (Lemma 6), at least one."""
    all_probabilities(beta=beta)
    return max(1, math.ceil(800 * math.log(1 / beta)))


def iterative_inner_steps(distance: float, accuracy: float) -> int:
    """Return t_c = 2 ln(|c_1 - mu| / (4 r_0)) / ln(256/233) of Lemma 8, at least 1."""
    all_positive(distance=distance, accuracy=accuracy)
    if distance <= 4 * accuracy:
        return 1
    return max(1, math.ceil(2 * math.log(distance / (4 * accuracy)) / math.log(256 / 233)))
