"""Microbatches: average a few rows, clip each average, add up. Between flat clipping and AClip.

    release  b sum_j clip( (1/b) sum_{i in microbatch j} g_i, C ) + noise,    b the nominal size

b = 1 is flat clipping; one microbatch of the whole batch is AClip. What it costs depends on how
rows find their microbatch:

    =============  ======================================================  ================
    assignment     rows are put together by                                shift (units bC)
    =============  ======================================================  ================
    (b = 1)        -                                                       1
    "bins"         each row draws one of a fixed number of bins            2
    "permutation"  chunks of b of a random permutation of the batch        4
    "order"        chunks of b in the order of the loader                  refused
    =============  ======================================================  ================

When to use
-----------
Rarely. It softens the clipping bias of heavy-tailed rows (averages are lighter-tailed), at a
certified shift of 2bC instead of C; the noise grows faster than the bias shrinks unless b is small.

Cost
----
That of `Flat`: the norm of a microbatch's sum comes from Gram matrices, as if its rows were places
of one row, and one weighted sum follows. Where a layer does not allow that (convolutions, sparse
embeddings) one gradient per microbatch is formed, measured and added. Fragments are joined.

Guarantee
---------
bins: a record touches one bin, whose clipped value lies in a ball of radius bC: 2bC. The other
bins do not notice. The number of bins is fixed in advance. Replaced records inherit the draw: 2bC.
permutation: build the permutation by inserting rows one by one, each at a random slot whose
occupant moves to the end. The last row inserted changes two microbatches: its slot's and the last
one's, 2bC each. A replaced record keeps its slot: 2bC. Any record may be thought of as last
(`draws.py`).
In floating point: rows that cancel leave a short sum and rounding as large as they are. So a
microbatch is also held to `CANCELLING` radii of its rows' lengths added up; shorter than clipped is
still inside the ball.
order: taking one record away moves all later rows to another place, and every later chunk may
flip: the shift grows with the number of chunks, so no bound can be given.

References
----------
docs/privacy.md, "Rules, one by one". A size of at least q n recovers Jin et al. 2023
(`averaged.py`). The ``num_microbatches`` of TensorFlow Privacy makes chunks in order, the
assignment refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from winsor.rules.members import norms_of_sums, sum_of

from winsor.core.checks import choice, positive, whole
from winsor.core.contract import Bounded, ConfigurationError, Released, Sensitivity, Tree
from winsor.gradients.view import Need, View
from winsor.rules import draws
from winsor.rules.averaged import clip_to_ball
from winsor.rules.rule import Rule, State, Sums, clip_weights

CANCELLING = 64.0
"""How much longer the rows of a microbatch may be, added up, than the radius it is clipped to. What
their weighted sum rounds away is then what 64 clipped rows round away in any rule."""

SHIFTS = {
    "bins": (2.0, 2.0, "a record touches one bin; each clipped bin lies in a ball of radius bC"),
    "permutation": (4.0, 2.0, "coupling: the last row takes the record's slot, two chunks change"),
}
"""assignment -> (add/remove, replace) in units of bC, and why."""


@dataclass(frozen=True)
class Microbatch(Rule):
    """Clip the mean of each microbatch of about ``size`` rows to ``max_mean_norm``."""

    max_mean_norm: float
    size: int = 4
    assignment: str = "bins"
    seed: int | None = None

    needs = Need.LOSSES | Need.NORMS | Need.WEIGHTED_SUM
    couples_rows = True
    randomised = True

    def __post_init__(self) -> None:
        positive("max_mean_norm", self.max_mean_norm)
        whole("size", self.size)
        if self.assignment == "order":
            raise ConfigurationError(
                'assignment must not be "order": without one record all later rows change their '
                'microbatch, so no sensitivity can be certified. Use "bins" (shift 2bC) instead.'
            )
        choice("assignment", self.assignment, sorted(SHIFTS))

    def init(self, parameters: Tree, expected_size: float) -> State:
        bins = max(1, round(expected_size / self.size))
        nominal = self.size if self.assignment == "permutation" else expected_size / bins
        if self.size == 1:
            nominal = 1.0
        return {**draws.start(self.seed), "bins": bins, "nominal": float(nominal)}

    def with_key(self, state: State, key: bytes) -> State:
        return draws.keyed(state, self.seed, key)

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        """Of a microbatch mean, as a function of its norm."""
        return clip_weights(norms, self.max_mean_norm)

    def contributions(self, view: View, state: State) -> Sums:
        if self.size == 1:
            return {"grad": view.weighted_sum(clip_weights(view.norms(), self.max_mean_norm))}
        radius = self.max_mean_norm * state["nominal"]
        groups = list(self._microbatches(view.size, state))
        norms = norms_of_sums(view, groups)
        if norms is not None:
            weights = _clipped_by(norms, groups, view.norms(), radius)
            return {"grad": view.weighted_sum(weights, last=True)}
        total = view.weighted_sum(torch.zeros_like(view.losses()))
        for members in groups:
            clipped = clip_to_ball(sum_of(view, members), radius)
            torch._foreach_add_(list(total.values()), [clipped[name] for name in total])
        return {"grad": total}

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        unit = self.max_mean_norm * state["nominal"]
        if self.size == 1:
            sensitivity = Sensitivity.per_sample(unit, "one row per microbatch: flat clipping")
        else:
            added, replaced, proof = SHIFTS[self.assignment]
            sensitivity = Sensitivity(added * unit, replaced * unit, proof)
        return {"grad": Bounded(sums["grad"], sensitivity)}

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        return released, draws.advance(state)

    def _microbatches(self, n: int, state: State) -> Iterator[Tensor]:
        uniforms = draws.uniforms(state, n)
        if self.assignment == "permutation":
            yield from torch.split(inserted_permutation(uniforms), self.size)
            return
        bins = (uniforms * state["bins"]).long()
        for bin in bins.unique():
            yield (bins == bin).nonzero()[:, 0]


def _clipped_by(norms: Tensor, groups: Sequence[Tensor], rows: Tensor, radius: float) -> Tensor:
    """(n,) the weight of each row's microbatch."""
    lengths = torch.stack([rows[members].sum() for members in groups])
    weights = clip_weights(torch.maximum(norms, lengths / CANCELLING), radius)
    each = torch.empty_like(rows)
    for weight, members in zip(weights.unbind(), groups, strict=True):
        each[members] = weight
    return each


def inserted_permutation(uniforms: Tensor) -> Tensor:
    """A uniform permutation of n rows, built so that row n - 1 disturbs two slots only.

    Row i is put at a uniform slot among the first i + 1; the row that was there moves to slot i.
    """
    order: list[int] = []
    for row, u in enumerate(uniforms.tolist()):
        slot = int(u * (row + 1))
        order.append(row)
        order[slot], order[row] = row, order[slot]
    return torch.tensor(order, dtype=torch.long)


EXAMPLES = (
    Microbatch(1.0, size=1, seed=0),
    Microbatch(1.0, size=4, seed=0),
    Microbatch(0.5, size=2, assignment="permutation", seed=0),
)
