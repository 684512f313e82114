"""How the fits of a data set are run: each by itself, or in lockstep where its rows are made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from winsor.tables.linear.task import Method
from winsor_papers.reproductions.aclip import fits
from winsor_papers.reproductions.aclip.fits import ConvexRows, Fit
from winsor_papers.reproductions.aclip.settings import SYNTHETIC, ConvexSetting
from winsor_papers.reproductions.aclip.together import Together

LOCKSTEP = (
    "Synthetic rows: CC, UC, DP-SGD and the baseline of a seed go through the same Poisson "
    "batches in lockstep (`papers/winsor_papers/reproductions/aclip/lockstep.py`), and so do the "
    "seeds of DP-GD through all rows (`truncated.py`), with noise of their own from numpy's "
    "generator and the estimator's arithmetic. Their epsilon is that of the account of the planned "
    "steps, not of a ledger of releases, and they have no seconds of their own. Errors of one seed "
    "share their batches, so that differences are paired; the interval, which takes them as "
    "independent, is if anything too wide."
)


class Runs(Protocol):
    """The fits of one data set and task."""

    def fit(self, method: Method, epsilon: float, noise: float | None, seed: int) -> Fit: ...
    def baseline(self, seed: int) -> Fit: ...


@dataclass(frozen=True)
class Apart:
    """Each fit is an estimator's, and a cell of its own."""

    rows: ConvexRows
    task: str
    setting: ConvexSetting

    def fit(self, method: Method, epsilon: float, noise: float | None, seed: int) -> Fit:
        return fits.fit(self.rows, self.task, method, epsilon, noise, seed)

    def baseline(self, seed: int) -> Fit:
        return fits.baseline(self.rows, self.task, self.setting, seed)


def runs_of(
    data: str,
    rows: ConvexRows,
    task: str,
    setting: ConvexSetting,
    epsilons: Sequence[float],
    seeds: int,
) -> Runs:
    """In lockstep where nobody's rows are at stake: there is then nothing to keep private."""
    if data in SYNTHETIC:
        return Together(rows, task, setting, tuple(epsilons), seeds)
    return Apart(rows, task, setting)
