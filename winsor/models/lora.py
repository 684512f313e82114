"""Low-rank adaptation: freeze a trained model and train a thin correction of its linear layers.

    y = W x + b + (scale / rank) U D x          D: rank x inputs, random; U: outputs x rank, zero

At the start nothing changes, because U = 0. Only D and U are trained, so that noise is added to
their few coordinates only.

Guarantee
---------
None of its own: W and b must not depend on the private rows (here they come from public text).

References
----------
Hu et al.: LoRA: low-rank adaptation of large language models, ICLR 2022.
"""

from __future__ import annotations

from torch import Tensor, nn


class LowRank(nn.Module):
    """A frozen linear layer and its trainable correction."""

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.normal_(self.down.weight, std=base.in_features**-0.5)
        nn.init.zeros_(self.up.weight)
        self.factor = scale / rank

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.factor * self.up(self.down(x))
        return out


def low_rank(model: nn.Module, rank: int = 4, scale: float = 8.0) -> nn.Module:
    """Freeze ``model`` and put a correction beside each of its linear layers, in place."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and not isinstance(parent, LowRank):
                setattr(parent, name, LowRank(child, rank, scale))
    return model
