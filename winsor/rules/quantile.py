"""Adaptive clipping: the threshold follows a private quantile of the gradient norms.

    w_i = min(1, C_t / |g_i|)
    release jointly   sum_i w_i g_i + N(0, s_g^2),   sum_i (1[|g_i| <= C_t] - 1/2) + N(0, s_b^2)
    C_{t+1} = C_t exp(-rate (b_t - target)),   b_t = released count / (q n) + 1/2

Andrew et al. 2021. The noise of the gradient scales with the current C_t.

When to use
-----------
When gradient norms change a lot during training, or nobody knows their scale: the threshold finds
it within some tens of steps. A low target (0.1 to 0.3) is a good first guess under heavy tails.

Cost
----
That of flat clipping plus one comparison per row. The count takes ``share`` of each step's privacy:
at the default of 1 % the gradient's noise grows by 0.5 %.

Guarantee
---------
|w_i g_i| <= C_t and each centred vote is at most 1/2, both functions of row i and of C_t, which is
public (released counts only). Scaled by their noise, the two parts move together by at most
1/nm with nm^-2 = (C_t/s_g)^2 + (1/(2 s_b))^2: one joint Gaussian event whose multiplier does not
depend on C_t. The floor keeps C_t from collapsing to zero.

References
----------
Andrew, Thakkar, McMahan, Ramaswamy: Differentially private learning with adaptive clipping, NeurIPS
2021. The count is divided by the expected batch size, never by the realised one, which is private
under Poisson sampling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from torch import Tensor

from winsor.core.checks import positive, probability
from winsor.core.contract import Bounded, ConfigurationError, Released, Sensitivity, Tree
from winsor.gradients.view import Need, View
from winsor.rules.rule import Rule, State, Sums, WrappedRule, clip_weights

THRESHOLDS = "the rule's adaptive thresholds"
"""What a tracked threshold is called in a privacy statement (`Rule.releases_state`)."""


@dataclass(frozen=True)
class QuantileTracker:
    """Follow the ``target`` quantile of a per-row quantity: count, noise, move the threshold.

    Each row votes 1[x_i <= threshold]; the centred count is one more part of the step's joint
    release, and the next threshold is threshold * exp(-rate * (fraction - target)), where fraction
    is released count / expected size + 1/2, kept within [floor, ceiling]. A vote minus one half is
    at most 1/2 in absolute value: one record moves the count by 1/2 when added or removed, by 1
    when replaced. The next threshold is a function of the released count and public constants.

    ``share`` is the part of each step's privacy that the count costs; the gradient gets the rest,
    so its noise grows by 1/sqrt(1 - share). ``floor`` keeps the threshold (and with it the noise,
    which scales with it) from collapsing; ``ceiling`` keeps it finite.
    """

    target: float = 0.5
    rate: float = 0.2
    share: float = 0.01
    floor: float = 1e-3
    ceiling: float = 1e6

    def __post_init__(self) -> None:
        for name in ("target", "share"):
            probability(name, getattr(self, name))
        for name in ("rate", "floor", "ceiling"):
            positive(name, getattr(self, name))
        if self.ceiling < self.floor:
            raise ConfigurationError(
                f"ceiling must be at least floor = {self.floor}. Got {self.ceiling!r} instead."
            )

    def start(self, threshold: float) -> float:
        """Check an initial threshold."""
        positive("threshold", threshold)
        if not self.floor <= threshold <= self.ceiling:
            raise ConfigurationError(
                f"threshold must start within [{self.floor}, {self.ceiling}]. Got {threshold!r} "
                "instead. Move it, or widen floor and ceiling."
            )
        return float(threshold)

    def count(self, values: Tensor, threshold: float) -> Tensor:
        """Return sum_i (1[x_i <= threshold] - 1/2): a 0-dim tensor, additive over fragments."""
        return ((values <= threshold).to(values.dtype) - 0.5).sum()

    def part(self, count: Tensor) -> Bounded:
        """Return the count as a part of the step's release."""
        sensitivity = Sensitivity(0.5, 1.0, "a vote minus 1/2 is +-1/2 (Andrew et al. 2021)")
        return Bounded(count, sensitivity, share=self.share)

    def following(self, threshold: float, released: Tensor, expected_size: float) -> float:
        """Return the next threshold, from released and public numbers only."""
        fraction = float(released) / expected_size + 0.5
        log_next = math.log(threshold) - self.rate * (fraction - self.target)
        return math.exp(min(max(log_next, math.log(self.floor)), math.log(self.ceiling)))


@dataclass(frozen=True)
class Quantile(Rule):
    """Clip to a threshold that starts at ``max_grad_norm`` and follows ``tracker``'s quantile."""

    max_grad_norm: float = 1.0
    tracker: QuantileTracker = field(default_factory=QuantileTracker)

    needs = Need.NORMS | Need.WEIGHTED_SUM
    bound_reads_sum = False
    releases_state = THRESHOLDS

    def __post_init__(self) -> None:
        self.tracker.start(self.max_grad_norm)

    def init(self, parameters: Tree, expected_size: float) -> State:
        """Return the first threshold and the expected batch size."""
        return {"threshold": float(self.max_grad_norm), "expected_size": float(expected_size)}

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        """Return min(1, C/|g|) at the first threshold."""
        return clip_weights(norms, self.max_grad_norm)

    def contributions(self, view: View, state: State) -> Sums:
        """Return the sum of the clipped rows, and the count of votes."""
        norms, threshold = view.norms(), state["threshold"]
        return {
            "grad": view.weighted_sum(clip_weights(norms, threshold)),
            "count": self.tracker.count(norms, threshold),
        }

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        """Return the sum, which moves by C_t, and the count."""
        proof = "w_i depends on row i and the public threshold, |w_i g_i| <= C_t (Andrew 2021)"
        sensitivity = Sensitivity.per_sample(state["threshold"], proof)
        return {
            "grad": Bounded(sums["grad"], sensitivity, share=1 - self.tracker.share),
            "count": self.tracker.part(sums["count"]),
        }

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        """Move the threshold by the released count."""
        threshold = self.tracker.following(
            state["threshold"], released.values["count"], state["expected_size"]
        )
        return released, {**state, "threshold": threshold}


@dataclass(frozen=True)
class UnitLength(WrappedRule):
    """A quantile rule whose released gradient is divided by the threshold it was clipped at."""

    rule: Quantile

    @property
    def max_grad_norm(self) -> float:
        """The first threshold of the inner rule."""
        return self.rule.max_grad_norm

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        """Return the inner rule's weights."""
        return self.rule.weight_of_norm(norms)

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        """Divide the released gradient by its threshold, which is public."""
        clipped, following = self.rule.after(released, state)
        grad = clipped.values["grad"]
        unit = {name: leaf / state["threshold"] for name, leaf in grad.items()}
        std = {name: size / state["threshold"] for name, size in clipped.std.items()}
        return replace(clipped.with_grad(unit), std=std), following


EXAMPLES = (
    Quantile(1.0),
    Quantile(0.1, QuantileTracker(target=0.2, rate=0.5, share=0.1, floor=0.05)),
    UnitLength(Quantile(1.0)),
)
