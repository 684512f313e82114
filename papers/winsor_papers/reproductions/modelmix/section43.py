"""Paper 5, ModelMix: what it prints, what its formula gives, and what can be certified.

* `section_43`: the table of section 4.3, printed, published and certified side by side, with what
  the same variance would give as plain Gaussian noise;
* `figure_3`: the same over the steps of the run, at q = 0.02 and 0.04;
* `figure_2` and `quadratic` (`figure2.py`): why a larger step stays stable;
* `table_1` (`table1.py`): the small CNN on scattering features;
* `compare` (`embedding.py`): mixing on top of a public gradient embedding.

What came out is in docs/modelmix.md.

References
----------
Xiao, Xiang, Wang, Devadas: Differentially Private Deep Learning with ModelMix, 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from scipy import optimize

from winsor.contrib.modelmix.mixed_gaussian import MixedGaussianDpEvent
from winsor.core.accounting import account
from winsor_papers.modelmix.claim import modelmix_claim
from winsor_papers.published import PublishedClaim


@dataclass(frozen=True)
class Section43:
    """The setting of section 4.3 and figure 3 (a-c), in units of the averaged gradient.

    Figure 3 (d-f) is `AT_RATE_4`: q = 0.04, so that a record's share of the average is c / 2000.
    """

    sampling_probability: float = 0.02
    steps: int = 5000
    delta: float = 1e-5
    clip: float = 20 / 1000
    plain_epsilon: float = 200.0
    widths: tuple[float, ...] = (0.3, 0.15, 0.075)
    coordinates: tuple[int, ...] = (1, 25, 100)

    def event(self, width: float, coordinates: float, noise: float) -> MixedGaussianDpEvent:
        """One step with tau/eta = ``width`` and noise multiplier ``noise``."""
        return MixedGaussianDpEvent(
            self.sampling_probability, noise, width / self.clip, coordinates
        )


AT_RATE_4 = Section43(sampling_probability=0.04, clip=20 / 2000)

PRINTED = {
    (0.3, 1): 31.7, (0.3, 25): 5.4, (0.3, 100): 4.8,
    (0.15, 1): 40.4, (0.15, 25): 9.0, (0.15, 100): 7.9,
    (0.075, 1): 57.2, (0.075, 25): 17.9, (0.075, 100): 15.3,
}  # fmt: skip
"""Section 4.3's numbers by (tau/eta, p)."""


@lru_cache(maxsize=8)
def section_43_noise(setting: Section43 = Section43()) -> float:  # noqa: B008 - frozen
    """The noise multiplier at which DP-SGD has the setting's epsilon by fractional Renyi orders."""

    def gap(noise: float) -> float:
        claim = modelmix_claim(setting.event(0.0, 1, noise), setting.steps, setting.delta)
        return claim.published_epsilon - setting.plain_epsilon

    return float(optimize.brentq(gap, 0.3, 0.6, xtol=1e-6))


def section_43_claims(
    setting: Section43 = Section43(),  # noqa: B008 - frozen
) -> dict[tuple[float, int], PublishedClaim]:
    """The published epsilon of every cell of section 4.3, by (tau/eta, p)."""
    noise = section_43_noise(setting)
    return {
        (w, p): modelmix_claim(setting.event(w, p, noise), setting.steps, setting.delta)
        for w in setting.widths
        for p in setting.coordinates
    }


@dataclass(frozen=True)
class Section43Row:
    """One cell of section 4.3. Only ``certified`` and ``as_gaussian`` are proven."""

    tau_over_eta: float
    p: int
    printed: float | None
    published: PublishedClaim
    certified: float
    as_gaussian: float
    """Certified epsilon of plain DP-SGD whose Gaussian noise has the variance of both noises."""


def section_43(setting: Section43 | None = None) -> list[Section43Row]:
    """The table of section 4.3; ``printed`` where the paper has the cell."""
    setting = setting or Section43()
    noise = section_43_noise(setting)
    return [
        _cell(setting, noise, width, p) for width in setting.widths for p in setting.coordinates
    ]


def _cell(setting: Section43, noise: float, width: float, p: int) -> Section43Row:
    event = setting.event(width, p, noise)
    total = math.hypot(noise, width / setting.clip / math.sqrt(12))
    plain = PoissonSampledDpEvent(setting.sampling_probability, GaussianDpEvent(total))
    return Section43Row(
        tau_over_eta=width,
        p=p,
        printed=PRINTED.get((width, p)) if setting.sampling_probability == 0.02 else None,
        published=modelmix_claim(event, setting.steps, setting.delta),
        certified=account([(event, setting.steps)], setting.delta).epsilon,
        as_gaussian=account([(plain, setting.steps)], setting.delta).epsilon,
    )


# ------------------------------------------------------------------------------------ over the run


@dataclass(frozen=True)
class Figure3Point:
    """A point of a curve of figure 3: epsilon after ``steps`` steps of the run."""

    sampling_probability: float
    tau_over_eta: float
    p: int
    """0 for DP-SGD without mixing."""
    steps: int
    published: PublishedClaim
    certified: float


def figure_3(setting: Section43 | None = None, points: int = 5) -> list[Figure3Point]:
    """The curves of one row of figure 3: DP-SGD, and mixing at each tau and p, over T."""
    setting = setting or Section43()
    noise = section_43_noise(setting)
    moments = [round(setting.steps * (i + 1) / points) for i in range(points)]
    curves = [(0.0, 0), *((w, p) for w in setting.widths for p in setting.coordinates)]
    return [_point(setting, noise, width, p, steps) for width, p in curves for steps in moments]


def _point(setting: Section43, noise: float, width: float, p: int, steps: int) -> Figure3Point:
    event = setting.event(width, max(p, 1), noise)
    plain = PoissonSampledDpEvent(setting.sampling_probability, GaussianDpEvent(noise))
    return Figure3Point(
        setting.sampling_probability,
        width,
        p,
        steps,
        modelmix_claim(event, steps, setting.delta),
        account([(event if p else plain, steps)], setting.delta).epsilon,
    )
