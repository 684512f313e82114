"""Paper 1 (DC-DPSGD): thresholds for sub-Weibull gradients, from theta, K, T and delta."""

from __future__ import annotations

import math
from typing import NamedTuple

from winsor.core.checks import all_positive, all_probabilities
from winsor.core.contract import ConfigurationError


class DcThresholds(NamedTuple):
    """c1 for the tail, c2 for the body (Theorem 5.3)."""

    tail: float
    body: float


def checked_tail(theta: float, failure: float, **sizes: float) -> None:
    """Refuse theta below 1/2, a failure probability outside (0, 1), T < 1, sizes not positive."""
    all_positive(**sizes)
    all_probabilities(delta=failure)
    if not (math.isfinite(theta) and theta >= 0.5):
        raise ConfigurationError(
            f"theta must be at least 1/2 (Assumption 3.1). Got {theta!r} instead. A tail lighter "
            "than sub-Gaussian is also sub-Gaussian: use theta = 0.5."
        )
    if sizes.get("T", 1) < 1:
        raise ConfigurationError(f"T must be at least 1. Got {sizes['T']!r} instead.")


def freedman_constant(theta: float) -> float:
    """Return ``a`` of the sub-Weibull Freedman inequality (Lemma A.3, repeated in Theorem 5.3).

    2 at theta = 1/2; (4 theta)^(2 theta) e^2 on (1/2, 1];
    (2^(2 theta+1) + 2) Gamma(2 theta + 1) + 2^(3 theta) Gamma(3 theta + 1) / 3 above 1.
    It jumps at both seams (from 2 to 14.8 and from 118.2 to 36), as printed.
    """
    if theta == 0.5:
        return 2.0
    if theta <= 1:
        return math.pow(4 * theta, 2 * theta) * math.e**2
    first = (math.pow(2, 2 * theta + 1) + 2) * math.gamma(2 * theta + 1)
    return first + math.pow(2, 3 * theta) * math.gamma(3 * theta + 1) / 3


def sub_weibull_bound(theta: float, scale: float, failure: float) -> float:
    """Return K log^theta(2/delta): |X| stays below it with probability 1 - delta (Lemma A.1)."""
    all_positive(theta=theta, K=scale)
    all_probabilities(delta=failure)
    return scale * math.pow(math.log(2 / failure), theta)


def heavy_tailed_dpsgd_threshold(
    theta: float, scale: float, steps: float, failure: float, *, appendix: bool = False
) -> float:
    """Return c = max(4 K log^theta(sqrt T), 39 K log^theta(2/delta)) (paper 1, Theorem 4.1).

    ``failure`` is the delta of the convergence statement, not of the privacy guarantee (the paper
    uses one letter for both). ``appendix=True`` takes Theorem B.1, where the constant is 20 for
    theta > 1/2; at theta = 1/2 both have 39 (case K >= sigma_dp; the other case has 19/12 and
    rests on the noise level).
    """
    checked_tail(theta, failure, K=scale)
    all_positive(T=steps)
    constant = 20.0 if appendix and theta > 0.5 else 39.0
    clipping = 4 * scale * math.pow(math.log(math.sqrt(max(steps, 1.0))), theta)
    return max(clipping, constant * sub_weibull_bound(theta, scale, failure))


def dc_dpsgd_thresholds(
    theta: float, scale: float, steps: float, failure: float, *, appendix: bool = False
) -> DcThresholds:
    """Return c1 and c2 of discriminative clipping (paper 1, Theorem 5.3).

    c1 = 4^theta K max(2 log^theta(sqrt T), 33 log^theta(2/delta))
    c2 = sqrt(2 a) K max(2 log^(1/2)(sqrt T), 33 log^(1/2)(2/delta)),  a = `freedman_constant`

    ``appendix=True`` takes Theorem E.1, whose tail constant for theta > 1/2 is 17 without the
    factor 4^theta (and 33 sqrt(2a) at theta = 1/2). The end of Appendix E prints log^theta inside
    c2 as well, against the theorem and against its purpose; the theorem is followed.

    Beware: because of ``a``, the body threshold exceeds the tail threshold for theta in (1/2, 1] at
    delta = 1e-5, and for every theta > 1/2 with the appendix' constants; at theta = 1/2 they agree.
    Section 6.3's "c1 = 10 c2" takes base-10 logarithms: log10(1e5)^(3/2) = 11.2; with natural
    logarithms the ratio is 39.
    """
    checked_tail(theta, failure, K=scale)
    all_positive(T=steps)
    log_steps, log_failure = math.log(math.sqrt(max(steps, 1.0))), math.log(2 / failure)
    spread = math.sqrt(2 * freedman_constant(theta))
    body = spread * scale * max(2 * log_steps**0.5, 33 * log_failure**0.5)
    if not appendix:
        tail = 4**theta * scale * max(2 * log_steps**theta, 33 * log_failure**theta)
    elif theta > 0.5:
        tail = scale * max(4**theta * 2 * log_steps**theta, 17 * log_failure**theta)
    else:
        tail = scale * max(4 * log_steps**0.5, 33 * spread * log_failure**0.5)
    return DcThresholds(tail, body)


def dc_dpsgd_ratio(theta: float, failure: float) -> float:
    """Return c1/c2 = log^(theta - 1/2)(1/delta), the rates of Section 6.3 without constants."""
    all_positive(theta=theta)
    all_probabilities(delta=failure)
    return math.pow(math.log(1 / failure), theta - 0.5)


def dc_dpsgd_steps(
    n: float, epsilon: float, d: float, delta: float, *, as_printed: bool = False
) -> float:
    """Return T = n epsilon / sqrt(d log(1/delta)), up to a constant (Theorems 5.3, B.1, E.1).

    Theorem 4.1 prints it without the root; the appendix that proves it, and the rate that follows
    from it, have the root; ``as_printed=True`` leaves it out. The step size that goes with it is
    1/sqrt(T).
    """
    all_positive(n=n, epsilon=epsilon, d=d)
    all_probabilities(delta=delta)
    noise = d * math.log(1 / delta)
    return max(1.0, n * epsilon / (noise if as_printed else math.sqrt(noise)))
