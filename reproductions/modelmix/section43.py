"""Paper 5, ModelMix: what it prints, what its formula gives, and what can be certified.

* `section_43`: the table of section 4.3, printed, published and certified side by side, with what
  the same variance would give as plain Gaussian noise;
* `figure_2` and `quadratic` (`modelmix_figure2.py`): why a larger step stays stable;
* `table_1` (`modelmix_table1.py`): the small CNN on scattering features;
* `compare` (`modelmix_embedding.py`): mixing on top of a public gradient embedding.

What came out is in docs/modelmix.md.

References
----------
Xiao, Xiang, Wang, Devadas: Differentially Private Deep Learning with ModelMix, 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent

from winsor.accounting import account
from winsor.papers.modelmix.claim import (
    PRINTED,
    Section43,
    modelmix_claim,
    section_43_noise,
)
from winsor.papers.published import PublishedClaim


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
        printed=PRINTED.get((width, p)),
        published=modelmix_claim(event, setting.steps, setting.delta),
        certified=account([(event, setting.steps)], setting.delta).epsilon,
        as_gaussian=account([(plain, setting.steps)], setting.delta).epsilon,
    )
