"""Paper 1 (DC-DPSGD): its thresholds in all cases of the appendix, K <= sigma-hat included.

Theorems B.1 and E.1 distinguish whether the tail scale K or the length sigma-hat of the privacy
noise is larger. ``failure`` is the delta of the convergence statement.
"""

from __future__ import annotations

import math

from winsor.core.checks import all_positive, all_probabilities
from winsor.rules.body_and_tail import (
    DcThresholds,
    checked_tail,
    freedman_constant,
)
from winsor_papers.theory.bound import Bound, Condition, stated

_TAIL = "gradient noise sub-Weibull(theta, K) (Assumption 3.1)"
_SMOOTH = "beta-smooth loss (Assumption 3.2)"
_BOUNDED = "|grad L|^2 <= G (Assumption 3.3)"


def dpsgd_noise_level(
    threshold: float,
    *,
    n: float,
    d: float,
    epsilon: float,
    delta: float,
    steps: float,
    batch_size: float,
    m2: float = 1.0,
) -> float:
    """sigma-hat = c sqrt(m2 T d log(1/delta)) B/(n epsilon): length of the noise (Theorem B.1).

    >>> round(dpsgd_noise_level(1.0, n=6e4, d=100, epsilon=3, delta=1e-5, steps=500,
    ...                         batch_size=128), 3)
    0.54
    """
    all_positive(c=threshold, n=n, d=d, epsilon=epsilon, T=steps, B=batch_size, m2=m2)
    all_probabilities(delta=delta)
    spread = math.sqrt(m2 * steps * d * math.log(1 / delta)) * batch_size
    return threshold * spread / (n * epsilon)


def _proof_needs(noise_level: float, failure: float, threshold: float) -> Condition:
    needed = 27 * math.sqrt(math.e) * noise_level * math.sqrt(math.log(1 / failure))
    return (
        threshold >= needed,
        "c >= 27 sqrt(e) sigma-hat log^(1/2)(1/f), which the proof uses",
        f"the proof uses c >= 27 sqrt(e) sigma-hat log^(1/2)(1/f) = {needed:.3g}, more than the "
        f"printed {threshold:.3g}",
    )


def dpsgd_threshold_by_noise(
    theta: float, scale: float, *, steps: float, failure: float, noise_level: float
) -> Bound:
    """c of Theorem B.1, whose constant depends on theta and on whether K <= sigma-hat.

    theta = 1/2, K <= sigma-hat: max(4 K log^(1/2)(sqrt T), (19/12) K log^(1/2)(1/f))
    theta = 1/2, K >= sigma-hat: max(4 K log^(1/2)(sqrt T), 39 K log^(1/2)(2/f))
    theta > 1/2:                 max(4 K log^theta(sqrt T), 20 K log^theta(2/f))

    sigma-hat (`dpsgd_noise_level`) is itself proportional to c: check the case at the c returned.

    >>> dpsgd_threshold_by_noise(0.5, 1.0, steps=1, failure=0.05, noise_level=2.0).value < 3
    True
    """
    checked_tail(theta, failure, T=steps, K=scale, noise_level=noise_level)
    body = 4 * scale * math.pow(math.log(math.sqrt(steps)), theta)
    conditions: list[Condition] = []
    if theta > 0.5:
        tail, case = 20 * scale * math.pow(math.log(2 / failure), theta), "theta > 1/2"
    elif scale <= noise_level:
        tail, case = 19 / 12 * scale * math.sqrt(math.log(1 / failure)), "K <= sigma-hat"
        conditions = [_proof_needs(noise_level, failure, max(body, tail))]
    else:
        tail, case = 39 * scale * math.sqrt(math.log(2 / failure)), "K >= sigma-hat"
    return stated(
        f"paper 1, Theorem B.1, case {case}",
        "max(4 K log^theta(sqrt T), constant K log^theta(2/f))",
        {"steps": body, "probability": tail},
        value=max(body, tail),
        assumed=(_TAIL, _SMOOTH),
        conditions=conditions,
    )


def discriminative_thresholds_by_noise(
    theta: float, scale: float, *, steps: float, failure: float, noise_level: float
) -> tuple[Bound, Bound]:
    """(c1, c2) of Theorem E.1, with its cases K <= sigma-hat and K >= sigma-hat.

    tail, theta = 1/2: max(4 K log^(1/2)(sqrt T), x), tail, theta > 1/2: max(2 4^theta K
    log^theta(sqrt T), 17 K log^theta(2/f)); body: max(2 sqrt(2a) K log^(1/2)(sqrt T), x), where
    x = (16/12) a K log^(1/2)(1/f) if K <= sigma-hat, else 33 sqrt(2a) K log^(1/2)(2/f).

    >>> tail, body = discriminative_thresholds_by_noise(
    ...     1.5, 1.0, steps=500, failure=0.05, noise_level=0.5)
    >>> body.value > tail.value, body.warnings
    (True, ('the constants put c2 above c1 here: keep c2 <= c1',))
    """
    checked_tail(theta, failure, T=steps, K=scale, noise_level=noise_level)
    found = _by_noise(theta, scale, steps, failure, scale <= noise_level)
    case = "K <= sigma-hat" if scale <= noise_level else "K >= sigma-hat"
    ordered: Condition = (
        found.tail >= found.body,
        "c2 <= c1",
        "the constants put c2 above c1 here: keep c2 <= c1",
    )
    tail_depends = theta == 0.5 and scale <= noise_level
    body_depends = scale <= noise_level
    return (
        stated(
            "paper 1, Theorem E.1 (i), case " + (case if theta == 0.5 else "theta > 1/2"),
            "c1, see the docstring",
            {"c1": found.tail},
            assumed=(_TAIL, _SMOOTH, _BOUNDED),
            conditions=[_proof_needs(noise_level, failure, found.tail)] if tail_depends else [],
        ),
        stated(
            f"paper 1, Theorem E.1 (ii), case {case}",
            "c2, see the docstring",
            {"c2": found.body},
            assumed=(_TAIL, _SMOOTH, _BOUNDED),
            conditions=[
                ordered,
                *([_proof_needs(noise_level, failure, found.body)] if body_depends else []),
            ],
        ),
    )


def _by_noise(
    theta: float, scale: float, steps: float, failure: float, noisy: bool
) -> DcThresholds:
    a, log_steps = freedman_constant(theta), math.log(math.sqrt(steps))
    light = (
        16 * a / 12 * math.sqrt(math.log(1 / failure))
        if noisy
        else 33 * math.sqrt(2 * a) * math.sqrt(math.log(2 / failure))
    )
    body = scale * max(2 * math.sqrt(2 * a) * math.sqrt(log_steps), light)
    if theta == 0.5:
        return DcThresholds(scale * max(4 * math.sqrt(log_steps), light), body)
    heavy = max(
        2 * math.pow(4, theta) * math.pow(log_steps, theta),
        17 * math.pow(math.log(2 / failure), theta),
    )
    return DcThresholds(scale * heavy, body)
