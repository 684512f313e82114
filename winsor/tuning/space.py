"""Public laws that the settings of a tuning are drawn from, chosen before the data are looked at.

Every trial draws its setting afresh from the same law. Nothing here learns from earlier scores: a
sampler that did would see private values, and every trial would have to be paid for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from winsor.core.checks import fraction, positive
from winsor.core.contract import ConfigurationError


class Law(Protocol):
    """One setting's law."""

    def draw(self, generator: np.random.Generator) -> Any:
        """Draw a value."""

    def describe(self) -> Any:
        """Return plain values that name the law, for a ledger's header."""


@dataclass(frozen=True)
class _Range:
    """A law between two ends."""

    low: float
    high: float
    name: ClassVar[str]

    def __post_init__(self) -> None:
        low, high = self.low, self.high
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigurationError(
                f"low must be below high, both finite. Got low={low!r}, high={high!r} instead."
            )

    def describe(self) -> Any:
        """Return the law as a table of a configuration file."""
        return {self.name: [self.low, self.high]}


@dataclass(frozen=True)
class Uniform(_Range):
    """A number between ``low`` and ``high``."""

    name: ClassVar[str] = "uniform"

    def draw(self, generator: np.random.Generator) -> float:
        """Draw a number."""
        return float(generator.uniform(self.low, self.high))


@dataclass(frozen=True)
class LogUniform(_Range):
    """A positive number whose logarithm is uniform: learning rates, thresholds."""

    name: ClassVar[str] = "log_uniform"

    def __post_init__(self) -> None:
        positive("low", self.low)
        super().__post_init__()

    def draw(self, generator: np.random.Generator) -> float:
        """Draw a positive number."""
        return float(math.exp(generator.uniform(math.log(self.low), math.log(self.high))))


@dataclass(frozen=True)
class Integer(_Range):
    """A whole number from ``low`` to ``high``, both included."""

    low: int
    high: int
    name: ClassVar[str] = "integer"

    def draw(self, generator: np.random.Generator) -> int:
        """Draw a whole number."""
        return int(generator.integers(self.low, self.high, endpoint=True))


@dataclass(frozen=True)
class Choice:
    """One of several options, equally likely."""

    options: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.options:
            raise ConfigurationError("options must name at least one. Got none instead.")

    def draw(self, generator: np.random.Generator) -> Any:
        """Draw an option."""
        return self.options[int(generator.integers(len(self.options)))]

    def describe(self) -> Any:
        """Return the options as a table of a configuration file."""
        return {"choice": [_plain(option) for option in self.options]}


@dataclass(frozen=True)
class Frozen:
    """A frozen distribution of scipy.stats, or anything with ``rvs(random_state=)``."""

    distribution: Any

    def draw(self, generator: np.random.Generator) -> Any:
        """Draw a value, as a plain number if it is one."""
        value = self.distribution.rvs(random_state=generator)
        return value.item() if isinstance(value, np.generic | np.ndarray) else value

    def describe(self) -> Any:
        """Return the distribution's name and arguments."""
        inner = getattr(self.distribution, "dist", self.distribution)
        given = getattr(self.distribution, "args", ()), getattr(self.distribution, "kwds", {})
        return {
            "frozen": getattr(inner, "name", type(inner).__name__),
            "arguments": repr(given),
        }


_TABLES: dict[str, type[Uniform] | type[LogUniform] | type[Integer]]
_TABLES = {law.name: law for law in (Uniform, LogUniform, Integer)}
LAWS = (*_TABLES, "choice")
"""Names of laws in tables."""


@dataclass(frozen=True)
class Space:
    """Independent laws by name; or, in a share of the draws, a whole setting that is known.

    >>> space = Space.of({"lr": {"log_uniform": [0.01, 1.0]}, "clip": [0.1, 1.0], "depth": 2})
    >>> sorted(space.draw(np.random.default_rng(0)))
    ['clip', 'depth', 'lr']
    """

    laws: Mapping[str, Law]
    known: Mapping[str, Any] | None = None
    share: float = 0.0

    @staticmethod
    def of(given: Space | Mapping[str, Any]) -> Space:
        """Make a space from laws, scipy distributions, lists, tables as in TOML, or values."""
        if isinstance(given, Space):
            return given
        if not isinstance(given, Mapping) or not given:
            raise ConfigurationError(
                "space must be a mapping from names of settings to their laws. Got "
                f"{given!r} instead."
            )
        return Space({name: _law(name, value) for name, value in given.items()})

    def with_known(self, setting: Mapping[str, Any], share: float) -> Space:
        """Add a known setting, such as a recipe, that a ``share`` of the draws takes as a whole.

        A tuning of few trials then seldom ends far below the recipe. The law is public only if the
        setting is: not found by looking at the same rows before.

        >>> space = Space.of({"lr": LogUniform(0.1, 10.0)}).with_known({"lr": 1.0}, share=0.5)
        >>> generator = np.random.default_rng(0)
        >>> 450 < sum(space.draw(generator)["lr"] == 1.0 for _ in range(1000)) < 550
        True
        """
        if set(setting) != set(self.laws):
            raise ConfigurationError(
                f"a known setting must name {sorted(self.laws)}. Got {sorted(setting)} instead."
            )
        return replace(self, known=dict(setting), share=fraction("share", share))

    def draw(self, generator: np.random.Generator) -> dict[str, Any]:
        """Draw a setting: a value for each name."""
        if self.known is not None and generator.random() < self.share:
            return dict(self.known)
        return {name: law.draw(generator) for name, law in self.laws.items()}

    def describe(self) -> dict[str, Any]:
        """Return plain values for the ledger's header: equal for equal spaces."""
        laws = {name: law.describe() for name, law in self.laws.items()}
        if self.known is None:
            return laws
        known = {name: _plain(value) for name, value in self.known.items()}
        return {"laws": laws, "known": known, "share": self.share}


def _law(name: str, value: Any) -> Law:
    if isinstance(value, Uniform | LogUniform | Integer | Choice | Frozen):
        return value
    if hasattr(value, "rvs"):
        return Frozen(value)
    if isinstance(value, Mapping):
        if len(value) == 1 and next(iter(value)) in _TABLES:
            ((kind, ends),) = value.items()
            return _TABLES[kind](*_two_numbers(name, kind, ends))
        if set(value) == {"choice"} and isinstance(value["choice"], list | tuple):
            return Choice(tuple(value["choice"]))
        raise ConfigurationError(
            f"{name} must be one of uniform, log_uniform, integer, choice, as in "
            f"{{log_uniform = [0.01, 1.0]}}. Got {dict(value)!r} instead."
        )
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes):
        return Choice(tuple(value))
    return Choice((value,))


def _two_numbers(name: str, kind: str, ends: Any) -> tuple[Any, Any]:
    wanted = int if kind == "integer" else int | float
    if (
        not isinstance(ends, Sequence)
        or len(ends) != 2
        or any(isinstance(end, bool) or not isinstance(end, wanted) for end in ends)
    ):
        numbers = "whole numbers" if kind == "integer" else "numbers"
        raise ConfigurationError(
            f"{name} must have two {numbers}, the ends of {kind}, as in {{{kind} = [1, 10]}}. Got "
            f"{ends!r} instead."
        )
    return ends[0], ends[1]


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)
