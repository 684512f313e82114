"""What DC-DPSGD claims: eps_tr for ranking the traces plus eps_dp for the clipped sums.

    published   (eps_tr + eps_dp, delta_tr + delta_dp), with sigma_dp from SG(q, sigma_dp) = eps_dp
                and "sensitivity" p c1 + (1 - p) c2 (Theorem 5.1, Appendix C)
    certified   the same noise against the shift that a record really causes: 2 c1 - c2 for a rank
                cut, c1 for a per-record rule (`winsor/rules/discriminative.py`)

How the paper was read. Line 10 of Algorithm 1 prints one noise draw *per record*; one draw for
each of the two sums is the reading that its budget suggests; the public code does a third thing.
With s = sigma_dp, batch m and tail k = p m, the noise on the sum has standard deviation

    "two noises"   s sqrt(c1^2 + c2^2)                    one draw for each of the two sums
    "per record"   s sqrt(k c1^2 + (m - k) c2^2)          the printed line, at the nominal m
    "public code"  s sqrt((p c1)^2 + ((1 - p) c2)^2)      draws weighted by p and 1 - p

Three things are wrong with the claim. A record that enters the tail pushes another one out, so the
sum moves by 2 c1 - c2, not by p c1 + (1 - p) c2. The ranking is never released, so eps_tr buys
nothing. And its proof treats one rank at a time, not the set of the p B largest traces.
`attacks.py` has an instance that costs more than is claimed for splits such as 2 + 6; for 4 + 4 it
does not.

Both sigmas come from their part of the budget by an accountant (PLD), which is the reading most
favourable to the paper, or with ``m2`` by its formula sigma^2 = m2 T q^2 ln(1/delta) / epsilon^2
(Theorem 5.1, whose constant m2 it does not name). sigma_tr is what `algorithm.py` adds to traces.

The published noise can be trained with, by asking for it here: `DcDpsgdRun.rule` and
`DcDpsgdRun.noise_multiplier` describe a certified run that adds exactly that noise. Its ledger
reports what the noise certifies; the claim stays a `PublishedClaim`.

References
----------
Anonymous: Clip body and tail separately: high probability guarantees for DPSGD with heavy tails,
Algorithm 1, Theorem 5.1, Appendix C and section 6.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from winsor.core.accounting import History
from winsor.core.checks import positive
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.noise.gaussian import Gaussian
from winsor.rules.discriminative import Discriminative
from winsor_papers.published import PublishedClaim
from winsor_papers.sampled import sampled_noise
from winsor_papers.theory import split_noise_multiplier

READINGS = ("two noises", "per record", "public code")

_DOUBTS = (
    "one record moves the sum by 2 c1 - c2: it enters the tail and pushes another record out",
    "the ranking is not released, so its budget eps_tr protects nothing",
    "the proof for the ranking treats one rank at a time, not the set of the p B largest",
)


@dataclass(frozen=True)
class DcDpsgdRun:
    """A run whose noise was chosen so that the paper would call it private with a split budget.

    Defaults are those of section 6.1: c1 = 10 c2, a tail of 10 %, the budget split equally, on
    MNIST or Fashion-MNIST (batches of 128 of 60,000, 40 epochs).
    """

    published_trace_epsilon: float = 4.0
    published_gradient_epsilon: float = 4.0
    delta: float = 1e-5  # of each of the two parts
    c1: float = 1.0
    c2: float = 0.1
    tail_fraction: float = 0.1
    batch: int = 128
    records: int = 60_000
    steps: int = 18_750
    reading: str = "two noises"
    m2: float | None = None
    """None: sigmas from the accountant; a number: from the formula of Theorem 5.1."""

    def __post_init__(self) -> None:
        if self.m2 is not None:
            positive("m2", self.m2)
        if self.reading not in READINGS:
            raise ConfigurationError(
                f"reading must be one of {list(READINGS)}. Got {self.reading!r} instead."
            )

    def claim(self) -> PublishedClaim:
        epsilon = self.published_trace_epsilon + self.published_gradient_epsilon
        source = "from an accountant" if self.m2 is None else f"with m2 = {self.m2:g}"
        statement = f'Theorem 5.1, noise read as "{self.reading}", sigmas {source}'
        return PublishedClaim(epsilon, 2 * self.delta, "DC-DPSGD", statement, _DOUBTS)

    @property
    def sampling_probability(self) -> float:
        return self.batch / self.records

    @property
    def sigma_gradient(self) -> float:
        """sigma_dp: T steps of SG(q, sigma_dp) spend eps_dp."""
        return self._sigma(self.published_gradient_epsilon)

    @property
    def sigma_trace(self) -> float:
        """sigma_tr: the same for the traces, whose sensitivity the paper takes to be 1."""
        return self._sigma(self.published_trace_epsilon)

    def _sigma(self, epsilon: float) -> float:
        rate, steps = self.sampling_probability, self.steps
        if self.m2 is None:
            return sampled_noise(rate, steps, epsilon, self.delta)
        return split_noise_multiplier(
            epsilon, sampling_rate=rate, steps=steps, delta=self.delta, m2=self.m2
        )

    @property
    def published_sensitivity(self) -> float:
        """p c1 + (1 - p) c2, the "Delta f" of Appendix C."""
        p = self.tail_fraction
        return p * self.c1 + (1 - p) * self.c2

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the sum of clipped gradients, by reading."""
        tail = self.tail_fraction * self.batch
        spreads = self.sum_spreads
        if self.reading == "per record":
            spreads = math.sqrt(tail) * self.c1, math.sqrt(self.batch - tail) * self.c2
        return self.sigma_gradient * math.hypot(*spreads)

    @property
    def sum_spreads(self) -> tuple[float, float]:
        """Of one draw for the tail's sum and one for the body's, in units of sigma_dp."""
        p = self.tail_fraction
        if self.reading == "public code":
            return p * self.c1, (1 - p) * self.c2
        return self.c1, self.c2

    def rule(self, selection: str = "rank") -> Discriminative:
        """The certified rule that clips as Algorithm 1 does."""
        return Discriminative(
            self.c1, self.c2, selection=selection, tail_fraction=self.tail_fraction
        )

    def noise_multiplier(self, selection: str = "rank") -> float:
        """The published noise over the certified sensitivity: what `rule` is trained with."""
        (part,) = self.rule(selection).bounded({"grad": {}}, {}).values()
        return self.noise_std / part.sensitivity.add_remove

    def certified_history(self, selection: str = "rank") -> History:
        """What the run really costs, for `winsor.core.accounting.spending`."""
        parts = self.rule(selection).bounded({"grad": {}}, {})
        local = Gaussian(self.noise_multiplier(selection)).event(parts)
        event = local.poisson(self.sampling_probability, Neighbouring.ADD_OR_REMOVE_ONE)
        return [(event, self.steps)]
