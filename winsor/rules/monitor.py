"""Private monitoring: a noised histogram of row norms, as part of every release.

    rule = winsor.tails.PrivateMonitor(winsor.rules.Flat(1.0))
    private = winsor.make_private(..., rule=rule, epsilon=3.0)
    ...
    print(rule.reading(private.rule_state))

The monitor wraps a rule. Each row votes for one bin of a logarithmic histogram of norms, and the
noised histogram is one more part of the step's joint release, with ``share`` of its privacy. All
else is post-processing: smoothing over steps, quantiles, clip fraction, bias, effective batch, and
(from the released gradient, whose noise is known) noise-to-signal ratio and per-layer shares.

A row's size is its gradient norm. Value clipping never forms a per-sample gradient; it weighs each
row by a certified bound on its norm, and that bound is counted. Either is a function of its own row
and of public weights, which is all that the sensitivity rests on.

When to use
-----------
To see during training how heavy the tail is and how many rows are clipped, where looking at exact
norms would be a leak. For exact numbers, which are NOT PRIVATE, there is
`winsor.rules.debug_monitor.DebugMonitor`.

Cost
----
One histogram of the norms per step, and ``share`` of each step's privacy: at the default of 2 % the
gradient's noise grows by 1 %.

Guarantee
---------
A row's vote is a unit vector chosen by its own norm and public edges: the histogram moves by 1 in
L2 when a record is added or removed, by at most sqrt(2) when one is replaced. Shares add up to 1,
so the joint event has the noise multiplier it would have without the monitor: at a given epsilon
the total is unchanged, and the gradient's noise grows by 1/sqrt(1 - share).

References
----------
Andrew, Thakkar, McMahan, Ramaswamy: Differentially private learning with adaptive clipping, NeurIPS
2021 (a count in the same release). The histogram is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from winsor.core import checks
from winsor.core.contract import Bounded, ConfigurationError, Released, Sensitivity, Tree
from winsor.gradients.view import Need, View
from winsor.rules.flat import Flat
from winsor.rules.quantile import Quantile
from winsor.rules.rule import Rule, State, Sums, WrappedRule, clip_weights, dry_run

HISTOGRAM = "norm_histogram"
HISTOGRAMS = "the histograms of gradient norms"
_PROOF = "each row votes for one bin by its own norm: a unit vector"


@dataclass(frozen=True)
class Reading:
    """What the released values say about the tails. Private: post-processing of releases."""

    steps: int
    edges: tuple[float, ...]
    counts: tuple[float, ...]
    """Rows per batch in each bin, smoothed, and 0 below twice their noise; end bins are open."""
    count_noise: float
    """Standard deviation of the noise that is left in each count."""
    clip_fraction: float | None
    clipping_bias: float | None
    """Bound on the length of the mean gradient that clipping removes."""
    effective_batch: float | None
    """(sum w)^2 / sum w^2 of the clipping weights: rows that count."""
    noise_to_signal: float
    layer_shares: dict[str, float]

    def quantile(self, probability: float) -> float:
        """Return the norm below which this share of rows lies, interpolated in the logarithm."""
        target = checks.probability("probability", probability) * sum(self.counts)
        seen = 0.0
        for (low, high), count in zip(pairwise(self.edges), self.counts, strict=True):
            if seen + count >= target and count > 0:
                return low * math.pow(high / low, (target - seen) / count)
            seen += count
        return self.edges[-1]

    def __str__(self) -> str:
        parts = [f"median norm {self.quantile(0.5):.3g}", f"90 % {self.quantile(0.9):.3g}"]
        if self.clip_fraction is not None and self.clipping_bias is not None:
            parts += [f"clipped {self.clip_fraction:.0%}", f"bias <= {self.clipping_bias:.3g}"]
        parts.append(f"noise/signal {self.noise_to_signal:.3g}")
        return f"private monitor, {self.steps} steps: " + ", ".join(parts)


@dataclass(frozen=True)
class PrivateMonitor(WrappedRule):
    """A rule that also releases a noised histogram of the norms it clips.

    ``low`` and ``high`` bound the histogram; norms outside fall into its end bins. ``memory`` is
    the number of steps over which readings are smoothed: one step's counts carry noise of
    nm/sqrt(share) rows each, ``memory`` steps' sqrt(2 memory) times less.
    """

    rule: Rule
    share: float = 0.02
    low: float = 1e-3
    high: float = 1e3
    bins: int = 24
    memory: int = 50

    def __post_init__(self) -> None:
        checks.probability("share", self.share)
        if not 0 < self.low < self.high < math.inf:
            raise ConfigurationError(
                f"low must be positive and below high. Got {self.low!r}, {self.high!r} instead."
            )
        for name in ("bins", "memory"):
            checks.whole(name, getattr(self, name), least=2)

    # ------------------------------------------------------------------------ the Rule protocol

    @property
    def needs(self) -> Need:  # type: ignore[override]
        """What the inner rule needs, and norms."""
        return self.rule.needs | Need.NORMS

    @property
    def releases_state(self) -> str:  # type: ignore[override]
        """What the inner rule releases, and the histograms."""
        inner = self.rule.releases_state
        return f"{inner}, and {HISTOGRAMS}" if inner else HISTOGRAMS

    def init(self, parameters: Tree, expected_size: float) -> State:
        """Return the inner rule's state, and empty readings."""
        state = self.rule.init(parameters, expected_size)
        parts = dry_run(self.rule, parameters, expected_size)
        grad = parts.get("grad")
        return {
            **state,
            "monitor_counts": torch.zeros(self.bins),
            "monitor_energy": torch.zeros(len(parameters)),
            "monitor_noise": torch.zeros(len(parameters)),
            "monitor_names": list(parameters),
            "monitor_steps": 0,
            "monitor_count_std": 0.0,
            # the threshold now is the first one times the growth of the gradient's noise
            "monitor_first_clip": grad.sensitivity.add_remove if grad is not None else 0.0,
            "monitor_grad_share": grad.share * (1 - self.share) if grad is not None else 0.0,
            "monitor_clip": 0.0,
        }

    def contributions(self, view: View, state: State) -> Sums:
        """Return the inner rule's sums, and the histogram of the rows' sizes."""
        sums = _detached(self.rule.contributions(view, state))
        norms = row_sizes(self.rule, view, state)
        index = torch.bucketize(norms, self._inner_edges(norms))
        votes = torch.bincount(index, minlength=self.bins).to(norms.dtype)
        return {**sums, HISTOGRAM: votes}

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        """Return the inner rule's parts and the histogram, which shares their privacy."""
        parts = self.rule.bounded({k: v for k, v in sums.items() if k != HISTOGRAM}, state)
        shared = {
            k: replace(part, share=part.share * (1 - self.share)) for k, part in parts.items()
        }
        sensitivity = Sensitivity(1.0, math.sqrt(2.0), _PROOF)
        shared[HISTOGRAM] = Bounded(sums[HISTOGRAM], sensitivity, share=self.share)
        return shared

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        """Smooth what was released; the inner rule finishes the step."""
        own = self._follow(released, state)
        inner = replace(
            released, values={k: v for k, v in released.values.items() if k != HISTOGRAM}
        )
        grad, following = self.rule.after(inner, state)
        return grad, {**following, **own}

    # ------------------------------------------------------------------------- post-processing

    def _follow(self, released: Released, state: State) -> State:
        """Smooth the released counts and energies; all of it public."""
        steps = state["monitor_steps"] + 1
        keep = 1 - 1 / min(steps, self.memory)
        energy, noise = _energies(released, state["monitor_names"])
        std = released.std[HISTOGRAM]
        clip = 0.0
        if "grad" in released.std:  # s_g / s_h = S_g sqrt(share_h / share_g), as S_h = 1
            ratio = released.std["grad"] / std
            clip = ratio * math.sqrt(state["monitor_grad_share"] / self.share)
        blend = {
            "monitor_counts": released.values[HISTOGRAM].detach().clone(),
            "monitor_energy": energy,
            "monitor_noise": noise,
        }
        followed: State = {
            name: keep * state[name].to(value) + (1 - keep) * value for name, value in blend.items()
        }
        left = (keep * state["monitor_count_std"]) ** 2 + ((1 - keep) * std) ** 2
        return {
            **followed,
            "monitor_names": state["monitor_names"],
            "monitor_steps": steps,
            "monitor_count_std": math.sqrt(left),
            "monitor_clip": clip,
            "monitor_first_clip": state["monitor_first_clip"],
            "monitor_grad_share": state["monitor_grad_share"],
        }

    def edges(self) -> tuple[float, ...]:
        """Return bins + 1 edges; the outer two are nominal, as the end bins are open."""
        ratio = self.high / self.low
        return tuple(self.low * ratio ** (i / self.bins) for i in range(self.bins + 1))

    def _inner_edges(self, like: Tensor) -> Tensor:
        return torch.tensor(self.edges()[1:-1], dtype=like.dtype, device=like.device)

    def reading(self, state: State) -> Reading:
        """Return the current reading from a run's public ``rule_state``."""
        if not state.get("monitor_steps"):
            raise ConfigurationError(
                "a reading needs at least one released step. Got none: train first, and pass "
                "private.rule_state of the run that was built with this monitor."
            )
        edges = self.edges()
        counts, left = state["monitor_counts"].double(), state["monitor_count_std"]
        counts = torch.where(counts > 2 * left, counts, 0.0)  # empty bins hold nothing but noise
        middles = torch.tensor([math.sqrt(low * high) for low, high in pairwise(edges)]).double()
        fraction, bias, effective = self._clipping(counts, middles, state)
        signal = (state["monitor_energy"] - state["monitor_noise"]).clamp_min(0.0)
        total = float(signal.sum())
        noise = float(state["monitor_noise"].sum())
        shares = signal / total if total > 0 else signal
        return Reading(
            steps=state["monitor_steps"],
            edges=edges,
            counts=tuple(counts.tolist()),
            count_noise=state["monitor_count_std"],
            clip_fraction=fraction,
            clipping_bias=bias,
            effective_batch=effective,
            noise_to_signal=math.sqrt(noise / total) if total > 0 else math.inf,
            layer_shares=dict(zip(state["monitor_names"], shares.tolist(), strict=True)),
        )

    def _clipping(
        self, counts: Tensor, middles: Tensor, state: State
    ) -> Clipping | tuple[None, None, None]:
        """Clip fraction, bias bound and effective batch, if the rule weighs rows by their norm."""
        weigh = weight_of_size(self.rule)
        if weigh is None or not state["monitor_clip"] or float(counts.sum()) <= 0:
            return None, None, None
        # rules are scale free: the weight at threshold C of norm x is that at C_0 of x C_0 / C
        scaled = middles * (state["monitor_first_clip"] / state["monitor_clip"])
        return clipping_of(weigh(scaled), middles, counts)


def _detached(sums: Sums) -> Sums:
    """Detach the sums: an engine that serves norms and a total may leave the total its graph."""
    return {
        name: {k: v.detach() for k, v in value.items()} if isinstance(value, dict) else value
        for name, value in sums.items()
    }


def _energies(released: Released, names: list[str]) -> tuple[Tensor, Tensor]:
    """Return |released gradient|^2 and the expected |noise|^2, per parameter."""
    energy, noise = {}, {}
    for part, value in released.values.items():
        if part == HISTOGRAM or not isinstance(value, dict):
            continue
        lengths = torch._foreach_norm([leaf.detach() for leaf in value.values()])
        for (name, leaf), length in zip(value.items(), lengths, strict=True):
            energy[name] = length.float() ** 2
            noise[name] = leaf.numel() * released.std[part] ** 2
    zero = torch.zeros(())
    return (
        torch.stack([energy.get(name, zero) for name in names]),
        torch.tensor([noise.get(name, 0.0) for name in names]),
    )


# ----------------------------------------------------------------------------- sizes of rows


def row_sizes(rule: Rule, view: View, state: State) -> Tensor:
    """Return (n,) sizes of the rows in this view. Private."""
    if getattr(view, "has_norms", True):
        return view.norms()
    bounds = getattr(rule, "bounds", None)
    if bounds is None:
        raise ConfigurationError(
            f"a monitored rule must look at norms or give bounds on them. Got {rule!r} instead, "
            "which does neither. Train without the monitor, or monitor winsor.rules.Flat."
        )
    sizes: Tensor = bounds(view, state)
    return sizes


Clipping = tuple[float, float, float]
"""Share of the rows scaled down, bound on the bias, and (sum w)^2 / sum w^2: rows that count."""


def clipping_of(weights: Tensor, sizes: Tensor, counts: Tensor) -> Clipping:
    """Return what weights do to ``counts`` rows of each of the sizes."""
    total, squares = float(counts.sum()), float((counts * weights**2).sum())
    return (
        float(counts[weights < 0.999].sum()) / total,
        float((counts * (1 - weights) * sizes).sum()) / total,
        float((counts * weights).sum()) ** 2 / squares if squares > 0 else 0.0,
    )


def weight_of_size(rule: Rule) -> Callable[[Tensor], Tensor] | None:
    """Return the weights of the rule at its first threshold, by size; None if unknown."""
    weigh: Callable[[Tensor], Tensor] | None = getattr(rule, "weight_of_norm", None)
    threshold = getattr(rule, "max_grad_norm", None)
    if weigh is None and hasattr(rule, "bounds") and threshold is not None:
        return partial(clip_weights, threshold=threshold)
    return weigh


EXAMPLES = (PrivateMonitor(Flat(1.0)), PrivateMonitor(Quantile(0.5), share=0.3, bins=4))
