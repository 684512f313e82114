"""From losses of rows to the view of what is bounded once: a person, or an image in several views.

    unit=         rows of one person are drawn together, and their gradients added or averaged
    group_size=   K losses per row, one after the other: augmented views of it, averaged
    augment=      in `fit`: makes these views, and asks the loss for each of them

Guarantee
---------
A unit's contribution is a function of the unit's own rows (and of public state), so a rule that
bounds the gradient of a row bounds that of a unit, and removing a person with all rows moves the
sum by at most as much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from winsor.core.contract import ConfigurationError, LossError
from winsor.gradients.ghost import GhostEngine
from winsor.gradients.units import Units, units_view
from winsor.gradients.view import Engine, View
from winsor.training.checks.trial_pass import Loss
from winsor.training.feeding.feed import Fragment


@dataclass(frozen=True)
class Grouping:
    """``views`` losses for each row; rows of a unit are averaged, or added up."""

    views: int = 1
    mean: bool = True

    def view(self, engine: Engine, losses: Tensor, fragment: Fragment) -> View:
        """Return the view whose rows are the units of the fragment."""
        sizes = fragment.unit_sizes or (1,) * fragment.size
        units, shares = _shared(sizes, self.views, self.mean, losses.dtype, losses.device)
        if isinstance(engine, GhostEngine):
            return units_view(engine.shared_view(losses, shares), units)
        return units_view(engine.view(losses * shares), units)

    def per_row(self, loss: Loss) -> Loss:
        """Compute one loss per row, the mean of its views: what must not depend on other rows."""

        def losses(model: nn.Module, batch: Any) -> Tensor:
            values = loss(model, batch)
            if values.ndim != 1 or len(values) % self.views:
                raise LossError(
                    f"losses must be a vector with {self.views} values for each row, one per view. "
                    f"Got shape {tuple(values.shape)} instead: keep the number of rows."
                )
            return values.unflatten(0, (-1, self.views)).mean(1)

        return losses


@lru_cache(maxsize=16)  # steps in which everybody brings as many rows are alike
def _shared(
    sizes: tuple[int, ...], views: int, mean: bool, dtype: torch.dtype, device: torch.device
) -> tuple[Units, Tensor]:
    """Return the units, and what the loss of each row is multiplied by."""
    units = Units(torch.tensor(sizes) * views)
    over = units.sizes if mean else torch.full_like(units.sizes, views)
    return units, units.spread(1 / over.to(dtype)).to(device)


@dataclass(frozen=True)
class Augmentations:
    """``count`` augmented views of every row: augmentation multiplicity.

    The average over a row's views is a function of the row (and of coins that look at no row), so
    it is bounded as one row is, and costs no privacy (De et al. 2022, arXiv 2204.13650).
    """

    augment: Callable[[Any], Any]
    """Takes a batch in which every row stands ``count`` times in succession, and returns it with
    every row changed by itself."""
    count: int

    def of(self, batch: Any) -> Any:
        """Make the views of the rows of ``batch``, those of a row one after the other."""
        return self.augment(tree_map(self._repeated, batch))

    def _repeated(self, leaf: Any) -> Tensor:
        if not isinstance(leaf, Tensor) or leaf.ndim == 0:
            raise ConfigurationError(
                "augment must be used with batches of tensors whose first axis counts rows. Got "
                f"{type(leaf).__name__} in the batch instead. Write the loop yourself, with "
                "group_size= in make_private."
            )
        return leaf.repeat_interleave(self.count, dim=0)

    def each(self, loss: Loss) -> Loss:
        """Compute ``count`` losses per row: what a training with this group size takes."""

        def losses(model: nn.Module, batch: Any) -> Tensor:
            return loss(model, self.of(batch))

        return losses


def augmentations_of(
    augment: Callable[[Any], Any] | None, count: int, group_size: int
) -> Augmentations | None:
    """Return the augmentations that `fit` was asked for, if any."""
    if augment is None:
        if count == 1:
            return None
        raise ConfigurationError(
            f"views must be given with augment. Got views={count!r} alone instead: views that do "
            "not differ cost time and change nothing."
        )
    if group_size != 1:
        raise ConfigurationError(
            f"augment must be used without group_size: views says it. Got group_size={group_size!r}"
            " as well. Leave it out."
        )
    return Augmentations(augment, count)
