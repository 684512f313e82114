"""Cross-entropy with logits adjusted by the class profile: rare classes are not voted down.

    loss of row (x, y) = cross-entropy of z(x) + tau log(prior) at y;   prior_j = n_j / sum n
    prediction         = argmax z(x), without the shift

Training sees the imbalance as a known offset, so that the free logits z learn what is left: the
classifier for balanced classes. Nothing is weighted, so no row's gradient grows.

Guarantee
---------
A row's loss depends on the row and the profile alone. The profile is public, or it is released:
`released_counts` pays for one noisy histogram, whose ledger `winsor.total` adds to the training's.

References
----------
Menon, Jayasumana, Rawat, Jain, Veit, Kumar: Long-tail learning via logit adjustment, ICLR 2021.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional as F

from winsor.core.checks import as_delta, as_relation, refusal, whole
from winsor.core.contract import ConfigurationError, Guarantee, Sensitivity
from winsor.core.ledger.ledger import Ledger
from winsor.core.randomness import key_for
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment
from winsor.planning.shares import noise_of, one_of, single_payment

PROOF = "a row is in one cell of the histogram of classes"


@dataclass(frozen=True)
class LogitAdjusted:
    """Cross-entropy of adjusted logits, one value per row.

    >>> loss = LogitAdjusted((900, 90, 10))
    >>> loss(torch.zeros(2, 3), torch.tensor([0, 2])).tolist()[1] > 4
    True
    """

    profile: tuple[float, ...]
    """Rows of each class: public, or `released_counts(...).counts`."""
    tau: float = 1.0

    def __post_init__(self) -> None:
        if len(self.profile) < 2 or any(not 0 < n < float("inf") for n in self.profile):
            raise refusal("profile", "a positive count for each class", self.profile)
        if not 0 <= self.tau < float("inf"):
            raise refusal("tau", "finite and at least 0", self.tau)

    def shift(self) -> Tensor:
        """tau log(prior)."""
        counts = torch.tensor(self.profile, dtype=torch.float64)
        return (self.tau * (counts / counts.sum()).log()).float()

    def __call__(self, logits: Tensor, labels: Tensor, progress: float = 0.0) -> Tensor:
        """Losses of the rows, at any moment of the run."""
        del progress
        return F.cross_entropy(logits + self.shift(), labels, reduction="none")


@dataclass(frozen=True)
class ReleasedCounts:
    """Noisy counts of classes, at least 1 each, and what they cost."""

    counts: tuple[float, ...]
    guarantee: Guarantee
    ledger: Ledger = field(repr=False)


def released_counts(
    labels: ArrayLike | Tensor,
    classes: int,
    *,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    relation: str = "add_or_remove_one",
    seed: int | None = None,
    allow_large_delta: bool = False,
    ledger: str | os.PathLike[str] | None = None,
) -> ReleasedCounts:
    """Release how many rows each class has: one histogram with noise.

    ``classes`` is public. Counts below 1 become 1: an empty class has no logarithm. ``ledger`` is
    a file that keeps what was paid; without one the ledger lives with the result.

    >>> found = released_counts([0] * 900 + [1] * 100, 2, epsilon=1.0, delta=1e-4, seed=0)
    >>> abs(found.counts[1] - 100) < 30, found.guarantee.epsilon <= 1.0
    (True, True)
    """
    seen = np.asarray(labels)
    if seen.ndim != 1 or seen.dtype.kind not in "iu":
        raise ConfigurationError(
            "labels must be a vector of whole numbers. Got "
            f"{seen.dtype} of shape {seen.shape} instead."
        )
    whole("classes", classes, least=2)
    one_of(epsilon, noise_multiplier)
    n = len(seen)
    delta = as_delta(delta, n, allow_large_delta)
    neighbours = as_relation(relation)
    plan = Payment(FullBatch(n), Sensitivity(1.0, float(np.sqrt(2)), PROOF), 1)
    noise = noise_of(plan, epsilon, noise_multiplier, delta, neighbours)
    known = seen[(seen >= 0) & (seen < classes)]  # labels outside are in no cell
    sums: Any = np.bincount(known, minlength=classes).astype(np.float64)
    key = key_for(seed, None, sums, noise)
    about = {"method": "class counts", "classes": classes, "relation": neighbours.value}
    paid = Ledger(about, ledger)
    door, receipt = single_payment(plan, classes, noise, neighbours, key, paid)
    counts = np.maximum(receipt.release(sums), 1.0)
    return ReleasedCounts(tuple(counts.tolist()), door.guarantee(delta), door.ledger)
