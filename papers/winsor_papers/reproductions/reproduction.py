"""What a reproduction is given and what it hands back: the same for every table of every paper.

A line holds three numbers that must not be mixed up:

* *printed*: the authors' own figure, from the paper;
* *published*: our run as the paper accounts for it, at its nominal epsilon (a claim);
* *certified*: our run with the noise that the same nominal epsilon really needs.

``None`` says that a line has no such number: the paper prints none, or claim and certificate agree
on the noise, so that there is one run only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from winsor.app.runs.summary import interval
from winsor.core.contract import ConfigurationError


@dataclass(frozen=True)
class Measured:
    """A mean over seeds, and half the width of its 95 per cent interval (Student's t)."""

    mean: float
    half_width: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Measured:
        """From one value per seed; a single seed has no interval."""
        if not values:
            raise ConfigurationError("values must hold one number per seed. Got none instead.")
        mean = statistics.fmean(values)
        if not math.isfinite(mean):  # a run that diverged has no spread
            return cls(mean, None, len(values))
        found = interval(values)
        return cls(found.mean, found.half, found.count)

    @classmethod
    def read(cls, text: str, seeds: int) -> Measured:
        """What `str` has written; digits that were cut are gone."""
        mean, _, half = text.partition(" ± ")
        return cls(float(mean), float(half) if half else None, seeds)

    def __str__(self) -> str:
        if self.half_width is None:
            return f"{self.mean:.4g}"
        return f"{self.mean:.4g} ± {self.half_width:.2g}"


@dataclass(frozen=True)
class Line:
    """One line of a reproduced table."""

    label: Mapping[str, str]
    """What the line is about, e.g. {"data": "MNIST", "method": "DC-DPSGD"}: one column each."""
    printed: str | None = None
    published: Measured | None = None
    certified: Measured | None = None
    certified_epsilon: float | None = None
    """The certified epsilon of the certified run, from its ledger."""
    published_certifies: float | None = None
    """The certified epsilon of the *published* run: what its noise really gives."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Further columns, already formatted."""


@dataclass(frozen=True)
class Reproduced:
    """One table or figure, reproduced."""

    title: str
    quantity: str
    """What the numbers are, e.g. "test accuracy in per cent"."""
    lines: tuple[Line, ...]
    verdict: str
    """One line: does the paper's claim hold here, under certified accounting?"""
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    """Where the setting differs from the paper's, and why."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Request:
    """How to run a reproduction: quick or full, on which files, telling whom."""

    quick: bool = False
    data: Path | None = None
    seeds: int | None = None
    say: Callable[[str], None] = lambda message: None

    def seeds_or(self, quick: int, full: int) -> range:
        """Seeds 1, 2, ...: as many as asked for, else ``quick`` or ``full``."""
        return range(1, 1 + (self.seeds or (quick if self.quick else full)))

    def folder(self) -> Path:
        """The folder of datasets; an error says how to name it."""
        if self.data is None:
            raise ConfigurationError(
                "data must name the folder with the datasets of this table (see datasets.py). "
                "Got None instead. Give --data FOLDER."
            )
        return self.data


Reproduction = Callable[[Request], Reproduced]
