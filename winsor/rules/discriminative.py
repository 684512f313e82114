"""Discriminative clipping (DC-DPSGD): a large threshold for the tail, a small one for the body.

    w_i = min(1, c1/|g_i|) if row i is in the tail, else min(1, c2/|g_i|),      c1 >= c2
    release  sum_i w_i g_i + N(0, (nm S)^2 I)

Paper 1, Algorithm 1. Who is in the tail, and what that costs:

    =========  =====================================================  =================
    selection  row i is in the tail when                              shift S
    =========  =====================================================  =================
    "norm"     |g_i| > t                                              c1
    "loss"     its loss > t                                           c1
    "trace"    |V^T g_i|^2 / |g_i|^2 > t, V from symmetrised Weibull  c1
    "rank"     it is among the round(p q n) largest scores            2 c1 - c2
    "random"   its own coin of probability p says so                  c1 w.p. p, else c2
    =========  =====================================================  =================

The threshold t is a public constant, or follows a private quantile (``tracker``), whose noised
count is part of the same joint release.

When to use
-----------
To shape clipping bias: rows in the tail keep more of their length. It does not buy noise. The
certified noise scales with c1, not with a mixture of c1 and c2, so at equal epsilon the body is
clipped to c2 under the noise of flat clipping at c1. Start with "norm" or "loss": the paper's
trace carries no information about the tail (its mean is k/d for every direction), and "random" is
what it amounts to after its noise.

Cost
----
"norm", "loss", "random", "rank" by norm or loss: that of flat clipping. "trace": a sketch of k
directions on top, structured by layer, so that no d x k matrix exists. "rank" and "random" join
the fragments of a batch.

Guarantee
---------
norm, loss, trace: membership depends on row i, the public t and the public V: |w_i g_i| <= c1.
rank: let z join and fix everything else. If z is not in the tail it adds at most c2. If it is, it
adds at most c1 and may push one row y out, which moves by |clip(y, c1) - clip(y, c2)| <= c1 - c2.
Together 2 c1 - c2; three rows at -L e and one at +L e attain it. A replaced record: 2 c1. Ties
are broken by a secret random key per record, never by position.
random: given its coin, a record moves the sum by c1 or by c2 along its own gradient, whatever the
others do: a mixture of Gaussians (docs/privacy.md, F3), tighter than c1. The coins stay secret.
Membership is never released, so no budget is spent on it, and noise on the scores would buy none.

References
----------
Anonymous: Clip body and tail separately (DC-DPSGD), Algorithm 1 and Theorem 5.3. The paper adds
noise to the traces (eps_tr), ranks, and accounts the sum at p c1 + (1-p) c2; that reading lives in
`papers/winsor_papers/dc_dpsgd/claim.py`, and the algorithm as printed in `algorithm.py` beside it.
One deviation for large models: the printed directions are dense, orthonormalised together and drawn
at every step; here they have Kronecker structure by layer and stay for ``refresh`` steps. The
authors' public code projects only the first layer, in absolute value, and divides by the norm of
the whole batch; here all layers, and each row by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from winsor.core.arithmetic.slack import SHORTEST_ROW
from winsor.core.checks import choice, positive, probability, whole
from winsor.core.contract import Bounded, ConfigurationError, Released, Sensitivity, Tree
from winsor.gradients.arithmetic import squares
from winsor.gradients.view import Directions, Need, View
from winsor.rules import draws
from winsor.rules.body_and_tail import dc_dpsgd_thresholds
from winsor.rules.quantile import THRESHOLDS, QuantileTracker
from winsor.rules.rule import Rule, State, Sums, clip_weights

SCORES = ("norm", "loss", "trace")
SELECTIONS = (*SCORES, "rank", "random")


@dataclass(frozen=True)
class Subspace:
    """k public orthonormal directions from symmetrised Weibull(theta), redrawn now and then."""

    k: int = 200
    theta: float = 2.0
    seed: int = 0
    refresh: int = 100

    def __post_init__(self) -> None:
        positive("theta", self.theta)
        for name in ("k", "refresh"):
            whole(name, getattr(self, name))

    def directions(self, step: int) -> Directions:
        """Return the directions in force at ``step``."""
        period = step // self.refresh
        return Directions(self.k, self.seed + period, distribution="weibull", theta=self.theta)


@dataclass(frozen=True)
class Discriminative(Rule):
    """Clip the tail to ``c1`` and the body to ``c2``.

    ``threshold`` is t: c1 if not given for "norm", k/d for "trace". With a ``tracker`` it is where
    t starts, and the tracker's ``target`` is the share of rows that belong to the body.
    ``tail_fraction`` is p of "rank" and "random"; ``rank_by`` is the score that "rank" sorts.
    """

    c1: float
    c2: float
    selection: str = "norm"
    threshold: float | None = None
    tail_fraction: float = 0.1
    tracker: QuantileTracker | None = None
    subspace: Subspace = field(default_factory=Subspace)
    rank_by: str = "trace"
    seed: int | None = None

    def __post_init__(self) -> None:
        positive("c1", self.c1)
        positive("c2", self.c2)
        if self.c2 > self.c1:
            raise ConfigurationError(
                f"c2 must be at most c1 = {self.c1}: the tail keeps more than the body. "
                f"Got c2 = {self.c2} instead."
            )
        choice("selection", self.selection, SELECTIONS)
        choice("rank_by", self.rank_by, SCORES)
        probability("tail_fraction", self.tail_fraction)
        self._check_threshold()

    def _check_threshold(self) -> None:
        if self.selection not in SCORES:
            if self.threshold is not None or self.tracker is not None:
                raise ConfigurationError(
                    f'threshold and tracker must be None for selection="{self.selection}", which '
                    f"has no threshold. Got {self.threshold!r}, {self.tracker!r} instead. Use "
                    'tail_fraction, or selection "norm".'
                )
        elif self.threshold is None and self.selection == "loss":
            raise ConfigurationError(
                'threshold must be given for selection="loss". Got None instead. Choose a loss '
                "above which a row counts as tail, for instance that of a uniform guess."
            )
        elif self.threshold is not None and not math.isfinite(self.threshold):
            raise ConfigurationError(f"threshold must be finite. Got {self.threshold!r} instead.")

    @classmethod
    def from_theorem(
        cls, theta: float, scale: float, steps: int, failure: float, **options: Any
    ) -> Discriminative:
        """Return a rule with paper 1's thresholds (Theorem 5.3) for subWeibull(theta, scale) noise.

        Where the theorem's constants put the body above the tail (theta in (1/2, 1] at small
        ``failure``), c2 is lowered to c1. The theorem's constants are large; in practice scale
        both by a common factor and keep their ratio.
        """
        tail, body = dc_dpsgd_thresholds(theta, scale, steps, failure)
        return cls(tail, min(body, tail), **options)

    # ------------------------------------------------------------------------- the protocol

    @property
    def score(self) -> str | None:
        """What membership looks at; None for coins."""
        if self.selection == "random":
            return None
        return self.rank_by if self.selection == "rank" else self.selection

    @property
    def needs(self) -> Need:  # type: ignore[override]
        """Norms and a weighted sum, and what the score looks at."""
        extra = {"loss": Need.LOSSES, "trace": Need.SKETCH}.get(self.score or "", Need.NORMS)
        return Need.NORMS | Need.WEIGHTED_SUM | extra

    @property
    def couples_rows(self) -> bool:  # type: ignore[override]
        """True if ranks or coins are taken over the whole batch."""
        return self.randomised

    @property
    def randomised(self) -> bool:  # type: ignore[override]
        """Coins and tie-breaking keys are attached to positions of the joined batch."""
        return self.selection in ("rank", "random")

    @property
    def releases_state(self) -> str:  # type: ignore[override]
        """The thresholds, if they follow a tracker."""
        return "" if self.tracker is None else THRESHOLDS

    def init(self, parameters: Tree, expected_size: float) -> State:
        """Return the first threshold, or the key of the coins."""
        state: State = {"step": 0, "expected_size": float(expected_size)}
        coordinates = sum(tensor.numel() for tensor in parameters.values())
        if self.score == "trace" and self.subspace.k > coordinates:
            raise ConfigurationError(
                f"k must be at most the number of trained coordinates, {coordinates}: there are no "
                f"more orthonormal directions. Got k = {self.subspace.k} instead."
            )
        if self.randomised:
            return state | draws.start(self.seed)
        defaults = {"norm": self.c1, "trace": self.subspace.k / coordinates}
        start = defaults[self.selection] if self.threshold is None else self.threshold
        state["threshold"] = self.tracker.start(start) if self.tracker else float(start)
        return state

    def with_key(self, state: State, key: bytes) -> State:
        """Return ``state`` with the coins drawn from the run's key."""
        return draws.keyed(state, self.seed, key) if self.randomised else state

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        """Return the weights: for "norm" at the first t, else their mean over coins of a tail."""
        tail, body = clip_weights(norms, self.c1), clip_weights(norms, self.c2)
        if self.selection == "norm":
            threshold = self.c1 if self.threshold is None else self.threshold
            return torch.where(norms > threshold, tail, body)
        return self.tail_fraction * tail + (1 - self.tail_fraction) * body

    def contributions(self, view: View, state: State) -> Sums:
        """Return the sum of the clipped rows, and the votes on the threshold."""
        norms = view.norms()
        scores = self._scores(view, norms, state)
        tail = self._tail(scores, view.size, state).to(norms.device)
        weights = torch.where(tail, clip_weights(norms, self.c1), clip_weights(norms, self.c2))
        sums: Sums = {"grad": view.weighted_sum(weights)}
        if self.tracker is not None and scores is not None:
            sums["count"] = self.tracker.count(scores, state["threshold"])
        return sums

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        """Return the sum with the sensitivity of the selection, and the votes."""
        sensitivity = self._sensitivity()
        if self.tracker is None:
            return {"grad": Bounded(sums["grad"], sensitivity)}
        return {
            "grad": Bounded(sums["grad"], sensitivity, share=1 - self.tracker.share),
            "count": self.tracker.part(sums["count"]),
        }

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        """Return the state of the next step, with the moved threshold."""
        following = draws.advance(state)
        if self.tracker is not None:
            following["threshold"] = self.tracker.following(
                state["threshold"], released.values["count"], state["expected_size"]
            )
        return released, following

    # ---------------------------------------------------------------------------- the parts

    def _scores(self, view: View, norms: Tensor, state: State) -> Tensor | None:
        if self.score == "norm":
            return norms
        if self.score == "loss":
            return view.losses()
        if self.score == "trace":
            return normalised_trace(view.sketch(self.subspace.directions(state["step"])), norms)
        return None

    def _tail(self, scores: Tensor | None, n: int, state: State) -> Tensor:
        """Return (n,) booleans: which rows are in the tail."""
        if scores is None:
            return draws.uniforms(state, n).lt(self.tail_fraction)
        if self.selection != "rank":
            return scores.gt(state["threshold"])
        size = round(self.tail_fraction * state["expected_size"])
        return top(scores, size, keys=draws.uniforms(state, n))

    def _sensitivity(self) -> Sensitivity:
        c1, c2, p = self.c1, self.c2, self.tail_fraction
        if self.selection == "rank":
            return Sensitivity(
                2 * c1 - c2, 2 * c1, "one record enters (c1) and pushes one row out (c1 - c2)"
            )
        if self.selection == "random":
            mixture = ((p, c1), (1 - p, c2))
            proof = "its own secret coin clips a record to c1 or to c2"
            return Sensitivity(c1, 2 * c1, proof, mixture)
        proof = "membership depends on row i and public values; |w_i g_i| <= c1"
        return Sensitivity.per_sample(c1, proof)


def normalised_trace(sketch: Tensor, norms: Tensor) -> Tensor:
    """Return tr(V^T g g^T V) / |g|^2 for each row, 0 at norm 0 (Algorithm 1, lines 7 and 8)."""
    unit = sketch.double() / norms.double().clamp_min(SHORTEST_ROW)[:, None]
    return torch.where(norms > 0, squares(unit), 0.0)


def top(scores: Tensor, size: int, keys: Tensor) -> Tensor:
    """Return (n,) booleans: the ``size`` rows with the largest scores, ties by the larger key."""
    by_key = torch.argsort(keys, descending=True)
    order = by_key[torch.argsort(scores[by_key], descending=True, stable=True)]
    chosen = torch.zeros(len(scores), dtype=torch.bool)
    chosen[order[:size]] = True
    return chosen


_SMALL = Subspace(k=4, refresh=2)
EXAMPLES = (
    Discriminative(1.0, 0.1),
    Discriminative(1.0, 0.1, threshold=0.5, tracker=QuantileTracker(target=0.9, share=0.05)),
    Discriminative(1.0, 0.5, selection="loss", threshold=2.3),
    Discriminative(1.0, 0.1, selection="trace", subspace=_SMALL),
    Discriminative(1.0, 0.1, selection="rank", rank_by="norm", tail_fraction=0.5, seed=0),
    Discriminative(2.0, 0.5, selection="rank", subspace=_SMALL, tail_fraction=0.3, seed=0),
    Discriminative(1.0, 0.1, selection="random", seed=0),
)
