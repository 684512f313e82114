"""Advice of the theorems for a tail and a budget, each with its source and its assumptions.

    fitted = winsor.tails.fit(norms)                       # public or synthetic norms
    for advice in winsor.tails.advise(fitted, Setting(n=60_000, d=26_010, epsilon=3, delta=1e-6)):
        print(advice)

The formulas live in `winsor/tails/theorems/`; here they meet a fitted tail. The theorems speak of
the gradient noise |g_i - grad F|; the fit sees whatever norms it was given, usually |g_i|. Their
constants are those of worst-case proofs and often far above what works: `private_quantile` is the
advice to follow when nothing is known, and is marked as such.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from winsor.core.checks import positive, probability
from winsor.core.contract import ConfigurationError
from winsor.rules import body_and_tail
from winsor.tails import weibull
from winsor.tails.fitting import TailFit
from winsor.tails.theorems import averaged, sco, thresholds
from winsor.tails.verdict import TailClass


@dataclass(frozen=True)
class Advice:
    """Named values with where they come from and what must hold for them to mean anything."""

    title: str
    values: dict[str, float]
    source: str
    assumptions: tuple[str, ...]
    formula: str
    holds: bool = True
    """False where the fitted tail contradicts an assumption."""

    def __str__(self) -> str:
        values = ", ".join(f"{name} = {value:.4g}" for name, value in self.values.items())
        doubt = "" if self.holds else " [assumptions contradicted by the fit]"
        return f"{self.title}{doubt}: {values}  ({self.source}: {self.formula})"


@dataclass(frozen=True)
class Setting:
    """The public facts of a run: rows n, parameters d, budget, and the steps if they are fixed."""

    n: int
    d: int
    epsilon: float
    delta: float
    steps: int | None = None
    batch_size: int | None = None
    smoothness: float = 1.0
    """L, lambda or beta of the theorems: the largest curvature of the loss."""
    radius: float = 1.0
    """Bound on the distance from the start to the optimum (paper 4)."""
    risk_range: float = 1.0
    """sup F - inf F, or the loss at the start (papers 3 and 5)."""
    failure: float = 0.05
    """Probability with which an advised bound may fail; not the privacy delta."""

    def __post_init__(self) -> None:
        for name in ("n", "d", "epsilon", "smoothness", "radius", "risk_range"):
            positive(name, getattr(self, name))
        for name in ("delta", "failure"):
            probability(name, getattr(self, name))
        for name, most in (("steps", math.inf), ("batch_size", self.n)):
            value = getattr(self, name)
            if value is not None and not (1 <= value <= most):
                limit = "" if most == math.inf else f" and at most n = {self.n}"
                raise ConfigurationError(
                    f"{name} must be at least 1{limit}. Got {value!r} instead."
                )

    @property
    def sampling_rate(self) -> float:
        """The batch size, or sqrt(n) where it is open, over n."""
        return min(1.0, (self.batch_size or math.sqrt(self.n)) / self.n)

    def steps_or_theorem(self) -> float:
        """Return the steps that were fixed, or those of paper 1's theorems."""
        if self.steps is not None:
            return float(self.steps)
        return body_and_tail.dc_dpsgd_steps(self.n, self.epsilon, self.d, self.delta)


def advise(fitted: TailFit, setting: Setting) -> list[Advice]:
    """Return all advice for a fitted tail and a setting, the practical default first."""
    return [
        private_quantile(fitted, setting),
        flat_threshold(fitted, setting),
        discriminative_thresholds(fitted, setting),
        simple_clipping(fitted, setting),
        no_clipping(fitted, setting),
        averaged_clipping(fitted, setting),
        modelmix(fitted, setting),
    ]


# ------------------------------------------------------------------------------------ practice


START = 0.1
"""Where the threshold starts if nothing is known: low, since it climbs fast and falls slowly, and
since a threshold below the quantile only normalises gradients while one above adds noise."""

LENGTH, MOMENTUM, STEPS = 0.5, 0.9, 400
TARGETS = (0.7, 0.97)


def private_quantile(fitted: TailFit | None, setting: Setting) -> Advice:
    """Advise a threshold that follows a private quantile of the norms: the default.

    Clipping at C removes at most E max(|g| - C, 0) from the mean gradient, and noise of length
    nu C is added to it, nu = sigma sqrt(d)/B. Their sum is least where P(|g| > C) = nu: the target
    is the 1 - nu quantile. It is kept within `TARGETS`: lower ones can collapse when most rows of
    a classifier are soon fitted well, higher ones are hardly ever reached from above.

    The learning rate is the length of a step, for gradients divided by the threshold
    (`winsor.tuning.recipe` does that); for a plain rule divide it by the threshold.
    """
    batch = setting.batch_size or max(1, min(setting.n, round(2 * math.sqrt(setting.n))))
    steps = setting.steps or STEPS
    multiplier = noise_multiplier(setting.n, batch, steps, setting.epsilon, setting.delta)
    noise = multiplier * math.sqrt(setting.d) / batch
    target = min(max(1 - noise, TARGETS[0]), TARGETS[1])
    values = {
        "max_grad_norm": START if fitted is None else fitted.body_quantile(target),
        "target": target,
        "rate": 0.3,
        "share": 0.01,
        "batch_size": float(batch),
        "steps": float(steps),
        "learning_rate": LENGTH,
        "momentum": MOMENTUM,
        "noise_multiplier": multiplier,
    }
    return Advice(
        "private quantile (the default when constants are unknown)",
        values,
        "Andrew et al. 2021, target from the bias-noise trade; winsor.tuning.recipes",
        (
            "none on the tail: the threshold adapts; its count costs 1 % of each step's privacy",
            "the learning rate is for gradients divided by the threshold, and falls to zero",
        ),
        "C <- C exp(-rate (released fraction below C - target)), target = 1 - sigma sqrt(d)/B",
    )


@functools.lru_cache(maxsize=64)
def noise_multiplier(n: int, batch_size: int, steps: int, epsilon: float, delta: float) -> float:
    """Return the certified multiplier of a per-sample rule with Poisson batches, add/remove-one."""
    from winsor.planning.run import PlannedRun

    return PlannedRun.of_numbers(n, batch_size, steps=steps, delta=delta).noise_for(epsilon)


# ------------------------------------------------------------------------------------- paper 1


def _theta(fitted: TailFit) -> float:
    """Assumption 3.1 asks theta >= 1/2: 1/2 where the interval reaches it, as a lighter tail is
    also sub-Gaussian and the constants jump just above 1/2."""
    return 0.5 if fitted.theta.low <= 0.5 else fitted.theta.value


def flat_threshold(fitted: TailFit, setting: Setting) -> Advice:
    """Advise one threshold c for DP-SGD under a sub-Weibull tail (paper 1, Theorem 4.1)."""
    theta, steps = _theta(fitted), setting.steps_or_theorem()
    scale = fitted.envelope(theta)
    c = body_and_tail.heavy_tailed_dpsgd_threshold(theta, scale, steps, setting.failure)
    bound = body_and_tail.sub_weibull_bound(theta, scale, setting.failure)
    return Advice(
        "flat threshold",
        {"c": c, "T": steps, "eta": 1 / math.sqrt(steps), "c without 39": bound},
        "paper 1, Theorem 4.1 (T from Theorem B.1)",
        (f"gradient noise sub-Weibull with theta = {theta:.3g}, K = {scale:.3g}", "smooth loss"),
        "c = max(4 K log^theta(sqrt T), 39 K log^theta(2/delta))",
        holds=fitted.describes,
    )


def discriminative_thresholds(fitted: TailFit, setting: Setting) -> Advice:
    """Advise c1 for the tail and c2 for the body (paper 1, Theorem 5.3)."""
    theta, steps = _theta(fitted), setting.steps_or_theorem()
    scale = fitted.envelope(theta)
    tail, body = body_and_tail.dc_dpsgd_thresholds(theta, scale, steps, setting.failure)
    ratio = body_and_tail.dc_dpsgd_ratio(theta, setting.failure)
    order = () if tail >= body else ("the constants put c2 above c1 here: keep c2 <= c1",)
    return Advice(
        "body and tail thresholds",
        {"c1": tail, "c2": body, "c1/c2 without constants": ratio},
        "paper 1, Theorem 5.3",
        (
            f"gradient noise sub-Weibull with theta = {theta:.3g}, K = {scale:.3g}",
            "smooth loss, bounded expected gradient",
            "certified noise follows c1: a smaller c2 shapes bias, it buys no noise",
            *order,
        ),
        "c1 = 4^theta K max(2 log^theta(sqrt T), 33 log^theta(2/delta)), "
        "c2 = sqrt(2a) K max(2 log^(1/2)(sqrt T), 33 log^(1/2)(2/delta))",
        holds=fitted.describes,
    )


# ------------------------------------------------------------------------------------- paper 2


def simple_clipping(fitted: TailFit, setting: Setting) -> Advice:
    """Advise R, T and eta for full-batch clipped gradients with p moments (paper 2, Theorem 4).

    The theorem's M bounds directional moments and enters R as sqrt(d) M, a bound on the norm's
    p-th moment; that moment is what the norms show, so M = (E|g|^p)^(1/p) / sqrt(d).
    """
    p = float(min(max(2.0, fitted.safe_moment), 8.0))
    moment = fitted.moment(p) / math.sqrt(setting.d)
    rho = sco.zcdp_budget_exact(setting.epsilon, setting.delta)
    found = sco.simple_clipping(p, moment, setting.n, setting.d, rho, smoothness=setting.smoothness)
    return Advice(
        "simple clipping (full batch)",
        {"R": found.radius, "T": found.steps, "eta": found.step_size, "p": p, "M": moment},
        "paper 2, Theorem 4, eq. (16)",
        (
            f"p = {p:.3g} moments (the data allow {fitted.safe_moment:.3g})",
            "convex loss on a bounded set; M read off the norms",
        ),
        "R = M sqrt(d) min((n sqrt(rho/d))^(1/p), (n/d)^(1/p)), T = rho n^2 M^2/(d R^2), "
        "eta = 1/(L sqrt(2T))",
        holds=fitted.safe_moment >= 2,
    )


# ------------------------------------------------------------------------------------- paper 3


def no_clipping(fitted: TailFit, setting: Setting) -> Advice:
    """Advise the C above which, with high probability, nothing is clipped (paper 3, eq. (2))."""
    scale = fitted.envelope(0.5)
    rho = scale * math.sqrt(1 + 2 / (math.e - 1))  # E exp(X^2/rho^2) <= e from the tail bound
    steps = float(setting.steps or max(1.0, (setting.n * setting.epsilon) ** 2 / setting.d))
    c = thresholds.no_clipping_threshold(
        smoothness=setting.smoothness,
        gap=setting.risk_range,
        noise=rho,
        n=setting.n,
        steps=steps,
        failure=setting.failure,
    )
    return Advice(
        "threshold without clipping",
        {"C": c, "rho": rho, "T": steps},
        "paper 3, eq. (2) with (9) and (10), absolute constants set to 1",
        ("sub-Gaussian gradient noise (Assumption 4.1)", "L-smooth losses, L and f(w0) - f* given"),
        "C = sqrt(4 L (f(w0) - f*) + (2 log(2/d) + 64 log(2T/d)) L^2) "
        "+ rho sqrt(1 + log(n (T+1)/d))",
        holds=fitted.verdict.tail is TailClass.LIGHT,
    )


# ------------------------------------------------------------------------------------- paper 4


def averaged_clipping(fitted: TailFit, setting: Setting) -> Advice:
    """Advise lambda, m, gamma and N for clipping the batch mean (paper 4, Theorem 4)."""
    problem = averaged.AclipProblem(
        smoothness=setting.smoothness,
        radius=setting.radius,
        deviation=fitted.moment(2.0),
        n=setting.n,
        d=setting.d,
        epsilon=setting.epsilon,
        delta=setting.delta,
        beta=setting.failure,
    )
    found = averaged.aclip_unconstrained(problem, setting.steps)
    return Advice(
        "averaged clipping",
        {
            "lambda": found.clip,
            "m": min(found.batch_size, float(setting.n)),
            "gamma": found.step_size,
            "N": float(found.steps),
        },
        "paper 4, Theorem 4",
        (
            "convex, L-smooth; R bounds the distance to the optimum; second moments only",
            "sensitivity of the clipped mean is 2 lambda, whatever the batch size",
        ),
        "lambda = 4LR + 2 sqrt(D), m = 162 N^2 sigma^2/(lambda^2 ln^2(4N/beta)), "
        "gamma = 1/(24 L ln(4N/beta))",
        holds=fitted.safe_moment >= 2 and found.batch_size <= setting.n,
    )


# ------------------------------------------------------------------------------------- paper 5


def sampling_noise_scale(fitted: TailFit) -> float:
    """Return kappa with P(X >= t) <= exp(-t/kappa) beyond the 90 % point of the fitted curve.

    The proof of Theorem B.1 uses the tail from c/4 >= kappa log 10 on, hence from S = 1/10.
    """
    depths = np.linspace(math.log(10), max(math.log(fitted.n), math.log(11)), 50)
    quantiles = [weibull.quantile(fitted.curve, math.exp(-depth)) for depth in depths]
    return float(np.max(np.array(quantiles) / depths))


def modelmix(fitted: TailFit, setting: Setting) -> Advice:
    """Advise c above the sampling noise, and tau against eta (paper 5, Theorems 3.2 and B.1)."""
    kappa = sampling_noise_scale(fitted)
    names = ("n", "epsilon", "d", "delta", "risk_range", "smoothness")
    facts: dict[str, Any] = {name: getattr(setting, name) for name in names}
    rate = setting.sampling_rate
    c = thresholds.sampling_noise_threshold(kappa, **facts)
    schedule = thresholds.clipped_sgd_schedule(c, sampling_rate=rate, **facts)
    tau = thresholds.mixing_width(sampling_rate=rate, **facts)
    return Advice(
        "c above the sampling noise, mixing width",
        {
            "c": c,
            "kappa": kappa,
            "T": schedule.steps,
            "eta": schedule.step_size,
            "tau where mixing costs as much as noise": tau,
            "tau/eta tried first": thresholds.MIXING_RATIOS[0],
        },
        "paper 5, Theorem 3.2 (condition from the proof of B.1)",
        (
            "sub-exponential sampling noise (Assumption 2.1), smooth loss",
            "tau/eta from 0.05 (no visible loss in the paper) to 0.3 (strongest amplification)",
        ),
        "c >= 4 kappa log 10 and c/(2 kappa) - log((c/4 + kappa)^2/c) >= 0.4 - log(noise unit)",
        holds=fitted.verdict.tail is not TailClass.HEAVY,
    )
