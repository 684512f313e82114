"""Synthetic rows with heavy tails, for trying a configuration without any data.

Features are Student t with ``degrees`` degrees of freedom: moments of order ``degrees`` and above
are infinite, so gradients are heavy-tailed too. Token sequences follow a random sparse Markov
chain, which a small language model can learn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import positive

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


def classification(
    classes: int,
    seed: int,
    *,
    rows: int = 2000,
    features: int = 20,
    degrees: float = 3.0,
) -> tuple[Floats, Integers]:
    """The class is the largest of ``classes`` linear scores plus Gumbel noise."""
    _check(rows=rows, features=features, degrees=degrees)
    generator = np.random.default_rng(seed)
    x = generator.standard_t(degrees, size=(rows, features))
    scores = x @ generator.standard_normal((features, classes))
    y = np.argmax(scores + generator.gumbel(size=scores.shape), axis=1)
    return x.astype(np.float32), y.astype(np.int64)


def regression(
    seed: int, *, rows: int = 2000, features: int = 20, degrees: float = 3.0
) -> tuple[Floats, Floats]:
    """Linear in the features, with Student t noise."""
    _check(rows=rows, features=features, degrees=degrees)
    generator = np.random.default_rng(seed)
    x = generator.standard_t(degrees, size=(rows, features))
    weights = generator.standard_normal(features) / np.sqrt(features)
    y = x @ weights + 0.5 * generator.standard_t(degrees, size=rows)
    return x.astype(np.float32), y.astype(np.float32)


def tokens(
    vocabulary: int, seed: int, *, rows: int = 1000, length: int = 17, branches: int = 3
) -> Integers:
    """Sequences in which each token has only ``branches`` possible successors."""
    _check(rows=rows, length=length, branches=branches)
    generator = np.random.default_rng(seed)
    successors = generator.integers(vocabulary, size=(vocabulary, branches))
    sequences = np.empty((rows, length), dtype=np.int64)
    sequences[:, 0] = generator.integers(vocabulary, size=rows)
    for t in range(1, length):
        choice = generator.integers(branches, size=rows)
        sequences[:, t] = successors[sequences[:, t - 1], choice]
    return sequences


def _check(**values: float) -> None:
    for name, value in values.items():
        positive(f"data.options.{name}", value)
