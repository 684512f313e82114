"""Section 5.1's first step: private channel statistics, with which features are standardised.

    a_i, b_i   means over positions of the channels of image i, and of their squares
    release    sum_i clip(a_i, A) + N(0, (8 A)^2),     sum_i clip(b_i, B) + N(0, (8 B)^2)
    mean       the first over n;       variance   max(the second over n - mean^2, 0)

The paper spends epsilon 0.695 on it, "with the same setup" as Tramer and Boneh 2021, whose code
releases twice with the noise multiplier 8: 0.695 is what Renyi accounting gives at delta 1e-5
(`winsor_papers.modelmix.statistics`).
Both sums together are one Gaussian release; its certified epsilon is 0.634.
The columns of Table 1 begin at epsilon 0.2: the 0.695 is not in them.

Differences. The authors of that code take A and B to be medians of the private norms; here they
are public constants, since a threshold read off the rows is not covered by any noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from winsor.core.accounting import account
from winsor.core.contract import Bounded, Neighbouring, Sensitivity
from winsor.core.door import Door
from winsor.core.events.registry import History
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.randomness import new_key
from winsor.core.sampling.samplers import FullBatch
from winsor.rules.rule import clip_weights
from winsor_papers.modelmix.statistics import NOISE_MULTIPLIER

RELATION = Neighbouring.ADD_OR_REMOVE_ONE
LEAST_VARIANCE = 1e-5


@dataclass(frozen=True, eq=False)
class ChannelStatistics:
    """Released means and variances of channels, and what they cost."""

    mean: Tensor
    variance: Tensor
    history: History

    def epsilon(self, delta: float) -> float:
        """Certified, under add or remove one; n is public."""
        return account(self.history, delta, RELATION).epsilon

    def standardise(self, features: Tensor) -> Tensor:
        """(n, channels, h, w) with the released statistics; channels without variance become 0."""
        shape = (1, -1, 1, 1)
        scale = (self.variance + LEAST_VARIANCE).rsqrt() * (self.variance > 0)
        return (features - self.mean.view(shape)) * scale.view(shape)


def channel_statistics(
    features: Tensor,
    *,
    mean_bound: float = 1.0,
    square_bound: float = 1.0,
    noise_multiplier: float = NOISE_MULTIPLIER,
    seed: int | None = None,
) -> ChannelStatistics:
    """Release means and variances of the channels of (n, channels, h, w), in one act.

    ``noise_multiplier`` is that of each of the two sums, as in the paper.
    """
    n = len(features)
    positions = features.flatten(2).double()
    parts = {
        "means": _clipped_sum(positions.mean(2), mean_bound),
        "squares": _clipped_sum(positions.square().mean(2), square_bound),
    }
    sampler = FullBatch(n)
    mechanism = Gaussian(noise_multiplier / 2**0.5)  # of both sums together
    ledger = Ledger({"method": "channel statistics", "n": n, "noise": noise_multiplier})
    door = Door(ledger, mechanism, sampler, RELATION, new_key(seed))
    released = door.release(0, parts).values
    mean, square = released["means"] / n, released["squares"] / n
    variance = (square - mean.square()).clamp_min(0)
    return ChannelStatistics(mean.float(), variance.float(), tuple(ledger.history()))


def _clipped_sum(rows: Tensor, bound: float) -> Bounded:
    weights = clip_weights(torch.linalg.vector_norm(rows, dim=1), bound)
    proof = "each row is clipped by itself; the divisor n is public"
    return Bounded(
        (rows * weights[:, None]).sum(0), Sensitivity.per_sample(bound, proof), share=0.5
    )
