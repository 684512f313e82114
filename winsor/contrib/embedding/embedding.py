"""Gradient embedding (GEP): clip a public low-dimensional part and the residual by themselves.

    a_i = B g_i,   r_i = g_i - B^T a_i        (B: k public orthonormal directions)
    a_i <- min(1, C_e / |a_i|) a_i,           r_i <- min(1, C_r / |r_i|) r_i
    grad = B^T (sum_i a_i + noise_e) + (I - B^T B) (sum_i r_i + noise_r)

Yu et al. 2021; ModelMix, section 5.3, uses it with C_e = 5 and C_r = 2.

When to use
-----------
When public data span the directions in which private gradients are large. The k coefficients of
the embedded part then carry most of the signal and little of the noise, and the residual, which
has all of the dimensions, can be clipped short. ``joint=False`` releases both together under one
noise and one bound sqrt(C_e^2 + C_r^2); that is the form ModelMix can mix, and ``p`` adds its
coordinate bound.

Cost
----
Per-sample gradients are materialised in chunks, and projected: 4 k flops per coordinate and row.
The basis takes k times the memory of the model.

Guarantee
---------
Both clippings depend on row i and the public B only. Embedded coefficients move by at most C_e and
the residual by at most C_r: one joint Gaussian release, whose noise the shares split. The last
line is post-processing; taking the residual's noise out of the embedded subspace costs nothing.
With ``joint=False`` the two clipped parts are added, clipped once more to sqrt(C_e^2 + C_r^2)
(they are orthogonal, so this only guards against rounding) and cut to that over sqrt(p).
The basis may change between steps if it is computed from public data and released iterates.

References
----------
Yu, Zhang, Chen, Liu: Do not let privacy overbill utility: gradient embedding perturbation for
private learning, ICLR 2021. Their code finds the basis anew at every step, by power iteration on
public gradients, in groups of layers, and leaves the residual's noise in the subspace.
Xiao, Xiang, Wang, Devadas: ModelMix, 2022, section 5.3.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from winsor.core.checks import positive, probability, whole
from winsor.core.contract import Bounded, ConfigurationError, Released, Sensitivity, Tree
from winsor.gradients.arithmetic import squares, wide
from winsor.gradients.view import Need, View
from winsor.rules.rule import Rule, State, Sums, clip_weights


class Basis(ABC):
    """Source of the public directions. Its text must tell one basis from another."""

    @abstractmethod
    def directions(self, parameters: Tree) -> Tensor:
        """Return (k, d) orthonormal rows, in the order of ``parameters``."""

    def refreshed(self, step: int) -> Tensor | None:
        """The directions from ``step`` on, out of public data and released iterates only; None
        keeps the last."""
        return None


@dataclass(frozen=True)
class RandomBasis(Basis):
    """k directions drawn uniformly: what an embedding without public knowledge would be."""

    k: int
    seed: int = 0

    def directions(self, parameters: Tree) -> Tensor:
        """Return (k, d) orthonormal rows, drawn uniformly from ``seed``."""
        d = sum(tensor.numel() for tensor in parameters.values())
        generator = torch.Generator().manual_seed(self.seed)
        draws = torch.randn(d, min(self.k, d), generator=generator, dtype=torch.float64)
        return _orthonormal(draws).float()


@dataclass(frozen=True, eq=False)
class PublicBasis(Basis):
    """Given directions: the rows of ``vectors`` (k, d), made orthonormal."""

    vectors: Tensor = field(repr=False)

    @classmethod
    def of_gradients(cls, gradients: Tensor | Mapping[str, Tensor], k: int) -> PublicBasis:
        """Return the top k directions of public gradients: (m, d), or {name: (m, *shape)}."""
        rows = gradients if isinstance(gradients, Tensor) else _flat(gradients)
        if not 1 <= k <= min(rows.shape):
            raise ConfigurationError(
                f"k must be from 1 to the smaller of {tuple(rows.shape)}, the shape of the public "
                f"gradients. Got {k!r} instead. Use more public rows, or fewer directions."
            )
        return cls(torch.linalg.svd(rows.double(), full_matrices=False)[2][:k].float())

    def __repr__(self) -> str:
        digest = hashlib.blake2b(self.vectors.numpy().tobytes(), digest_size=8).hexdigest()
        return f"PublicBasis(k={len(self.vectors)}, vectors={digest})"

    def directions(self, parameters: Tree) -> Tensor:
        """Return the given vectors, made orthonormal."""
        d = sum(tensor.numel() for tensor in parameters.values())
        if self.vectors.dim() != 2 or self.vectors.shape[1] != d:
            raise ConfigurationError(
                f"vectors must be (k, {d}): one column per trained coordinate. Got "
                f"{tuple(self.vectors.shape)} instead."
            )
        return _orthonormal(self.vectors.double().T).float()


@dataclass(frozen=True)
class Embedding(Rule):
    """Clip the part along ``basis`` to ``c_embedded`` and the rest to ``c_residual``.

    ``embedded_share`` is the embedded part's share of the privacy of a joint release; ``p`` is the
    coordinate bound of ``joint=False``.
    """

    c_embedded: float
    c_residual: float
    basis: Basis
    joint: bool = True
    embedded_share: float = 0.5
    p: int = 1

    needs = Need.ROWS

    def __post_init__(self) -> None:
        positive("c_embedded", self.c_embedded)
        positive("c_residual", self.c_residual)
        if not isinstance(self.basis, Basis):
            raise ConfigurationError(
                "basis must be a PublicBasis or RandomBasis. Got "
                f"{type(self.basis).__name__} instead. Wrap a tensor: PublicBasis(vectors)."
            )
        probability("embedded_share", self.embedded_share)
        if whole("p", self.p) != 1 and self.joint:
            raise ConfigurationError(
                "p must be a whole number, and 1 for a joint release, whose coordinates are "
                f"not those of the gradient. Got {self.p!r} instead. Use joint=False."
            )

    @property
    def max_grad_norm(self) -> float:
        """The bound on both parts together."""
        return math.hypot(self.c_embedded, self.c_residual)

    def init(self, parameters: Tree, expected_size: float) -> State:
        """Return the first directions."""
        return {"basis": self.basis.directions(parameters), "step": 0}

    def contributions(self, view: View, state: State) -> Sums:
        """Return the sums of both clipped parts: together, or one by one."""
        basis = state["basis"]
        if not self.joint:
            return {"grad": view.map_sum(lambda rows: self._together(rows, basis))}
        coefficients = torch.zeros(len(basis), dtype=torch.float64)

        def residuals(rows: dict[str, Tensor]) -> dict[str, Tensor]:
            embedded, residual = self._clipped(_flat(rows), basis)
            coefficients.add_(embedded.sum(0))
            return _shaped(residual, rows)

        residual = view.map_sum(residuals)  # calls its argument once per chunk of rows
        return {"embedded": coefficients, "residual": residual}

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        """Return one part of shift C, or the two parts of a joint release."""
        if not self.joint:
            proof = "both clippings depend on row i and public directions only; |v_i| <= C"
            return {
                "grad": Bounded(
                    sums["grad"],
                    Sensitivity.per_sample(self.max_grad_norm, proof),
                    coordinate_bound=None if self.p == 1 else self._coordinate_bound,
                )
            }
        proof = "clipping depends on row i and public directions only; the part is at most C_{}"
        embedded = Sensitivity.per_sample(self.c_embedded, proof.format("e"))
        residual = Sensitivity.per_sample(self.c_residual, proof.format("r"))
        return {
            "embedded": Bounded(sums["embedded"], embedded, self.embedded_share),
            "residual": Bounded(sums["residual"], residual, 1 - self.embedded_share),
        }

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        """Put both parts together; take fresh directions when they are due."""
        step = state["step"] + 1
        fresh = self.basis.refreshed(step)
        new = {"basis": state["basis"] if fresh is None else fresh, "step": step}
        if not self.joint:
            return released, new
        tree = released.values["residual"]
        residual = _flat(_with_row(tree))[0].double()
        basis = state["basis"].to(residual)
        grad = residual + (released.values["embedded"] - basis @ residual) @ basis
        shaped = _shaped(grad[None], _with_row(tree))
        return released.with_grad({k: leaf[0].to(tree[k]) for k, leaf in shaped.items()}), new

    # ------------------------------------------------------------------------------ one chunk

    @property
    def _coordinate_bound(self) -> float:
        return self.max_grad_norm / math.sqrt(self.p)

    def _clipped(self, rows: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
        """(m, d) rows -> clipped coefficients (m, k) and clipped residuals (m, d), in float64.

        Both parts are rows of their own, whatever rounding made of them: their norms are those of
        the very numbers that are summed. Projected twice, because one projection of a row that
        nearly lies in the subspace leaves rounding errors of its own size.
        """
        rows = wide(rows)
        basis = basis.to(rows)
        coefficients = rows @ basis.T
        residual = rows - coefficients @ basis
        residual -= (residual @ basis.T) @ basis
        return _clip(coefficients, self.c_embedded), _clip(residual, self.c_residual)

    def _together(self, rows: dict[str, Tensor], basis: Tensor) -> dict[str, Tensor]:
        embedded, residual = self._clipped(_flat(rows), basis)
        sums = _clip(residual + embedded @ basis.to(residual), self.max_grad_norm)
        if self.p > 1:
            bound = self._coordinate_bound * float(clip_weights(sums.new_ones(1), 1.0))  # its slack
            sums.clamp_(-bound, bound)
        return _shaped(sums, rows)


def _clip(rows: Tensor, bound: float) -> Tensor:
    """(m, d) float64 rows, each cut to ``bound``; a row that is not finite is zero."""
    rows = wide(rows)
    square = squares(rows)
    kept = square.isfinite()
    weights = clip_weights(torch.where(kept, square, 0.0).sqrt(), bound)
    return torch.where(kept[:, None], rows, 0.0) * weights[:, None]


def _flat(rows: Mapping[str, Tensor]) -> Tensor:
    """{name: (m, *shape)} -> (m, d)."""
    return torch.cat([tensor.unsqueeze(-1).flatten(1) for tensor in rows.values()], dim=1)


def _shaped(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """(m, d) -> {name: (m, *shape)}, in the shapes of ``like``."""
    shaped, start = {}, 0
    for name, tensor in like.items():
        size = math.prod(tensor.shape[1:])
        shaped[name] = flat[:, start : start + size].reshape(-1, *tensor.shape[1:])
        start += size
    return shaped


def _with_row(tree: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.unsqueeze(0) for name, tensor in tree.items()}


def _orthonormal(columns: Tensor) -> Tensor:
    """(d, k) float64 -> (k, d) with orthonormal rows that span the same."""
    q, r = torch.linalg.qr(columns)
    diagonal = r.diagonal().abs()
    if columns.shape[1] > columns.shape[0] or not bool((diagonal > 1e-9 * diagonal.max()).all()):
        raise ConfigurationError(
            "the directions of a basis must be linearly independent and finite. Got "
            f"{columns.shape[1]} in {columns.shape[0]} dimensions instead, of which some depend "
            "on others. Use fewer."
        )
    return torch.as_tensor(q.T).contiguous()


EXAMPLES = (
    Embedding(1.0, 0.5, RandomBasis(2)),
    Embedding(0.5, 3.0, RandomBasis(4, seed=1), embedded_share=0.8),
    Embedding(2.0, 0.5, RandomBasis(3), joint=False, p=4),
)
