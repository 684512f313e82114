"""Many runs of stochastic descent at once: one batch of rows moves every run's coefficients.

    S = W X'          scores of the batch under every run, one row of W per run
    R = l'(S, y)      residuals; the runs that clip rows limit theirs, |r_i| |x_i| <= C
    G = R X / m       mean gradients; the runs that clip the average scale theirs to lambda
    W <- Proj(W - rate (G + noise))

The arithmetic of a step is that of `winsor.tables.AveragedDescent` (constrained or not) and of
`winsor.tables.FlatDescent.plain`, and so are the answers: the average of x^0 .. x^{N-1} for the
former, of x^1 .. x^N for the latter. Given an estimator's batches and noise, the coefficients are
the estimator's (`tests/papers/reproductions/aclip/test_lockstep.py`).

Nothing here is private: batches and noise come from whoever calls, and there is no ledger. It is
for made-up rows, where an estimator's 200,000 steps would spend most of their time in Python. The
library made from `_lockstep.c` takes the steps where there is a compiler, numpy elsewhere.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from winsor.core import compiled
from winsor.tables.design import Design

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

SOURCE = Path(__file__).with_name("_lockstep.c")
TOGETHER = 256
"""Steps whose batches and noise are drawn together."""


@dataclass(frozen=True)
class Run:
    """One of the runs of a lockstep."""

    clipped: Literal["average", "rows"]
    clip: float
    rate: float
    radius: float
    """Of the ball that iterates are projected on; infinite where they are not."""
    std: float
    """Of the noise in a coordinate of the mean gradient."""


@dataclass(frozen=True)
class Draws:
    """What some consecutive steps leave to chance."""

    batches: tuple[Indices, ...]
    noise: Array
    """(steps, runs, d), in the mean gradients."""

    def between(self, first: int, end: int) -> Draws:
        return Draws(self.batches[first:end], self.noise[first:end])


class Lockstep:
    """The state of the runs, all of which start at zero."""

    def __init__(self, x: Array, y: Array, task: str, runs: Sequence[Run], batch_size: float):
        self.d, self.task, self.batch_size = x.shape[1], task, batch_size
        # what a step needs of a row stands side by side: one gather
        self.table = np.column_stack([x, y, Design(x, False).limits(1.0)])
        self.before = np.array([run.clipped == "average" for run in runs])
        clips = np.array([run.clip for run in runs])
        self.bounds = np.where(self.before, np.inf, clips)
        self.lambdas = np.where(self.before, clips / (1 + 1e-12), np.inf)
        self.radii = np.array([run.radius for run in runs])
        self.rates = np.array([run.rate for run in runs])
        self.steps = 0
        self.w = np.zeros((len(runs), self.d))
        self.total = np.zeros((len(runs), self.d))

    def advance(self, draws: Draws) -> None:
        """Take the steps that ``draws`` is for."""
        found = library()
        if found is None:
            by_numpy(self, draws)
        else:
            found.advance(self, draws)
        self.steps += len(draws.batches)

    def answers(self) -> Array:
        """(runs, d): what each run would answer with if it ended here."""
        total = self.total.copy()
        total[self.before] -= self.w[self.before]  # x^0 = 0 takes the place of x^N
        return total / self.steps


def answers_at(state: Lockstep, draws: Iterable[Draws], kept: Sequence[int]) -> Array:
    """(points, runs, d): the answers after the steps ``kept``, which ascend."""
    found = []
    for block in draws:
        end = state.steps + len(block.batches)
        stops = [step for step in kept if state.steps < step <= end]
        for stop in stops:
            block, rest = _divided(block, stop - state.steps)
            state.advance(block)
            found.append(state.answers())
            block = rest
        state.advance(block)
    if not np.isfinite(state.w).all():
        raise FloatingPointError("a run of a lockstep has diverged: estimators would go on")
    return np.array(found)


def _divided(block: Draws, at: int) -> tuple[Draws, Draws]:
    return block.between(0, at), block.between(at, len(block.batches))


# ------------------------------------------------------------------------------------- the steps


def by_numpy(state: Lockstep, draws: Draws) -> None:
    """Take the steps of ``draws``, in numpy."""
    d, w = state.d, state.w
    flat = ~state.before
    with np.errstate(divide="ignore"):  # a mean or an iterate of length zero is not scaled
        for picked, z in zip(draws.batches, draws.noise, strict=True):
            rows = state.table.take(picked, axis=0)
            part = rows[:, :d]
            residual = w @ part.T
            if state.task == "logistic":
                torch.sigmoid_(torch.from_numpy(residual))
            residual -= rows[:, d]
            limits = state.bounds[flat, None] * rows[:, d + 1]
            residual[flat] = np.clip(residual[flat], -limits, limits)
            slope = residual @ part
            slope /= state.batch_size
            _into_balls(slope, state.lambdas)
            slope += z
            w -= state.rates[:, None] * slope
            _into_balls(w, state.radii)
            state.total += w


def _into_balls(points: Array, radii: Array) -> None:
    """Each row into the ball of its radius, in place."""
    lengths = np.sqrt(np.einsum("ij,ij->i", points, points))
    points *= np.minimum(1.0, radii / lengths)[:, None]


class _Given(ctypes.Structure):
    """`lockstep_t` of the C file."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("steps", "d", "runs", "logistic")),
        ("batch_size", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("cuts", "picked", "table", "noise")),
        *((name, ctypes.c_void_p) for name in ("bounds", "lambdas", "radii", "rates")),
        *((name, ctypes.c_void_p) for name in ("w", "total")),
    ]


class Compiled:
    """The same steps by the library."""

    def __init__(self, path: Path) -> None:
        found = ctypes.CDLL(str(path))
        if not found.winsor_supported():
            raise OSError("the processor has no AVX2 and FMA instructions")
        self._steps = found.winsor_lockstep
        self._steps.argtypes, self._steps.restype = [ctypes.c_void_p], ctypes.c_int64

    def advance(self, state: Lockstep, draws: Draws) -> None:
        runs = len(state.rates)
        side_by_side = [
            padded(part) for part in (state.bounds, state.lambdas, state.radii, state.rates)
        ]
        sizes = [len(batch) for batch in draws.batches]
        cuts = np.cumsum([0, *sizes], dtype=np.int64)
        picked = np.concatenate([np.zeros(0, np.int64), *draws.batches])
        noise, w, total = np.ascontiguousarray(draws.noise), padded(state.w), padded(state.total)
        arrays = (cuts, picked, state.table, noise, *side_by_side, w, total)
        logistic = state.task == "logistic"
        given = _Given(
            len(sizes), state.d, runs, logistic, state.batch_size, *(a.ctypes.data for a in arrays)
        )
        refused = self._steps(ctypes.addressof(given))
        if refused:
            by_numpy(state, draws)
        else:
            state.w[...], state.total[...] = w.T[:runs], total.T[:runs]


def padded(part: Array) -> Array:
    """(runs, ...) with the runs last, and of them a multiple of four."""
    wide = np.zeros((*part.shape[1:], -(-len(part) // 4) * 4))
    wide[..., : len(part)] = part.T
    return wide


@functools.cache
def library() -> Compiled | None:
    return compiled.load(SOURCE, Compiled, _agrees)


def _agrees(found: Compiled) -> bool:
    """Whether five steps of both tasks are those of numpy, but for rounding."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 3)), rng.integers(0, 2, 60).astype(float)
    runs = [
        Run("rows", 0.5, 0.9, math.inf, 0.1), Run("average", 0.1, 0.9, 0.2, 0.1),
        Run("average", 9.0, 0.9, math.inf, 0.0), Run("rows", 9.0, 0.9, math.inf, 0.1),
        Run("average", 0.1, 0.9, math.inf, 0.1),
    ]  # fmt: skip
    for task in ("logistic", "ridge"):
        states = [Lockstep(x, y, task, runs, 20) for _ in range(2)]
        for block in chance(np.random.default_rng(1), 60, 20, runs, 3, 5):
            found.advance(states[0], block)
            by_numpy(states[1], block)
        if not np.allclose(states[0].total, states[1].total, rtol=1e-12, atol=1e-13):
            return False
    return True


# ------------------------------------------------------------------------------------- the draws


def chance(
    rng: np.random.Generator, n: int, batch_size: float, runs: Sequence[Run], d: int, steps: int
) -> Iterator[Draws]:
    """Poisson batches that all runs share, and noise of its own for every run and step."""
    stds = np.array([[run.std] for run in runs])
    for first in range(0, steps, TOGETHER):
        count = min(TOGETHER, steps - first)
        noise = rng.standard_normal((count, len(runs), d)) * stds
        yield Draws(poisson_batches(rng, n, batch_size / n, count), noise)


def poisson_batches(rng: np.random.Generator, n: int, q: float, steps: int) -> tuple[Indices, ...]:
    """Each row joins each batch independently with probability q.

    The coin flips of all steps lie in one row, and the gaps between heads are geometric: one plus
    the whole part of an exponential over -log(1 - q).
    """
    if q >= 1:
        return (np.arange(n),) * steps
    flips = steps * n
    ask = int(flips * q + 6 * math.sqrt(flips * q)) + 16
    found, last = [], -1
    while last < flips:
        gaps = (rng.standard_exponential(ask) / -math.log1p(-q)).astype(np.int64) + 1
        found.append(last + np.cumsum(gaps))
        last = int(found[-1][-1])
    heads = np.concatenate(found)
    cuts = np.searchsorted(heads, np.arange(steps + 1) * n)
    return tuple(heads[cuts[t] : cuts[t + 1]] - t * n for t in range(steps))
