"""Algorithm 1 as printed on a linear model, at a small part of what it costs step by step.

`winsor_papers.dc_dpsgd.Algorithm1` is the reference: it draws and orthonormalises k dense
directions in every step, and gradients row by row. The same steps are taken here

* without directions where they cannot matter. A trace lies in [0, 1/k], the noise on it is wider by
  far: most rows are in the tail or out of it whatever their traces are. Directions are drawn only
  for a step with rows in doubt, and traces are computed of these rows;
* with traces from the Gram matrix: |V'g|^2 = (D'g)' (D'D)^-1 (D'g) for V an orthonormal basis of
  the columns of D;
* with one noise vector in place of one per record: their weighted sum is normal with standard
  deviation sigma_dp |bounds|;
* with both readings of line 10 side by side: runs of a seed share batches and directions.

Given the same draws, tails and sums are those of the reference
(`tests/papers/reproductions/dc_dpsgd/test_printed_runs.py`). Nothing here is certified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from torch import Tensor, nn

from winsor.core.randomness import new_key, stream
from winsor.core.sampling.samplers import Poisson
from winsor_papers.dc_dpsgd import DcDpsgdRun
from winsor_papers.dc_dpsgd.algorithm import weibull_directions
from winsor_papers.reproductions.dc_dpsgd.descent import DescentTask

Array = NDArray[np.float64]
Traces = Callable[[NDArray[np.int64]], Array]
"""Of the rows that are in doubt."""
Look = Callable[[int, int, nn.Module], None]
"""(number of the run, steps done, model)."""


@dataclass(frozen=True)
class Subspaces:
    """How directions are drawn in every step."""

    k: int
    theta: float

    @property
    def largest(self) -> float:
        """Of a trace: a direction within the subspace, with the printed factor 1/k."""
        return 1 / self.k

    def traces(self, gradients: Array, directions: Array) -> Array:
        """Lines 6 to 8 for some rows; 0 for a gradient of norm 0."""
        inner = gradients @ directions
        within = cho_solve(cho_factor(directions.T @ directions), inner.T)
        squares = np.einsum("ij,ij->i", gradients, gradients)
        found: Array = np.einsum("ij,ji->i", inner, within) / np.where(squares > 0, squares, 1.0)
        return found / self.k


def tail_of(noise: Array, size: int, largest: float, traces: Traces) -> NDArray[np.bool_]:
    """Line 9: the ``size`` rows with the largest noisy traces, which lie in [0, largest] unnoised.

    ``traces`` is asked for the rows whose place the noise alone does not decide.
    """
    tail = np.zeros(len(noise), dtype=bool)
    if not 0 < size < len(noise):
        tail[:] = size > 0
        return tail
    ordered = np.sort(noise)[::-1]
    first_out, last_in = ordered[size], ordered[size - 1]
    tail[noise > first_out + largest] = True  # at most size - 1 rows can come before these
    doubtful = np.flatnonzero(~tail & (noise + largest >= last_in))
    left = size - int(tail.sum())
    if len(doubtful) == left:
        tail[doubtful] = True
        return tail
    noisy = noise[doubtful] + traces(doubtful)
    tail[doubtful[np.argsort(-noisy, kind="stable")[:left]]] = True
    return tail


def run_printed(
    tasks: Sequence[DescentTask],
    accounts: Sequence[DcDpsgdRun],
    subspaces: Subspaces,
    seed: int,
    look: Look,
) -> None:
    """One run for each account, all of one seed and on the same rows, at the rate of its task;
    ``look`` sees every model after every step."""
    task = tasks[0]
    torch.manual_seed(seed)
    model = task.model()
    assert isinstance(model, nn.Linear) and model.bias is not None
    shared, key = accounts[0], new_key(seed)
    sampler = Poisson(shared.records, shared.sampling_probability)
    runs = [_Run(account, model) for account in accounts]
    for t in range(task.steps):
        batch = torch.from_numpy(sampler.indices(key, t).copy())
        x, y = task.train[0][batch].double(), task.train[1][batch]
        noise = shared.sigma_trace * stream(key, "printed traces", t).standard_normal(len(y))
        drawn = _Directions(subspaces, key, t, (x.shape[1] + 1) * model.out_features)
        for place, run in enumerate(runs):
            run.step(x, y, noise, drawn, stream(key, f"printed noise {place}", t))
            run.descend(tasks[place].descent.lr)
            look(place, t + 1, run.into(model))


def noise_std(account: DcDpsgdRun, bounds: Array) -> float:
    """Of the noise on the sum: of a draw for each record, or of one for each of the two sums."""
    if account.reading == "per record":
        return float(account.sigma_gradient * np.linalg.norm(bounds))
    return account.noise_std


class _Directions:
    """The directions of one step, drawn when somebody asks."""

    def __init__(self, subspaces: Subspaces, key: bytes, step: int, size: int) -> None:
        self.subspaces = subspaces
        self._key, self._step, self._size = key, step, size
        self._drawn: Array | None = None

    def drawn(self) -> Array:
        if self._drawn is None:
            generator = stream(self._key, "printed directions", self._step)
            shape = (self._size, self.subspaces.k)
            self._drawn = weibull_directions(generator, shape, self.subspaces.theta)
        return self._drawn


class _Run:
    """The state of one run, in double precision as the reference has it."""

    def __init__(self, account: DcDpsgdRun, model: nn.Linear) -> None:
        self.account = account
        with torch.no_grad():
            self.weight = model.weight.double().clone()
            self.bias = model.bias.double().clone()
        self.gradient: Array

    def step(
        self, x: Tensor, y: Tensor, noise: Array, drawn: _Directions, generator: np.random.Generator
    ) -> None:
        """Lines 5 to 11; ``noise`` is that on the traces."""
        account = self.account
        residuals = torch.softmax(torch.addmm(self.bias, x, self.weight.T), 1)
        residuals[torch.arange(len(y)), y] -= 1
        norms = (residuals.square().sum(1) * (x.square().sum(1) + 1)).sqrt().numpy()

        def traces(rows: NDArray[np.int64]) -> Array:
            outer = residuals[rows][:, :, None] * x[rows][:, None, :]
            gradients = torch.cat([outer.flatten(1), residuals[rows]], 1).numpy()
            return drawn.subspaces.traces(gradients, drawn.drawn())

        size = round(account.tail_fraction * account.batch)
        tail = tail_of(noise, size, drawn.subspaces.largest, traces)
        bounds = np.where(tail, account.c1, account.c2)
        weights = torch.from_numpy(1 / np.maximum(1.0, norms / bounds))
        scaled = residuals * weights[:, None]
        clipped = torch.cat([(scaled.T @ x).flatten(), scaled.sum(0)]).numpy()
        normals = generator.standard_normal(len(clipped))
        self.gradient = (clipped + noise_std(account, bounds) * normals) / account.batch

    def descend(self, rate: float) -> None:
        """Line 12."""
        weight, bias = np.split(self.gradient, [self.weight.numel()])
        self.weight -= rate * torch.from_numpy(weight).view_as(self.weight)
        self.bias -= rate * torch.from_numpy(bias)

    def into(self, model: nn.Linear) -> nn.Linear:
        """The model with these weights."""
        with torch.no_grad():
            model.weight.copy_(self.weight)
            model.bias.copy_(self.bias)
        return model
