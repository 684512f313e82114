"""What all five papers promise at once, for one dataset, model and budget.

    for promise in winsor_papers.theory.promises(Circumstances(n=60_000, d=1000, epsilon=1,
    delta=1e-6)):
        print(promise.name, promise.bound or promise.refusal)

The values are orders with constant 1, in the units of their own papers (some bound a risk, some a
gradient). They tell how a promise moves with n, d and epsilon, and which assumptions it needs; they
do not tell which method is better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from winsor.core.checks import all_positive, all_probabilities
from winsor.core.contract import ConfigurationError
from winsor.rules.body_and_tail import dc_dpsgd_steps
from winsor.tails.theorems.thresholds import sampling_noise_threshold
from winsor_papers.theory.averaged_rates import aclip_convex_rate
from winsor_papers.theory.bound import Bound
from winsor_papers.theory.dc_dpsgd_rates import discriminative_uniform_rate, heavy_tailed_dpsgd_rate
from winsor_papers.theory.modelmix_rates import clipped_dpsgd_rate
from winsor_papers.theory.sco_rates import (
    iterative_updating_rate,
    minimax_risk,
    simple_clipping_rate,
)
from winsor_papers.theory.value_clipping_rates import gradient_clipping_rate


@dataclass(frozen=True)
class Circumstances:
    """Public facts of a run. ``theta``, ``p`` and ``kappa`` describe the tail of gradient norms."""

    n: float
    d: float
    epsilon: float
    delta: float
    steps: float | None = None
    """None takes T of paper 1's theorems, and n^2 epsilon^2/d for paper 3."""
    batch_size: float | None = None
    """None takes sqrt(n)."""
    theta: float = 0.5
    """Sub-Weibull index: 1/2 sub-Gaussian, 1 sub-exponential, above heavier."""
    p: float = 2.0
    """Moments that gradients have."""
    kappa: float = 1.0
    """Scale of a sub-exponential tail, in units of the gradient."""
    failure: float = 0.05

    def __post_init__(self) -> None:
        all_positive(n=self.n, d=self.d, epsilon=self.epsilon, kappa=self.kappa)
        all_probabilities(delta=self.delta, failure=self.failure)


@dataclass(frozen=True)
class Promise:
    """One rate, or why its theorem has nothing to say here."""

    name: str
    bound: Bound | None = None
    refusal: str = ""


def promises(facts: Circumstances) -> list[Promise]:
    """The rates of the five papers at these facts, in the order of the papers.

    >>> found = promises(Circumstances(n=60_000, d=1000, epsilon=1.0, delta=1e-6, theta=1.5))
    >>> len(found), found[0].name
    (9, 'DP-SGD, one threshold')
    """
    n, d, epsilon, delta = facts.n, facts.d, facts.epsilon, facts.delta
    batch = facts.batch_size or n**0.5

    def length() -> float:
        return facts.steps or dc_dpsgd_steps(n, epsilon, d, delta)

    def descent(rate: Callable[..., Bound], *lead: float) -> Bound:
        return rate(
            *lead, facts.theta, n=n, d=d, epsilon=epsilon, steps=length(), failure=facts.failure
        )

    def convex(rate: Callable[..., Bound]) -> Bound:
        return rate(facts.p, n=n, d=d, epsilon=epsilon, delta=delta)

    def averaged(constrained: bool) -> Bound:
        return aclip_convex_rate(
            n=n,
            d=d,
            epsilon=epsilon,
            delta=delta,
            confidence=facts.failure,
            constrained=constrained,
        )

    def mixed() -> Bound:
        c = sampling_noise_threshold(facts.kappa, n=n, epsilon=epsilon, d=d, delta=delta)
        return clipped_dpsgd_rate(c, n=n, d=d, epsilon=epsilon, delta=delta, kappa=facts.kappa)

    lines: dict[str, Callable[[], Bound]] = {
        "DP-SGD, one threshold": lambda: descent(heavy_tailed_dpsgd_rate),
        "body and tail thresholds": lambda: descent(discriminative_uniform_rate, 0.1),
        "simple clipping, full batch": lambda: convex(simple_clipping_rate),
        "iterative updating": lambda: convex(iterative_updating_rate),
        "lower bound for any method": lambda: convex(minimax_risk),
        "DP-SGD without clipping": lambda: gradient_clipping_rate(
            n=n, d=d, epsilon=epsilon, batch_size=batch, steps=facts.steps
        ),
        "averaged clipping, on a ball": lambda: averaged(True),
        "averaged clipping, free": lambda: averaged(False),
        "clipping above the sampling noise": mixed,
    }
    heaviest = {"DP-SGD without clipping": 0.5, "clipping above the sampling noise": 1.0}
    return [_settled(name, rate, facts.theta, heaviest.get(name)) for name, rate in lines.items()]


def _settled(name: str, rate: Callable[[], Bound], theta: float, heaviest: float | None) -> Promise:
    """``heaviest`` is the largest tail index that the theorem allows."""
    try:
        bound = rate()
        if heaviest is not None and theta > heaviest:
            doubt = f"theta = {theta:.3g} is heavier than the theorem allows ({heaviest:g})"
            bound = replace(bound, warnings=(*bound.warnings, doubt))
        return Promise(name, bound)
    except ConfigurationError as refusal:
        return Promise(name, refusal=str(refusal))
