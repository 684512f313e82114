"""Verdicts with power: what a comparison found, and the smallest difference it could have found.

A paper claims that one method is ahead of another, often by a printed number of points. We measure
both over seeds and look at the 95 per cent interval of their difference (Welch):

    reproduced                   the interval lies above zero: ahead, as claimed
    contradicted                 the interval excludes the paper's claim, at the paper's own setting
    not reproduced at our size   the same, at a setting that is not the paper's
    undecided                    the interval holds both the claim and no difference at all

The claim is the printed difference where there is one, else any difference above zero. Beside each
word stands the difference that a test at 5 per cent would have found with probability 0.8, given
the spread of the seeds. A single seed has no spread: it decides nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scipy import stats

from winsor_papers.reproductions.reproduction import Measured

Word = Literal["reproduced", "contradicted", "not reproduced at our size", "undecided"]
POWER = 0.8
LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """first - second, with the half width of its interval and what could have been found."""

    mean: float
    half_width: float | None
    """None with a single seed."""
    detectable: float
    """The smallest difference that would have been found with probability `POWER`."""


def difference(first: Measured, second: Measured) -> Difference:
    """Of two means over independent seeds, by Welch's formula."""
    gap = first.mean - second.mean
    if first.half_width is None or second.half_width is None:
        return Difference(gap, None, math.inf)
    freedom = [measured.seeds - 1 for measured in (first, second)]
    errors = [
        width / float(stats.t.ppf(1 - LEVEL / 2, df))
        for width, df in zip((first.half_width, second.half_width), freedom, strict=True)
    ]
    error = math.hypot(*errors)
    if error == 0:
        return Difference(gap, 0.0, 0.0)
    degrees = error**4 / sum(e**4 / df for e, df in zip(errors, freedom, strict=True))
    quantile, more = (float(stats.t.ppf(at, degrees)) for at in (1 - LEVEL / 2, POWER))
    return Difference(gap, quantile * error, (quantile + more) * error)


@dataclass(frozen=True)
class Comparison:
    """Ours against theirs where the paper claims that ours is ahead."""

    label: str
    ours: Measured
    theirs: Measured
    claimed: float | None = None
    """The printed difference, positive; None where the paper only says which is ahead."""
    own_setting: bool = False
    """Is this the paper's own setting: data, model, length, budget, tuning?"""
    smaller_is_better: bool = False
    margin: float = 0.0
    """The claim is only that ours is no further behind than this."""

    @property
    def gain(self) -> Difference:
        """How far ours is ahead."""
        if self.smaller_is_better:
            return difference(self.theirs, self.ours)
        return difference(self.ours, self.theirs)

    @property
    def word(self) -> Word:
        gain = self.gain
        return judged(replace(gain, mean=gain.mean + self.margin), self.claimed, self.own_setting)


def judged(gain: Difference, claimed: float | None, own_setting: bool) -> Word:
    """See the module's text."""
    if gain.half_width is None or not math.isfinite(gain.mean):
        return "undecided"
    low, high = gain.mean - gain.half_width, gain.mean + gain.half_width
    if low > 0:
        return "reproduced"
    # a claim of a size is excluded below it, a claim of a direction at zero
    excluded = high <= 0 if claimed is None else high < claimed
    if not excluded:
        return "undecided"
    return "contradicted" if own_setting else "not reproduced at our size"


STANDINGS: dict[Word, str] = {
    "reproduced": "ahead", "contradicted": "behind", "not reproduced at our size": "behind",
    "undecided": "undecided",
}  # fmt: skip


def sentence(comparisons: Sequence[Comparison], of: str = "comparisons", unit: str = "") -> str:
    """The verdict over several comparisons: words, counts, and the power behind them."""
    return _told(comparisons, of, unit, {word: word for word in STANDINGS})


def standing(comparisons: Sequence[Comparison], of: str, unit: str = "") -> str:
    """The same of what no paper claims: who is ahead."""
    return _told(comparisons, of, unit, STANDINGS)


def _told(comparisons: Sequence[Comparison], of: str, unit: str, names: Mapping[Word, str]) -> str:
    if not comparisons:
        return f"No verdict: there are no {of}."
    words = Counter(names[one.word] for one in comparisons)
    counts = [f"{name} in {words[name]}" for name in dict.fromkeys(names.values()) if words[name]]
    gains = [one.gain for one in comparisons]
    size = f"measured {_span(gain.mean for gain in gains)}{unit}"
    claims = [one.claimed for one in comparisons if one.claimed is not None]
    claim = f", claimed {_span(claims)}" if claims else ""
    text = f"{', '.join(counts)} of {len(comparisons)} {of} ({size}{claim}; {_power(gains, unit)})"
    return text[0].upper() + text[1:]


def _power(gains: Sequence[Difference], unit: str) -> str:
    finite = [gain.detectable for gain in gains if math.isfinite(gain.detectable)]
    if not finite:
        return "one seed, so no difference could have been detected"
    low, high = f"{min(finite):.2g}", f"{max(finite):.2g}"
    span = low if low == high else f"{low} to {high}"
    return f"smallest detectable difference {span}{unit}"


def _span(values: Iterable[float]) -> str:
    known = list(values)
    low, high = f"{min(known):+.3g}", f"{max(known):+.3g}"
    return low if low == high else f"{low} to {high}"


def leading_number(text: str | None) -> float | None:
    """The first number of a printed figure such as "97.65±0.09"; None if it has none."""
    if not text:
        return None
    head = text.replace("±", " ").split()[0]
    try:
        return float(head)
    except ValueError:
        return None


def printed_gap(ours: str | None, theirs: str | None) -> float | None:
    """Printed difference of two figures, if both are numbers."""
    first, second = leading_number(ours), leading_number(theirs)
    return None if first is None or second is None else first - second
