"""From losses of rows to the view of what is bounded once: a person, or an image in several views.

    unit=         rows of one person are drawn together, and their gradients added or averaged
    group_size=   K losses per row, one after the other: augmented views of it, averaged

Guarantee
---------
A unit's contribution is a function of the unit's own rows (and of public state), so a rule that
bounds the gradient of a row bounds that of a unit, and removing a person with all rows moves the
sum by at most as much.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from winsor.grads.units import Units, units_view
from winsor.grads.view import Engine, View
from winsor.sampling.feed import Fragment


@dataclass(frozen=True)
class Grouping:
    """``views`` losses for each row; rows of a unit are averaged, or added up."""

    views: int = 1
    mean: bool = True

    def view(self, engine: Engine, losses: Tensor, fragment: Fragment) -> View:
        """The view whose rows are the units of the fragment."""
        sizes = torch.tensor(fragment.unit_sizes or [1] * fragment.size)
        units = Units(sizes * self.views)
        over = units.sizes if self.mean else torch.full_like(units.sizes, self.views)
        shares = units.spread(1 / over.to(losses.dtype)).to(losses.device)
        return units_view(engine.view(losses * shares), units)
