"""What AClipped-dpSGD claims: the clipped batch mean has sensitivity lambda.

    published   T steps of SG(q, s),        noise sd on the mean = s lambda
    certified   T steps of SG(q, s / 2),    the same noise (`winsor/rules/averaged.py`)

SG(q, s) is a Poisson-sampled Gaussian with noise multiplier s. Two points of the ball that the mean
is clipped to are 2 lambda apart, and one record can move the mean that far.

How the paper was read. Theorem 2 gives the noise up to a constant c; its proof computes the moments
for sensitivity lambda. So the claim is taken to be the one that a modern accountant gives for
sensitivity lambda: the reading most favourable to the paper. `theorem_2_std` is (9) itself, which
prints T for the number of iterations N.

The published noise can be trained with, by asking for it here: `AclipRun.rule` and
`AclipRun.noise_multiplier` describe a certified run that adds exactly the published noise. Its
ledger reports what that noise certifies; the claim stays a `PublishedClaim`.

References
----------
Jin, Zhou, Han, Cheng, Zeng: Efficient private SCO for heavy-tailed data via averaged clipping,
Theorem 2 and section 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from winsor.rules.averaged import Averaged
from winsor_papers.published import PublishedClaim
from winsor_papers.sampled import SampledRun

_DOUBTS = (
    "two clipped means can differ by 2 lambda, not lambda: the others pull one way, one record the "
    "other",
    "Theorem 2 leaves its constants c and c_1 open",
)


@dataclass(frozen=True)
class AclipRun(SampledRun):
    """A run whose noise was chosen so that the paper would call it (epsilon, delta)-private."""

    max_mean_norm: float = 1.0

    def claim(self) -> PublishedClaim:
        statement = "Theorem 2 with sensitivity lambda, accounted by PLD"
        return PublishedClaim(
            self.published_epsilon, self.delta, "AClipped-dpSGD", statement, _DOUBTS
        )

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the mean."""
        return self.published_multiplier * self.max_mean_norm

    @property
    def rule(self) -> Averaged:
        return Averaged(self.max_mean_norm)

    @property
    def noise_multiplier(self) -> float:
        """The same noise over the certified sensitivity 2 lambda: what `rule` is trained with."""
        return self.published_multiplier / 2


CIFAR10 = tuple(AclipRun(epsilon, 1e-5, 500 / 50_000, 150 * 100, 30.0) for epsilon in (2, 4, 6))
"""Section 5: batches of 500 of 50,000 images, 150 epochs, lambda = 30."""


def theorem_2_std(run: AclipRun, constant: float = 1.0) -> float:
    """(9): c lambda (m/n) sqrt(N ln(1/delta)) / epsilon, the noise up to its constant c."""
    spread = math.sqrt(run.steps * math.log(1 / run.delta))
    scale = constant * run.max_mean_norm * run.sampling_probability
    return scale * spread / run.published_epsilon
