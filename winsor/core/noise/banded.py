"""Gaussian noise that later steps take back in part: C^-1 z with a banded Toeplitz C.

Let c = (c_0, ..., c_(b-1)) have norm 1, S_t be the bounded sum of step t and s the noise scale.
What is released is X = S + s C^-1 z, so that C X = C S + s z:

    sum_k c_k X_(t-k)  =  sum_k c_k S_(t-k) + s z_t.

Write e = X - S for the noise of past steps. Solved for X_t,

    v_t = c_0 S_t - sum_(k=1)^(b-1) c_k e_(t-k),     X_t = (v_t + s z_t) / c_0,     e_t = X_t - S_t.

v_t is what the noise of step t covers: C S up to a shift that everybody can compute from X_(<t).
It is rounded to the noise's grid as any sum is, so floating point gives nothing away.

Cost: b - 1 past noises in float64 (`memory`), and as many additions a step.

Guarantee
---------
Of any row that is in one batch of b consecutive steps at most, one visit moves C S by at most
(column norm) x (sensitivity of a step), spread over b steps: one Gaussian release of
``noise_multiplier``, however later steps adapt. `BandedEvent` refuses samplers under which a row
may return earlier. All noise is in units of the step's own std, so that thresholds may move.

A resumed run must go on from the past noises it had (`state`); they are as secret as the key. A
step that is out of turn is refused: its noise would cover another value than was planned.

References
----------
Choquette-Choo et al. 2023 (arXiv 2306.08153); Kalinin & Lampert 2024 (arXiv 2405.13763).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from winsor.core.arithmetic.fused import subtract_multiple
from winsor.core.buffers import KINDS, Doubles, flat_doubles, leaves_of
from winsor.core.contract import Bounded, ConfigurationError, UnsoundRelease
from winsor.core.events.joint import BandedEvent, check_shares, joint_event
from winsor.core.noise.gaussian import Gaussian
from winsor.core.noise.protocol import DrawNoise, LocalEvent

_ROUNDING = 1e-12


def square_root_coefficients(bands: int) -> np.ndarray:
    """The first column of C: that of the square root of the prefix sums, cut off and of norm 1.

    >>> square_root_coefficients(1).tolist()
    [1.0]
    >>> (square_root_coefficients(3) / square_root_coefficients(3)[0]).round(9).tolist()
    [1.0, 0.5, 0.375]
    """
    if isinstance(bands, bool) or not isinstance(bands, int) or bands < 1:
        raise ConfigurationError(
            f"bands must be a whole number, at least 1. Got {bands!r} instead."
        )
    k = np.arange(1, bands)
    column = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    return np.asarray(column / math.sqrt(float(column @ column)), float)


class BandedGaussian(Gaussian):
    """Gaussian noise correlated over ``len(column)`` steps; with one, plain Gaussian noise.

    ``column`` is the first column of C: of norm at most 1, its first entry positive.
    """

    column: tuple[float, ...]

    def __init__(self, noise_multiplier: float, column: Sequence[float]) -> None:
        super().__init__(noise_multiplier)
        entries = tuple(float(entry) for entry in column)
        norm = float(np.linalg.norm(entries)) if entries else 0.0
        if not (entries and np.all(np.isfinite(entries)) and entries[0] > 0):
            raise ConfigurationError(
                f"column must hold finite numbers, the first above 0. Got {column!r} instead."
            )
        if not norm <= 1 + _ROUNDING:
            raise ConfigurationError(
                f"column must have norm at most 1: the noise covers that much. Got {norm!r} "
                "instead. Divide it by its norm."
            )
        object.__setattr__(self, "column", entries)
        object.__setattr__(self, "_growths", [])
        self.restart()

    @staticmethod
    def of_bands(noise_multiplier: float, bands: int) -> BandedGaussian:
        """With the square-root coefficients."""
        return BandedGaussian(noise_multiplier, square_root_coefficients(bands).tolist())

    @property
    def bands(self) -> int:
        """Number of steps over which noise is correlated."""
        return len(self.column)

    @property
    def roundings(self) -> int:  # type: ignore[override]
        """One visit of a row moves ``bands`` releases, and each is rounded to the grid."""
        return self.bands

    def event(self, parts: Mapping[str, Bounded], step: int = 0) -> LocalEvent:
        """One visit of a row; a random size of its shift is taken at its largest."""
        if self.bands == 1:
            return super().event(parts, step)
        check_shares(parts)
        local = replace(joint_event(parts, self.noise_multiplier), mixture=None)
        return BandedEvent(self.bands, local)

    def growth(self, step: int) -> float:
        """Standard deviation of the noise in the release of ``step``, over that of z."""
        known: list[float] = self._growths  # type: ignore[attr-defined]
        if step >= len(known):
            responses = inverse_column(self.column, max(2 * step, 64) + 1)
            known[:] = np.sqrt(np.cumsum(responses**2)).tolist()
        return known[step]

    def memory(self, size: int) -> int:
        """Bytes of past noises for a release of ``size`` values."""
        return 8 * size * (self.bands - 1)

    # ------------------------------------------------------------------------------- releasing

    def covered(
        self, parts: Mapping[str, Bounded], std: Mapping[str, float], step: int
    ) -> dict[str, Doubles]:
        """Return what the noise of ``step`` will cover: v_t of every part, flat and in float64.

        A digest that binds noise to values must be one of these: the sum alone does not determine
        them. `add_noise` then releases exactly these arrays.
        """
        past: _Past = self._past  # type: ignore[attr-defined]
        values = {name: flat_doubles(leaves_of(part.value)) for name, part in parts.items()}
        return past.begin(values, std, self.column, step)

    def add_noise(
        self, parts: Mapping[str, Bounded], std: Mapping[str, float], draw: DrawNoise
    ) -> dict[str, Any]:
        """Release what `covered` prepared, in place of the sums, and remember the noise."""
        past: _Past = self._past  # type: ignore[attr-defined]
        waiting = past.take(parts)
        released: dict[str, Any] = {}
        for name, part in parts.items():
            value = waiting[name]
            draw.add(name, [value], std[name], "gaussian")
            value /= self.column[0]
            past.remember(name, (value - flat_doubles(leaves_of(part.value))) / std[name])
            _write(part, value)
            released[name] = part.value
        past.finish()
        return released

    # ------------------------------------------------------------------------- kill and resume

    def restart(self) -> None:
        """Forget the past: columns of C are cut off here, which makes no row's share larger."""
        object.__setattr__(self, "_past", _Past(self.bands - 1))

    def state(self) -> dict[str, Any]:
        """The next step and the past noises: all that a resumed run needs. Keep it secret."""
        past: _Past = self._past  # type: ignore[attr-defined]
        return past.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        object.__setattr__(self, "_past", _Past.of_state(self.bands - 1, state))

    def config(self) -> dict[str, Any]:
        """Return the settings that the ledger's header holds."""
        return super().config() | {"column": list(self.column)}


class _Past:
    """The noises of the last ``depth`` releases, newest first, in units of each step's std."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.step = 0
        self.noises: dict[str, deque[Doubles]] = {}
        self.waiting: dict[str, Doubles] | None = None

    def begin(
        self,
        values: Mapping[str, Doubles],
        std: Mapping[str, float],
        column: Sequence[float],
        step: int,
    ) -> dict[str, Doubles]:
        if step != self.step:
            raise UnsoundRelease(
                f"correlated noise must be added step after step. Got step {step} instead of "
                f"{self.step}. Resume from a checkpoint of the step, with its past noises."
            )
        sizes = {name: len(value) for name, value in values.items()}
        known = {name: len(noises[0]) for name, noises in self.noises.items() if noises}
        if known and known != sizes:
            raise UnsoundRelease(
                f"correlated noise must be added to the same parts at every step. Got {sizes} "
                f"instead of {known}."
            )
        self.waiting = {}
        for name, value in values.items():
            covered = value * column[0]
            for entry, noise in zip(column[1:], self.noises.get(name, ()), strict=False):
                subtract_multiple(covered, noise, entry * std[name])
            self.waiting[name] = covered
        return self.waiting

    def take(self, parts: Mapping[str, Bounded]) -> dict[str, Doubles]:
        waiting, self.waiting = self.waiting, None
        if waiting is None or waiting.keys() != parts.keys():
            raise UnsoundRelease(
                "correlated noise must be added to what covered(parts, std, step) prepared. Got "
                f"{sorted(parts)} without that. Ask for it first."
            )
        return waiting

    def remember(self, name: str, noise: Doubles) -> None:
        self.noises.setdefault(name, deque(maxlen=self.depth)).appendleft(noise)

    def finish(self) -> None:
        self.step += 1

    def state(self) -> dict[str, Any]:
        noises = {name: list(kept) for name, kept in self.noises.items()}
        return {"step": self.step, "noises": noises}

    @staticmethod
    def of_state(depth: int, state: Mapping[str, Any]) -> _Past:
        past = _Past(depth)
        past.step = int(state["step"])
        wanted = min(depth, past.step)
        for name, kept in state["noises"].items():
            if len(kept) != wanted:
                raise ConfigurationError(
                    f"the state of {depth + 1} bands after {past.step} steps must hold {wanted} "
                    f"past noises. Got {len(kept)} instead: it is of another run."
                )
            past.noises[name] = deque((flat_doubles([noise]) for noise in kept), maxlen=depth)
        return past


def _write(part: Bounded, values: Doubles) -> None:
    """Overwrite the leaves of a part, in order."""
    first = 0
    for leaf in leaves_of(part.value):
        kind = KINDS[type(leaf)]
        last = first + kind.size(leaf)
        kind.write(leaf, values[first:last])
        first = last


def inverse_column(column: Sequence[float], size: int) -> np.ndarray:
    """The first ``size`` entries of the first column of C^-1."""
    out = np.zeros(size)
    for t in range(size):
        unit = 1.0 if t == 0 else 0.0
        earlier = sum(column[k] * out[t - k] for k in range(1, min(len(column), t + 1)))
        out[t] = (unit - earlier) / column[0]
    return out
