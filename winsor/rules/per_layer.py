"""Per-layer clipping: each group of parameters has its own threshold.

    w_{i,l} = min(1, C_l / |g_{i,l}|),     C_l = C sqrt(a_l),   sum_l a_l = 1

One noise for all (``joint=False``): N(0, (nm C)^2) on every coordinate.
Joint event (``joint=True``): group l is a part of its own, with noise nm C_l / sqrt(b_l), where the
noise shares b_l add up to 1; with equal b_l each group's noise is proportional to its threshold.
McMahan et al. 2018, He et al. 2023.

When to use
-----------
When layers have gradients of very different length, so that one threshold starves some of them.
Joint, when their thresholds differ and a quiet layer should not carry a loud layer's noise.

Cost
----
Norms by group instead of one norm per row: the same work, summed differently.

Guarantee
---------
w_{i,l} depends on row i only. A record's contribution has norm at most sqrt(sum_l C_l^2) = C over
all groups, so the single release has shift C. Jointly, group l moves by at most C_l; scaled by
their noise the groups together move by at most 1/nm: one Gaussian event of multiplier nm, either
way the same. Every parameter must be in exactly one group; this is checked at the start.

References
----------
McMahan, Ramage, Talwar, Zhang: Learning differentially private recurrent language models, ICLR
2018. He et al.: Exploring the limits of differentially private deep learning with group-wise
clipping, ICLR 2023. Thresholds are fixed here; He et al. adapt them by private quantiles.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from winsor.core.checks import positive
from winsor.core.contract import Bounded, ConfigurationError, Released, Sensitivity, Tree
from winsor.gradients.view import Need, View
from winsor.rules.rule import Rule, State, Sums, clip_weights

Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class PerLayer(Rule):
    """Clip each group of parameters by itself, to ``max_grad_norm`` over all groups together.

    ``groups`` is "module" (a weight and its bias together), "parameter", or tuples of parameter
    names. ``shares`` are the a_l, ``noise_shares`` the b_l (joint only); both default to equal.
    """

    max_grad_norm: float
    groups: str | Groups = "module"
    shares: tuple[float, ...] | None = None
    joint: bool = False
    noise_shares: tuple[float, ...] | None = None

    needs = Need.GROUP_NORMS | Need.WEIGHTED_SUM

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)
        checked_groups(self.groups)
        _check_shares("shares", self.shares)
        _check_shares("noise_shares", self.noise_shares)
        if self.noise_shares is not None and not self.joint:
            raise ConfigurationError(
                "noise_shares must be None unless joint=True: one release has one noise. "
                f"Got {self.noise_shares!r} instead."
            )

    def init(self, parameters: Tree, expected_size: float) -> State:
        """Return the groups, checked against the trained parameters."""
        groups = resolved_groups(self.groups, list(parameters))
        for name in ("shares", "noise_shares"):
            given = getattr(self, name)
            if given is not None and len(given) != len(groups):
                raise ConfigurationError(
                    f"{name} must have one entry per group; there are {len(groups)} groups: "
                    f"{groups}. Got {len(given)} entries instead."
                )
        return {"groups": groups}

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        """Return the weights of a group with the whole budget; others have this curve at C_l."""
        return clip_weights(norms, self.max_grad_norm)

    def contributions(self, view: View, state: State) -> Sums:
        """Return the sum of the rows, each group clipped to its threshold."""
        groups = state["groups"]
        norms = view.group_norms(groups)
        weights = {
            name: clip_weights(norms[:, index], threshold)
            for index, (group, threshold) in enumerate(
                zip(groups, self._thresholds(groups), strict=True)
            )
            for name in group
        }
        return {"grad": view.weighted_sum(weights)}

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        """Return one part with shift C, or one part for each group."""
        groups, grad = state["groups"], sums["grad"]
        if not self.joint:
            proof = "w_il depends on row i only and sum_l |w_il g_il|^2 <= sum_l C_l^2 = C^2"
            return {"grad": Bounded(grad, Sensitivity.per_sample(self.max_grad_norm, proof))}
        thresholds = self._thresholds(groups)
        noise_shares = self.noise_shares or _equal(len(groups))
        proof = "w_il depends on row i only and |w_il g_il| <= C_l"
        return {
            f"grad/{index}": Bounded(
                {name: grad[name] for name in group},
                Sensitivity.per_sample(thresholds[index], proof),
                share=noise_shares[index],
            )
            for index, group in enumerate(groups)
        }

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        """Put the groups together again."""
        grad: Tree = {}
        for part in released.values.values():
            grad |= part
        return released.with_grad(grad), state

    def _thresholds(self, groups: list[list[str]]) -> list[float]:
        shares = self.shares or _equal(len(groups))
        return [self.max_grad_norm * math.sqrt(share) for share in shares]


def _equal(count: int) -> tuple[float, ...]:
    return (1 / count,) * count


def _check_shares(name: str, shares: tuple[float, ...] | None) -> None:
    if shares is None:
        return
    for share in shares:
        positive(f"each of {name}", share)
    if not math.isclose(sum(shares), 1.0, rel_tol=1e-9):
        raise ConfigurationError(
            f"{name} must add up to 1. Got {sum(shares)!r} instead. Divide each by their sum."
        )


def checked_groups(groups: str | Groups) -> None:
    """Refuse what names no way of grouping."""
    if isinstance(groups, str) and groups not in ("module", "parameter"):
        raise ConfigurationError(
            'groups must be "module", "parameter" or tuples of parameter names. '
            f"Got {groups!r} instead."
        )


def resolved_groups(groups: str | Groups, names: list[str]) -> list[list[str]]:
    """Return the groups as lists of names, each name in exactly one."""
    if groups == "parameter":
        return [[name] for name in names]
    if groups == "module":
        owners = dict.fromkeys(name.rpartition(".")[0] for name in names)
        return [[n for n in names if n.rpartition(".")[0] == owner] for owner in owners]
    resolved = [list(group) for group in groups]
    counts = Counter(name for group in resolved for name in group)
    _refuse("unknown parameter names", set(counts) - set(names))
    _refuse("names in no group", set(names) - set(counts))
    _refuse("names in several groups", {name for name, count in counts.items() if count > 1})
    if not all(resolved):
        raise ConfigurationError("groups must not be empty. Got an empty group instead.")
    return resolved


def _refuse(problem: str, names: Iterable[str]) -> None:
    if names:
        raise ConfigurationError(
            "groups must put every trained parameter into exactly one group. Got "
            f"{problem}: {sorted(names)} instead."
        )


EXAMPLES = (
    PerLayer(1.0),
    PerLayer(0.5, groups="parameter"),
    PerLayer(1.0, groups="parameter", joint=True),
    PerLayer(2.0, joint=True),
)
