"""Balanced clipping: each group of parameters clips as many rows as its noise deserves.

    w_{i,l} = min(1, C_l / |g_{i,l}|),        C_l ~ d_l^(-1/(2a)),  sum_l sqrt(d_l) C_l = sqrt(d) C
    release jointly   sum_i w_{i,l} g_{i,l} + N(0, (nm C_l)^2 / b_l),    b_l ~ sqrt(d_l) C_l

d_l of the d coordinates are in group l, and a is the tail index of the lengths. The squared noise
over all coordinates is that of flat clipping at C. With ``clipped`` the C_l are where thresholds
start; each then follows the quantile at which a share clipped sqrt(d_l / d_max) of the rows is
longer, by votes in the same release:

    sum_i (1[|g_{i,l}| <= C_l] - 1/2)_l + noise,      C_l <- C_l exp(-rate (kept_l - target_l))

Why. Raising C_l by dC moves the clipped mean of the lengths by P(|g_l| > C_l) dC: that is the bias
which is saved, whatever the law of the lengths. It raises the length of the noise by
nm sqrt(d_l) / (B sqrt(b_l)) dC. At equal b_l the two balance where the share of clipped rows is
proportional to sqrt(d_l), for tails of every index: a group of few coordinates (an intercept, a
gain) can let nearly all of its tail through, and one of many cannot. Where groups have lengths of
the same law with tail P ~ C^-a, that is the formula for C_l above. The noise shares b_l minimise
the squared noise over all coordinates, given the thresholds: (sum_l sqrt(d_l) C_l)^2, where one
noise for all costs d sum_l C_l^2.

When to use
-----------
When lengths of gradients have heavy tails and groups differ in size. ``clipped`` when the scale of
the gradients is unknown or changes; what it should be depends on how long noise averages out, so
it is tuned: 0.01 to 0.9.

Cost
----
Norms by group and one weighted sum; with ``clipped`` one comparison per row and group, and
``share`` of each step's privacy for the votes.

Guarantee
---------
w_{i,l} and the votes depend on row i and on C_l, which is public: it is given, or follows released
votes only. Group l moves by at most C_l. Each of the k votes minus one half is 1/2 in absolute
value, so that all of them move by sqrt(k)/2 when a record joins or leaves and by sqrt(k) when it is
replaced. One joint Gaussian event, whose multiplier does not depend on the thresholds. The noise
shares are functions of public thresholds and shapes, and add up to 1.

References
----------
Andrew, Thakkar, McMahan, Ramaswamy: Differentially private learning with adaptive clipping, NeurIPS
2021 (the votes). He et al.: Exploring the limits of differentially private deep learning with
group-wise clipping, ICLR 2023 (a quantile per layer, the same for all, and noise by layer). The
balance of bias and noise by the size of the group is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from winsor.core.checks import positive, probability
from winsor.core.contract import Bounded, Released, Sensitivity, Tree
from winsor.gradients.view import Need, View
from winsor.rules.per_layer import Groups, checked_groups, resolved_groups
from winsor.rules.quantile import THRESHOLDS, QuantileTracker
from winsor.rules.rule import Rule, State, Sums, clip_weights


@dataclass(frozen=True)
class Balanced(Rule):
    """Clip groups by themselves, at thresholds that balance bias and noise.

    ``max_grad_norm`` is the threshold at which flat clipping has as much noise; ``tail_index`` says
    how it is dealt out to groups. With ``clipped``, the share of rows that the largest group is to
    clip, thresholds only start there. ``groups`` as in `PerLayer`.
    """

    max_grad_norm: float
    tail_index: float = 2.0
    clipped: float | None = None
    groups: str | Groups = "parameter"
    share: float = 0.02
    rate: float = 0.3

    needs = Need.GROUP_NORMS | Need.WEIGHTED_SUM

    def __post_init__(self) -> None:
        for name in ("max_grad_norm", "tail_index", "rate"):
            positive(name, getattr(self, name))
        if self.clipped is not None:
            probability("clipped", self.clipped)
        probability("share", self.share)
        checked_groups(self.groups)

    @property
    def releases_state(self) -> str:  # type: ignore[override]
        return "" if self.clipped is None else THRESHOLDS

    def init(self, parameters: Tree, expected_size: float) -> State:
        groups = resolved_groups(self.groups, list(parameters))
        sizes = [sum(parameters[name].numel() for name in group) for group in groups]
        relative = [size ** (-0.5 / self.tail_index) for size in sizes]
        noise = sum(math.sqrt(size) * r for size, r in zip(sizes, relative, strict=True))
        unit = self.max_grad_norm * math.sqrt(sum(sizes)) / noise
        return {
            "groups": groups,
            "sizes": sizes,
            "thresholds": [unit * r for r in relative],
            "expected_size": float(expected_size),
        }

    def contributions(self, view: View, state: State) -> Sums:
        norms = view.group_norms(state["groups"])
        weights: dict[str, Tensor] = {}
        votes = []
        for index, (group, threshold) in enumerate(
            zip(state["groups"], state["thresholds"], strict=True)
        ):
            own = norms[:, index]
            weights |= dict.fromkeys(group, clip_weights(own, threshold))
            votes.append(self._tracker(0.5).count(own, threshold))
        return {"grad": view.weighted_sum(weights), "count": torch.stack(votes)}

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        proof = "w_il depends on row i and the public C_l, and |w_il g_il| <= C_l"
        parts = {
            f"grad/{index}": Bounded(
                {name: sums["grad"][name] for name in group},
                Sensitivity.per_sample(threshold, proof),
                share=portion,
            )
            for index, (group, threshold, portion) in enumerate(
                zip(state["groups"], state["thresholds"], self.noise_shares(state), strict=True)
            )
        }
        if self.clipped is None:
            return parts
        root = math.sqrt(len(state["groups"]))
        votes = Sensitivity(root / 2, root, "k votes minus 1/2 are +-1/2 each (Andrew et al. 2021)")
        return parts | {"count": Bounded(sums["count"], votes, share=self.share)}

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        grad: Tree = {}
        for name, part in released.values.items():
            if name != "count":
                grad |= part
        if self.clipped is not None:
            state = {**state, "thresholds": self._following(released.values["count"], state)}
        return released.with_grad(grad), state

    def _following(self, votes: Tensor, state: State) -> list[float]:
        assert self.clipped is not None
        largest = max(state["sizes"])
        return [
            self._tracker(1 - self.clipped * math.sqrt(size / largest)).following(
                threshold, votes[index], state["expected_size"]
            )
            for index, (size, threshold) in enumerate(
                zip(state["sizes"], state["thresholds"], strict=True)
            )
        ]

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        """Where all parameters are one group, at the start."""
        return clip_weights(norms, self.max_grad_norm)

    def noise_shares(self, state: State) -> list[float]:
        """b_l, of what the votes leave."""
        left = 1.0 if self.clipped is None else 1 - self.share
        lengths = [
            math.sqrt(size) * threshold
            for size, threshold in zip(state["sizes"], state["thresholds"], strict=True)
        ]
        return [left * length / sum(lengths) for length in lengths]

    def _tracker(self, target: float) -> QuantileTracker:
        return QuantileTracker(target=target, rate=self.rate, share=self.share)


EXAMPLES = (
    Balanced(1.0),
    Balanced(0.5, tail_index=1.0, groups="module"),
    Balanced(1.0, clipped=0.5),
    Balanced(3.0, clipped=0.1, groups="module", share=0.1, rate=1.0),
)
