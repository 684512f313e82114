"""Low-rank adaptation: freeze a trained model and train a thin correction of its linear layers.

    y = W x + b + (scale / rank) U D x          D: rank x inputs, random; U: outputs x rank, zero

At the start nothing changes, because U = 0. Only D and U are trained, so that noise is added to
their few coordinates only.

Guarantee
---------
None of its own: W and b must not depend on the private rows; they come from public training.

References
----------
Hu et al.: LoRA: low-rank adaptation of large language models, ICLR 2022.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from winsor.core.checks import positive, whole
from winsor.core.contract import ConfigurationError


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
        """Return the frozen layer's output plus the correction."""
        out: Tensor = self.base(x) + self.factor * self.up(self.down(x))
        return out


def low_rank(
    model: nn.Module, rank: int = 4, scale: float = 8.0, train: Sequence[str] = ()
) -> nn.Module:
    """Freeze ``model`` and put a correction beside each of its linear layers, in place.

    ``train`` names modules that stay as they are and are trained whole: a new head, for instance.

    >>> model = low_rank(nn.Sequential(nn.Linear(50, 20), nn.ReLU(), nn.Linear(20, 3)), rank=2)
    >>> sum(p.numel() for p in model.parameters() if p.requires_grad)
    186
    """
    whole("rank", rank)
    positive("scale", scale)
    kept = _named(model, train)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            done = child in kept or isinstance(parent, LowRank)
            if isinstance(child, nn.Linear) and not done:
                setattr(parent, name, LowRank(child, rank, scale))
    for module in kept:
        module.requires_grad_(True)
    return model


def _named(model: nn.Module, names: Sequence[str]) -> set[nn.Module]:
    """The modules called ``names``, with all that is inside them."""
    known = dict(model.named_modules())
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(
            f"train must name modules of the model. Got {unknown} instead; it has "
            f"{', '.join(name for name in known if name)}."
        )
    return {inside for name in names for inside in known[name].modules()}
