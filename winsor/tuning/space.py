"""Where settings are drawn from: public laws, chosen before the data are looked at.

Every trial draws its setting afresh from the same law. Nothing here learns from earlier scores: a
sampler that did would see private values, and every trial would have to be paid for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from winsor.core.checks import fraction, positive
from winsor.core.contract import ConfigurationError


class Law(Protocol):
    """One setting's law."""

    def draw(self, generator: np.random.Generator) -> Any: ...
    def describe(self) -> Any: ...


@dataclass(frozen=True)
class Uniform:
    """A number between ``low`` and ``high``."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)

    def draw(self, generator: np.random.Generator) -> float:
        return float(generator.uniform(self.low, self.high))

    def describe(self) -> Any:
        return {"uniform": [self.low, self.high]}


@dataclass(frozen=True)
class LogUniform:
    """A positive number whose logarithm is uniform: learning rates, thresholds."""

    low: float
    high: float

    def __post_init__(self) -> None:
        positive("low", self.low)
        _check_range(self.low, self.high)

    def draw(self, generator: np.random.Generator) -> float:
        return float(math.exp(generator.uniform(math.log(self.low), math.log(self.high))))

    def describe(self) -> Any:
        return {"log_uniform": [self.low, self.high]}


@dataclass(frozen=True)
class Integer:
    """A whole number from ``low`` to ``high``, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)

    def draw(self, generator: np.random.Generator) -> int:
        return int(generator.integers(self.low, self.high, endpoint=True))

    def describe(self) -> Any:
        return {"integer": [self.low, self.high]}


@dataclass(frozen=True)
class Choice:
    """One of several options, equally likely."""

    options: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.options:
            raise ConfigurationError("options must name at least one. Got none instead.")

    def draw(self, generator: np.random.Generator) -> Any:
        return self.options[int(generator.integers(len(self.options)))]

    def describe(self) -> Any:
        return {
            "choice": [option if _is_plain(option) else repr(option) for option in self.options]
        }


@dataclass(frozen=True)
class Frozen:
    """A frozen distribution of scipy.stats, or anything with ``rvs(random_state=)``."""

    distribution: Any

    def draw(self, generator: np.random.Generator) -> Any:
        value = self.distribution.rvs(random_state=generator)
        return value.item() if isinstance(value, np.generic | np.ndarray) else value

    def describe(self) -> Any:
        inner = getattr(self.distribution, "dist", self.distribution)
        return {
            "frozen": getattr(inner, "name", type(inner).__name__),
            "arguments": repr(
                (getattr(self.distribution, "args", ()), getattr(self.distribution, "kwds", {}))
            ),
        }


_TABLES: dict[str, type[Uniform] | type[LogUniform] | type[Integer]] = {
    "uniform": Uniform,
    "log_uniform": LogUniform,
    "integer": Integer,
}
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
        """From laws, scipy distributions, lists of options, tables as in TOML, or single values."""
        if isinstance(given, Space):
            return given
        if not isinstance(given, Mapping) or not given:
            raise ConfigurationError(
                "space must be a mapping from names of settings to their laws. Got "
                f"{given!r} instead."
            )
        return Space({name: _law(name, value) for name, value in given.items()})

    def with_known(self, setting: Mapping[str, Any], share: float) -> Space:
        """The same laws, and in a ``share`` of the draws this setting as a whole: a recipe, say.

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
        if self.known is not None and generator.random() < self.share:
            return dict(self.known)
        return {name: law.draw(generator) for name, law in self.laws.items()}

    def describe(self) -> dict[str, Any]:
        """Plain values, for the ledger's header: two tunings of the same space say the same."""
        laws = {name: law.describe() for name, law in self.laws.items()}
        if self.known is None:
            return laws
        known = {
            name: value if _is_plain(value) else repr(value) for name, value in self.known.items()
        }
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


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _check_range(low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigurationError(
            f"low must be below high, both finite. Got low={low!r}, high={high!r} instead."
        )
