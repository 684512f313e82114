"""Which settings mattered: from scores that were released, or that are of public rows.

A forest of trees learns the score from the settings; a setting's importance is the share of the
scores' spread that splits on it take away. With few trials this is a hint, no measurement. It is
post-processing of what it is given, so it costs nothing, and shows nothing that was not released.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winsor.core.contract import ConfigurationError

FEWEST = 4
"""Trials below which nothing can be said."""
_TREES = 200


def importance(trials: Sequence[tuple[Mapping[str, Any], float]]) -> dict[str, float]:
    """Shares that add up to 1, the largest first. Trials that gave up count as the worst.

    >>> trials = [({"lr": 2.0**k, "clip": c}, -abs(k - 3)) for k in range(8) for c in (0.1, 1.0)]
    >>> found = importance(trials)
    >>> list(found), found["lr"] > 0.9
    (['lr', 'clip'], True)
    """
    if len(trials) < FEWEST:
        raise ConfigurationError(
            f"importance must be asked of at least {FEWEST} trials. Got {len(trials)} instead."
        )
    from sklearn.ensemble import ExtraTreesRegressor

    names = list(trials[0][0])
    columns = np.column_stack(
        [_numbers([setting[name] for setting, _ in trials]) for name in names]
    )
    scores = np.array([score for _, score in trials], dtype=np.float64)
    finite = scores[np.isfinite(scores)]
    worst = float(finite.min()) if finite.size else 0.0
    scores = np.where(np.isfinite(scores), scores, worst)
    forest = ExtraTreesRegressor(_TREES, max_features=1.0, random_state=0).fit(columns, scores)
    shares = dict(zip(names, forest.feature_importances_.tolist(), strict=True))
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _numbers(values: Sequence[Any]) -> NDArray[np.float64]:
    """A column that trees can split: numbers as they are, others by their place among options."""
    if all(isinstance(v, int | float) and math.isfinite(v) for v in values):
        return np.array(values, dtype=np.float64)
    options = {text: place for place, text in enumerate(sorted({repr(v) for v in values}))}
    return np.array([options[repr(v)] for v in values], dtype=np.float64)
