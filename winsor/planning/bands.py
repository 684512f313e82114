"""Correlated noise: its coefficients, the number of its bands, and what they gain. No torch here.

Noise C^-1 z instead of z, with C lower-triangular, Toeplitz and banded: its first column is
(c_0, ..., c_(b-1), 0, ...) with norm 1. What a step adds, later steps take back in part, so the
*sum* of the noise over many steps, which is what ends up in the weights, stays smaller.

    price     a row must stay away for b - 1 steps after each visit: it visits at b times the rate,
              ceil(T/b) times (`CyclicPoisson`); the noise z must be louder than at b = 1
    gain      the error of prefix sums, s |A C^-1|_F / sqrt(T), A = running sums of the updates

More bands gain more and cost more. Few epochs or a large epsilon favour many; a long run with a
small epsilon favours one, which is DP-SGD. `choose` computes both and takes the smallest error.

Guarantee
---------
None is needed: every choice is certified alike. A bad choice costs accuracy only.

References
----------
Choquette-Choo et al. 2023 (arXiv 2306.08153); Henzinger, Upadhyay & Upadhyay 2023 and Kalinin &
Lampert 2024 (arXiv 2405.13763) for the square-root coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, signal

from winsor.core.contract import CalibrationError, ConfigurationError, Neighbouring
from winsor.core.noise.banded import BandedGaussian, square_root_coefficients
from winsor.core.noise.gaussian import Gaussian
from winsor.core.sampling.samplers import Poisson
from winsor.planning.run import PARTS, PlannedRun

Array = NDArray[np.float64]

MOST_BANDS = 64
"""More are not tried: each costs the memory of a gradient."""

WORTHWHILE = 0.98
"""More bands must lower the error to this share of what fewer give."""

_LONGEST = 4096  # steps for which coefficients are optimised; a longer run uses those of so many
_COLUMNS = 256  # of A C^-1 that are computed where the learning rate varies


@dataclass(frozen=True)
class Workload:
    """The training that the noise passes through: SGD with momentum and learning rates.

    ``learning_rates`` has one entry per step, or is None for a constant rate. Only its shape
    matters.
    """

    steps: int
    momentum: float = 0.0
    learning_rates: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 <= self.momentum < 1:
            raise ConfigurationError(
                "steps must be at least 1 and momentum in [0, 1). Got "
                f"{self.steps!r} and {self.momentum!r} instead."
            )
        if self.learning_rates is not None and len(self.learning_rates) != self.steps:
            raise ConfigurationError(
                f"learning_rates must have one entry for each of {self.steps} steps. Got "
                f"{len(self.learning_rates)} instead."
            )

    def error(self, column: Array) -> float:
        """Return the root mean square of the noise in the weights: |A C^-1|_F / sqrt(T).

        A = (prefix sums)(learning rates)(momentum); the last two factors with C^-1 are a filter.
        """
        impulse = np.zeros(self.steps)
        impulse[0] = 1.0
        response = signal.lfilter([1.0], np.convolve(column, [1.0, -self.momentum]), impulse)
        if self.learning_rates is None:
            squares = np.cumsum(response) ** 2  # of the noise of one step, by its age
            return math.sqrt(float(np.mean(np.cumsum(squares))))
        rates = np.asarray(self.learning_rates, float)
        starts = np.unique(np.linspace(0, self.steps - 1, min(self.steps, _COLUMNS)).astype(int))
        columns = [
            float(np.sum(np.cumsum(rates[j:] * response[: self.steps - j]) ** 2)) for j in starts
        ]
        total = float(np.mean(np.interp(np.arange(self.steps), starts, columns)))
        return math.sqrt(total)


def optimised_coefficients(bands: int, workload: Workload) -> Array:
    """Return the first column of C, of norm at most 1, fitted to the run.

    The search starts at the coefficients of the square root, and its result is never worse. It is
    written with few digits, so that the same run finds the same column.
    """
    start = square_root_coefficients(bands)
    if bands == 1:
        return start
    rates = workload.learning_rates
    fitting = workload
    if workload.steps > _LONGEST:
        kept = None if rates is None else tuple(rates[:: -(-workload.steps // _LONGEST)])
        fitting = Workload(_LONGEST if kept is None else len(kept), workload.momentum, kept)

    def log_error(tail: Array) -> float:
        column = np.concatenate([[1.0], tail])
        return math.log(fitting.error(column / math.sqrt(float(column @ column))))

    with np.errstate(over="ignore", invalid="ignore"):  # a column that blows up is far from best
        found = optimize.minimize(log_error, start[1:] / start[0], method="L-BFGS-B")
    column = np.concatenate([[1.0], np.asarray(found.x, float)])
    column = np.floor(column / math.sqrt(float(column @ column)) * 1e6) / 1e6
    column /= max(1.0, math.sqrt(float(column @ column)))
    better = workload.error(column) < workload.error(start)
    return np.asarray(column if better else start, float)


@dataclass(frozen=True)
class Bands:
    """One number of bands: the noise that the budget needs, its error over that of one band, C."""

    bands: int
    noise_multiplier: float
    relative_error: float
    column: tuple[float, ...]


def compare(
    workload: Workload,
    rate: float,
    epsilon: float,
    delta: float,
    candidates: Sequence[int] | None = None,
    *,
    optimised: bool = False,
) -> list[Bands]:
    """Compare the numbers of bands that are worth trying at a sampling rate.

    >>> for row in compare(Workload(100), 0.01, 8.0, 1e-5, [1, 16]):
    ...     print(row.bands, round(row.relative_error, 2))
    1 1.0
    16 0.55
    """
    plain = _noise(1, workload.steps, rate, epsilon, delta)
    unit = plain * workload.error(square_root_coefficients(1))
    rows = []
    for bands in candidates if candidates is not None else powers_of_two(workload.steps, rate):
        noise = plain if bands == 1 else _noise(bands, workload.steps, rate, epsilon, delta)
        column = (
            optimised_coefficients(bands, workload)
            if optimised
            else square_root_coefficients(bands)
        )
        error = noise * workload.error(column) / unit
        rows.append(Bands(bands, noise, error, tuple(column.tolist())))
    return rows


def choose(
    workload: Workload, rate: float, epsilon: float, delta: float, *, optimised: bool = False
) -> Bands:
    """Choose the number of bands (1, 2, 4, ...) with the smallest error at this budget.

    More bands take memory: they are chosen only where they lower the error by a few per cent.
    """
    best: Bands | None = None
    for row in compare(workload, rate, epsilon, delta, optimised=optimised):
        if best is None or row.relative_error < WORTHWHILE * best.relative_error:
            best = row
    assert best is not None
    return best


def powers_of_two(steps: int, rate: float) -> list[int]:
    """Return 1, 2, 4, ... while a group has the rows of a step and the run is long enough."""
    most = min(MOST_BANDS, steps, math.floor(1 / rate + 1e-9))
    return [2**k for k in range(max(1, most).bit_length())]


def _noise(bands: int, steps: int, rate: float, epsilon: float, delta: float) -> float:
    if bands * rate > 1 + 1e-9:
        raise CalibrationError(
            f"bands must be at most 1/rate = {1 / rate:g}. Got {bands} instead. Use fewer bands."
        )
    # A row visits at b times the rate, once in b steps; the event does not depend on n.
    sampler = Poisson(1, min(1.0, bands * rate))
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    run = PlannedRun(sampler, PARTS, "gaussian", relation, delta, -(-steps // bands))
    return run.noise_for(epsilon)


@dataclass(frozen=True)
class Banded:
    """Noise correlated over steps: ``mechanism=Banded(bands=16)``, or ``Banded()`` to choose.

    ``optimised`` fits the coefficients to the run instead of taking those of the square root.

    Examples
    --------
    >>> import torch, winsor
    >>> from torch.utils.data import TensorDataset
    >>> model = torch.nn.Linear(3, 2)
    >>> private = winsor.make_private(
    ...     model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    ...     dataset=TensorDataset(torch.randn(1000, 3), torch.zeros(1000, dtype=torch.long)),
    ...     rule=winsor.rules.Flat(1.0), batch_size=20, steps=50, epsilon=8.0, delta=1e-4,
    ...     mechanism=winsor.Banded(),
    ... )
    >>> print(private.sampler)
    CyclicPoisson(n=1000, rate=0.02, 32 groups)
    """

    bands: int | None = None
    optimised: bool = False
    column: tuple[float, ...] | None = None
    """Set by `settled`."""

    def __post_init__(self) -> None:
        if self.bands is not None:
            square_root_coefficients(self.bands)  # refuses what is not a number of bands

    def settled(
        self, workload: Workload, rate: float, epsilon: float | None, delta: float
    ) -> Banded:
        """Return the choice with its coefficients.

        A number of bands that was left open is the one with the smallest error at this budget.
        """
        if self.bands is None:
            if epsilon is None:
                raise ConfigurationError(
                    "bands can be chosen for a target epsilon only. Got none instead: give "
                    "epsilon, or Banded(bands=...)."
                )
            chosen = choose(workload, rate, epsilon, delta, optimised=self.optimised)
            return Banded(chosen.bands, self.optimised, chosen.column)
        column = (
            optimised_coefficients(self.bands, workload)
            if self.optimised
            else square_root_coefficients(self.bands)
        )
        return Banded(self.bands, self.optimised, tuple(column.tolist()))

    def with_noise(self, noise_multiplier: float, expected_size: float) -> Gaussian:
        """Return the mechanism; with one band it is ordinary Gaussian noise."""
        if self.column is None:
            raise ConfigurationError(
                "bands must be settled before noise is built. Got none instead. Call settled(...) "
                "with what the run is."
            )
        if len(self.column) == 1:
            return Gaussian(noise_multiplier)
        return BandedGaussian(noise_multiplier, self.column)
