"""The per-row sizes that a monitor counts: gradient norms, or what the rule clips by instead.

Value clipping never forms a per-sample gradient, so there are no norms to read; it weighs each row
by a certified bound on its norm, and that bound is counted. Either is a function of its own row
and of public weights, which is all that a monitor's sensitivity rests on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from winsor.core.contract import ConfigurationError
from winsor.gradients.view import View
from winsor.rules.rule import Rule, State, clip_weights


def row_sizes(rule: Rule, view: View, state: State) -> Tensor:
    """(n,) sizes of the rows in this view. Private."""
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
    """What weights do to ``counts`` rows of each of the sizes."""
    total, squares = float(counts.sum()), float((counts * weights**2).sum())
    return (
        float(counts[weights < 0.999].sum()) / total,
        float((counts * (1 - weights) * sizes).sum()) / total,
        float((counts * weights).sum()) ** 2 / squares if squares > 0 else 0.0,
    )


def weight_of_size(rule: Rule) -> Callable[[Tensor], Tensor] | None:
    """The weight that the rule, at its first threshold, gives a row of a size; None if unknown."""
    weigh: Callable[[Tensor], Tensor] | None = getattr(rule, "weight_of_norm", None)
    threshold = getattr(rule, "max_grad_norm", None)
    if weigh is None and hasattr(rule, "bounds") and threshold is not None:
        return partial(clip_weights, threshold=threshold)
    return weigh
