"""Algorithms 1 and 2 of paper 4 as printed, with their printed noise, for public data.

    a = (1/m) sum_{i in batch} grad f(x^k, xi_i)                   each i with probability m/n
    x^{k+1} = Proj_X(x^k - gamma (AClip(a, lambda) + z^k)),        z^k ~ N(0, s^2 I)
    the answer is the average of x^0 .. x^{N-1}

X is a ball about a point (the paper: about the optimum, Assumption 2) or all of R^d. Algorithm 2
runs this again from its own answer with (lambda_t, m_t, s_t), s_t = lambda_t m_t sqrt(N0
ln(1/delta^)) / (n epsilon^) in its line 2.

Without noise (``noise_std=0``) it is the paper's baseline, "the non-private AClipped-dpSGD method".

Nothing here is certified: what the paper claims is `AclipRun.claim`, for sensitivity lambda. The
certified forms are `winsor.tables.AveragedDescent` and `winsor.tables.Restarted`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import all_positive, at_least, whole
from winsor_papers.theory import RestartSchedule, aclip_noise

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
Gradient = Callable[[Array, Rows], Array]
"""(x, row numbers) -> the sum of their gradients."""


@dataclass(frozen=True)
class PrintedAclip:
    """The inputs of Algorithm 1; ``radius`` None means X = R^d."""

    n: int
    steps: int
    batch_size: float
    lr: float
    clip: float
    noise_std: float
    radius: float | None = None
    centre: Array | None = None

    def __post_init__(self) -> None:
        whole("n", self.n)
        whole("steps", self.steps)
        all_positive(batch_size=self.batch_size, lr=self.lr, clip=self.clip)
        at_least("noise_std", self.noise_std, 0)

    def answers(
        self,
        start: Array,
        gradient: Gradient,
        *,
        seed: int = 0,
        batches: Iterable[Rows] | None = None,
        noise: Sequence[Array] | None = None,
    ) -> Array:
        """(N, d): the answer after 1, 2, ... N steps, so the last row is line 6. Batches and noise
        are drawn from ``seed`` unless they are given."""
        rng = np.random.default_rng(seed)
        given = None if batches is None else iter(batches)
        x, total, found = start.astype(np.float64), np.zeros(start.shape), []
        for k in range(self.steps):
            total = total + x
            found.append(total / (k + 1))
            rows = next(given) if given is not None else _poisson(rng, self.n, self.batch_size)
            average = aclip(gradient(x, rows) / self.batch_size, self.clip)
            z = noise[k] if noise is not None else self.noise_std * rng.standard_normal(x.shape)
            x = self._projected(x - self.lr * (average + z))
        return np.array(found)

    def _projected(self, x: Array) -> Array:
        if self.radius is None:
            return x
        centre = np.zeros_like(x) if self.centre is None else self.centre
        length = float(np.linalg.norm(x - centre))
        return x if length <= self.radius else centre + (x - centre) * (self.radius / length)


def aclip(average: Array, clip: float) -> Array:
    """(2): the average itself, or its direction at length lambda."""
    length = float(np.linalg.norm(average))
    return average if length <= clip else average * (clip / length)


def algorithm_2_stds(schedule: RestartSchedule, n: int) -> tuple[float, ...]:
    """s_t of Algorithm 2, line 2, for every run: (9) with c = 1 at Theorem 5's budget of a run."""
    return tuple(
        aclip_noise(
            clip,
            n=n,
            epsilon=schedule.epsilon_per_run,
            delta=schedule.delta_per_run,
            steps=schedule.steps,
            batch_size=size,
        )
        for clip, size in zip(schedule.clips, schedule.batch_sizes, strict=True)
    )


def restarted_answers(
    schedule: RestartSchedule,
    n: int,
    start: Array,
    gradient: Gradient,
    *,
    seed: int = 0,
    batches: Iterable[Rows] | None = None,
    noise: Sequence[Array] | None = None,
) -> Array:
    """(tau, d): Algorithm 2's answer after every run, with the noise of its line 2."""
    found: list[Array] = []
    given = None if batches is None else iter(batches)
    stds = algorithm_2_stds(schedule, n)
    runs = zip(schedule.clips, schedule.batch_sizes, stds, strict=True)
    for t, (clip, size, std) in enumerate(runs):
        run = PrintedAclip(n, schedule.steps, size, schedule.step_size, clip, std)
        first = t * schedule.steps
        own = None if noise is None else noise[first : first + schedule.steps]
        answers = run.answers(start, gradient, seed=seed + t, batches=given, noise=own)
        start = answers[-1]
        found.append(start)
    return np.array(found)


def _poisson(rng: np.random.Generator, n: int, batch_size: float) -> Rows:
    return np.flatnonzero(rng.random(n) < batch_size / n)
