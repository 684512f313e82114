"""Clip after a low-rank map that released gradients have drawn: across coordinates, not along them.

    h_i = clip(M_t g_i, C),                 M_t = (I - U U') / b_0 + U diag(1 / b) U'
    grad = M_t^-1 (sum_i h_i + N(0, (nm C)^2 I))
    b_j / b_0 = ((s_j + n) / (s_0 + n))^(power / 4),     from 1 to ``widest``
    (d - k) b_0^2 + sum_j b_j^2 = d

U (d x k) spans the top k directions of a running second moment of grad / B, over all parameters
together. s_j is its eigenvalue less what noise alone can make of it, s_0 the mean of what is left
per direction, and n the noise that flat clipping would have there. Along U_j the noise has variance
b_j^2 (nm C)^2, elsewhere b_0^2 (nm C)^2: all in all, that of flat clipping at C. Rows along the
directions in which gradients use to be long are cut less, and all others have less noise.
``power`` 1: least noise for given lengths of rows (GeoClip); 0: flat clipping.

When to use
-----------
When released gradients stay near a few directions for long, which need not be coordinates (that is
`Scaled`), and stand out of the noise there. While they do not, the map is the identity. Long rows
that point elsewhere are cut more than by flat clipping.

Cost
----
Per-sample gradients are formed in chunks and projected: 4 k flops per coordinate and row. U takes
k times the memory of the model; an update of it is the SVD of a matrix of d x (k + 1).

Guarantee
---------
U and b are made of released gradients and public constants, so h_i depends on row i and public
values, and |h_i| <= C, measured on the mapped row itself: it holds for any U. So one record moves
the sum by at most C when it joins or leaves, by 2C when it is replaced. The inverse map comes after
the noise. A row that is not finite contributes nothing.

References
----------
Gilani, Tasnim, Sankar, Kosut: GeoClip: geometry-aware clipping for differentially private SGD,
NeurIPS 2025 (its low-rank form). There eigenvalues are those of noisy gradients around a released
mean, which is taken from rows too; here the noise is taken out, and rows are not centred.
Brand: Incremental singular value decomposition of uncertain data, ECCV 2002 (the update of U).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from winsor.core.checks import at_least, positive, probability, whole
from winsor.core.contract import Released, Tree
from winsor.gradients.view import Need, View
from winsor.rules.rule import RowwiseRule, State, Sums, clip_weights


@dataclass(frozen=True)
class Geometric(RowwiseRule):
    """Clip to ``max_grad_norm`` in the units of a map of ``rank`` from released gradients.

    ``rate`` is that of the running means, ``widest`` bounds the factors from both sides.
    """

    max_grad_norm: float
    rank: int = 4
    power: float = 1.0
    rate: float = 0.05
    widest: float = 10.0

    needs = Need.ROWS
    proof = "clip(M g_i) depends on row i and the released M only; its norm is at most C"

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)
        whole("rank", self.rank)
        at_least("power", self.power, 0)
        probability("rate", self.rate)
        at_least("widest", self.widest, 1)

    def init(self, parameters: Tree, expected_size: float) -> State:
        like = next(iter(parameters.values()))
        d = sum(p.numel() for p in parameters.values())
        k = min(self.rank, d - 1)  # something must be left to be measured against
        return {
            "basis": torch.eye(d, k, device=like.device),
            "factors": torch.ones(k + 1, dtype=torch.float64),  # those of the basis, then the rest
            "moments": torch.zeros(k, dtype=torch.float64),
            "noise": torch.zeros(k + 1, dtype=torch.float64),  # its share of second moments
            "trace": 0.0,  # of the second moment less its noise
            "floor": 0.0,  # a direction's noise under flat clipping
            "expected_size": float(expected_size),
        }

    def clipped_norm(self, state: State) -> float:
        return self.max_grad_norm

    def contributions(self, view: View, state: State) -> Sums:
        def mapped(rows: dict[str, Tensor]) -> dict[str, Tensor]:
            # float64: neither squares nor products of huge coordinates may overflow
            inside = _mapped(_flat(rows).double(), state["basis"], 1 / state["factors"])
            lengths = torch.linalg.vector_norm(inside, dim=1)
            inside *= clip_weights(lengths, self.max_grad_norm)[:, None]
            return _shaped(inside, rows)

        return {"grad": view.map_sum(mapped)}

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        sums, factors = released.values["grad"], state["factors"]
        with_row = {name: noisy.unsqueeze(0) for name, noisy in sums.items()}
        flat = _mapped(_flat(with_row).double(), state["basis"], factors)
        grad = {name: total[0] for name, total in _shaped(flat, with_row).items()}
        size = state["expected_size"]
        return released.with_grad(grad), self._learnt(
            flat[0] / size, released.std["grad"] / size, state
        )

    def _learnt(self, mean: Tensor, std: float, state: State) -> State:
        """The state after one more released gradient, whose noise was ``std`` times the factors."""
        rate, old, (d, k) = self.rate, state["basis"].to(mean), state["basis"].shape
        kept = old * ((1 - rate) * state["moments"]).sqrt().to(mean)
        both = torch.cat([kept, rate**0.5 * mean[:, None]], dim=1)  # (d, k + 1)
        vectors, values, _ = torch.linalg.svd(both, full_matrices=False)
        basis, moments = vectors[:, :k], values[:k].square().cpu()

        turned = (old.T @ basis).square().cpu()  # signs of singular vectors do not matter
        added = (1 - rate) * state["noise"] + rate * (std * state["factors"]).square()
        noise = torch.cat([added[k] + (added[:k] - added[k]) @ turned, added[k:]])
        # Chevet: noise alone has no larger singular value than that, but for chance
        by_chance = (noise[:k].clamp_min(0).sqrt() + std * (rate * d) ** 0.5).square()
        signal = (moments - by_chance).clamp_min(0)
        trace = state["trace"] + rate * (float(mean.square().sum()) - d * std**2 - state["trace"])
        floor = state["floor"] + rate * (std**2 - state["floor"])
        rest = max(trace - float(signal.sum()), 0.0) / max(d - k, 1)
        return {
            **state,
            "basis": basis.to(state["basis"].dtype).contiguous(),
            "factors": self._factors(signal + floor, rest + floor, d),
            "moments": moments,
            "noise": noise,
            "trace": trace,
            "floor": floor,
        }

    def _factors(self, along: Tensor, rest: float, d: int) -> Tensor:
        """(k + 1,) of mean square 1 over all d directions, the last one for all but k."""
        longest = float(along.max()) if len(along) else 0.0
        if not longest > 0:  # nothing has been seen
            return torch.ones(len(along) + 1, dtype=torch.float64)
        # a rest below 1e-30 of the longest is beyond any bound on factors
        ratios = along / max(rest, 1e-30 * longest)
        raw = ratios.pow(self.power / 4).clamp(1.0, self.widest)
        least = (d / (d - len(raw) + float(raw.square().sum()))) ** 0.5
        return torch.cat([least * raw, raw.new_tensor([least])])


def _mapped(flat: Tensor, basis: Tensor, factors: Tensor) -> Tensor:
    """(m, d) rows times factors[:k] along the columns of ``basis``, factors[k] elsewhere."""
    basis, factors = basis.to(flat), factors.to(flat)
    rest = factors[-1]
    return flat * rest + (flat @ basis * (factors[:-1] - rest)) @ basis.T


def _flat(rows: Tree) -> Tensor:
    """{name: (m, *shape)} -> (m, d)."""
    return torch.cat([row.unsqueeze(-1).flatten(1) for row in rows.values()], dim=1)


def _shaped(flat: Tensor, like: Tree) -> dict[str, Tensor]:
    """(m, d) -> {name: (m, *shape)}, in the shapes and types of ``like``."""
    parts = flat.split([row.shape[1:].numel() for row in like.values()], dim=1)
    return {
        name: part.reshape(row.shape).to(row.dtype)
        for part, (name, row) in zip(parts, like.items(), strict=True)
    }


EXAMPLES = (Geometric(1.0), Geometric(0.2, rank=2, power=2.0, rate=0.5, widest=3.0))
