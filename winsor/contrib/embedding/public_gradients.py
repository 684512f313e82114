"""Directions for `Embedding` from the gradients of public rows, followed along the run.

    B  =  the top k right singular vectors of the public per-row gradients at the released iterate

computed at the start and again every ``refresh`` steps.

Guarantee
---------
B depends on public rows and released iterates only, which is all that `Embedding` asks of it.

References
----------
Yu, Zhang, Chen, Liu: gradient embedding perturbation, ICLR 2021; ModelMix, section 5.3, takes 2,000
ImageNet rows as public data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from winsor.contrib.embedding.embedding import Basis, PublicBasis
from winsor.core.checks import whole
from winsor.core.contract import ConfigurationError, Tree


@dataclass(frozen=True, eq=False, repr=False)
class PublicGradients(Basis):
    """The top k directions of the gradients of public rows, at the model as it was released last.

    ``structure`` is a module of the same kind as the one that is trained, and not that one: the
    engine of the private run must not see passes over public rows. Its own weights are not used,
    but for those that are not trained. ``rows`` are (inputs, targets), one entry per row.
    ``loss(outputs, targets)`` gives the mean over rows: it is called with one row at a time.

    >>> import torch
    >>> basis = PublicGradients(nn.Linear(3, 2), (torch.eye(3), torch.tensor([0, 1, 1])), k=2)
    >>> basis.directions(dict(nn.Linear(3, 2).named_parameters())).shape
    torch.Size([2, 8])
    """

    structure: nn.Module
    rows: tuple[Tensor, Tensor]
    k: int
    refresh: int = 50
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    _parameters: Tree = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        whole("k", self.k)
        whole("refresh", self.refresh)
        inputs, targets = self.rows
        if len(inputs) != len(targets) or len(inputs) < self.k:
            raise ConfigurationError(
                f"rows must be as many inputs as targets, and at least k = {self.k}. Got "
                f"{len(inputs)} and {len(targets)} instead."
            )

    def __repr__(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for tensor in self.rows:
            digest.update(tensor.contiguous().numpy().tobytes())
        count = len(self.rows[1])
        return (
            f"PublicGradients(rows={count}, content={digest.hexdigest()}, k={self.k}, "
            f"refresh={self.refresh})"
        )

    def directions(self, parameters: Tree) -> Tensor:
        """Return the top directions at ``parameters``, which the basis then follows."""
        self._parameters.clear()
        self._parameters.update(parameters)  # the run's own tensors: they move with it
        return self._top(parameters)

    def refreshed(self, step: int) -> Tensor | None:
        """Return fresh directions every ``refresh`` steps, None at others."""
        return self._top(self._parameters) if step % self.refresh == 0 else None

    def _top(self, parameters: Tree) -> Tensor:
        def loss(weights: Tree, x: Tensor, y: Tensor) -> Tensor:
            outputs = functional_call(self.structure, weights, (x[None],))
            return self.loss(outputs, y[None])

        weights = {name: tensor.detach() for name, tensor in parameters.items()}
        gradients = vmap(grad(loss), in_dims=(None, 0, 0))(weights, *self.rows)
        return PublicBasis.of_gradients(gradients, self.k).directions(weights)
