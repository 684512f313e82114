"""The methods that paper 1 compares, each with the noise it is trained with.

    DP-SGD, Auto-S, DP-PSAC   bound c2; claim and certificate agree, so one run
    DC-DPSGD                  tail by rank of the trace. Published: one noise for each of the two
                              sums, from eps_dp. Certified: the noise that epsilon needs at shift
                              2 c1 - c2
    DC-DPSGD, public code     the same rule under the noise which the authors' code adds
    DC-DPSGD, by norm         the certified design: tail iff the norm exceeds a privately tracked
                              quantile; shift c1, no budget for identification
    DC-DPSGD, by loss         the same with each row's loss in place of its norm
    DC-DPSGD, by coin         tail by a secret coin of each row: what the ranking comes to under
                              the noise of its traces, certified as the mixture that it is

The published runs rank by the exact trace. Algorithm 1 adds noise to the traces; after it the
ranking would be uniform (docs/privacy.md, published claims), so leaving it out favours the paper.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from winsor.rules.automatic import PSAC, Automatic
from winsor.rules.discriminative import Discriminative, Subspace
from winsor.rules.flat import Flat
from winsor.rules.quantile import QuantileTracker
from winsor.rules.rule import Rule
from winsor_papers.dc_dpsgd.claim import DcDpsgdRun
from winsor_papers.reproductions.dc_dpsgd.descent import DescentTask
from winsor_papers.reproductions.dc_dpsgd.runs import (
    SeedOutcomes,
    noise_for,
    plain_runs,
    private_runs,
    tuned,
)
from winsor_papers.reproductions.reproduction import Line

DC, DC_CODE = "DC-DPSGD", "DC-DPSGD, public code"
DC_NORM, DC_LOSS, DC_COIN = "DC-DPSGD, by norm", "DC-DPSGD, by loss", "DC-DPSGD, by coin"
DC_CERTIFIED = "DC-DPSGD, certified"  # not a line of its own: its rate may differ
NON_PRIVATE = "non-private"


@dataclass(frozen=True)
class DcSetting:
    """Parameters of DC-DPSGD; the defaults are those of section 6.1 and Appendix G.1."""

    c1: float = 1.0
    c2: float = 0.1
    tail_fraction: float = 0.1
    published_trace_epsilon: float = 4.0
    published_gradient_epsilon: float = 4.0
    k: int | None = 200
    """None: no subspace, which is read as a tail chosen at random."""
    theta: float = 2.0
    reading: str = "two noises"

    @property
    def epsilon(self) -> float:
        return self.published_trace_epsilon + self.published_gradient_epsilon

    def rule(self) -> Discriminative:
        """Algorithm 1's clipping: the top p of a batch by trace, or a random tail without k."""
        return Discriminative(
            self.c1,
            self.c2,
            selection="random" if self.k is None else "rank",
            tail_fraction=self.tail_fraction,
            subspace=Subspace(k=self.k or 200, theta=self.theta),
        )

    def by_norm(self) -> Discriminative:
        """The certified design at the same tail fraction."""
        return self._tracked("norm", self.c1)

    def by_loss(self) -> Discriminative:
        """The same with losses; the threshold starts at that of a uniform guess of ten classes."""
        return self._tracked("loss", math.log(10))

    def by_coin(self) -> Discriminative:
        """A random tail of the same fraction."""
        return replace(self, k=None).rule()

    def _tracked(self, selection: str, start: float) -> Discriminative:
        tracker = QuantileTracker(target=1 - self.tail_fraction, share=0.05)
        return Discriminative(
            self.c1, self.c2, selection=selection, threshold=start, tracker=tracker
        )


@functools.cache
def account_of(
    setting: DcSetting, batch: int, records: int, steps: int, delta: float
) -> DcDpsgdRun:
    """The paper's account of a run with these parameters."""
    return DcDpsgdRun(
        setting.published_trace_epsilon,
        setting.published_gradient_epsilon,
        delta,
        setting.c1,
        setting.c2,
        setting.tail_fraction,
        batch,
        records,
        steps,
        setting.reading,
    )


def published_multiplier(task: DescentTask, setting: DcSetting) -> float:
    """The paper's noise over the certified sensitivity of `DcSetting.rule`."""
    run = account_of(setting, task.batch_size, len(task.train[1]), task.steps, task.delta)
    return run.noise_multiplier("random" if setting.k is None else "rank")


def published_runs(task: DescentTask, setting: DcSetting, seeds: Sequence[int]) -> SeedOutcomes:
    """Trained with the noise that the paper's account asks for."""
    return private_runs(task, setting.rule(), published_multiplier(task, setting), seeds)


def certified_runs(task: DescentTask, setting: DcSetting, seeds: Sequence[int]) -> SeedOutcomes:
    """The same clipping with the noise that the setting's epsilon really needs."""
    rule = setting.rule()
    return private_runs(task, rule, noise_for(task, rule, setting.epsilon), seeds)


def baselines(setting: DcSetting) -> dict[str, Rule]:
    """The paper's private baselines. It prints no bound for them; c1 = c2 "is" DP-SGD, so c2."""
    return {
        "DP-SGD": Flat(setting.c2),
        "Auto-S": Automatic(setting.c2),
        "DP-PSAC": PSAC(setting.c2),
    }


def readings(setting: DcSetting) -> dict[str, Rule]:
    """Who is in the tail decided by each row for itself: certified at shift c1 or less."""
    return {
        DC_NORM: setting.by_norm(),
        DC_LOSS: setting.by_loss(),
        DC_COIN: setting.by_coin(),
    }


METHODS = ("DP-SGD", "Auto-S", "DP-PSAC", DC, DC_CODE, DC_NORM, DC_LOSS, DC_COIN, NON_PRIVATE)


def measured_line(
    method: str,
    task: DescentTask,
    setting: DcSetting,
    seeds: Sequence[int],
    printed: str | None,
    name: str | None = None,
) -> Line:
    """One method on one data set, each reading at the best of its rates.

    The line is about ``name``, the task's own if left out: two lines at another epsilon share what
    does not depend on it.
    """
    label = {"data": name or task.name, "method": method}
    if method == NON_PRIVATE:
        return Line(label, printed, published=plain_runs(task, seeds).measured)
    if method == DC_CODE:
        coded = replace(setting, reading="public code")
        at, curve = tuned(
            task, method, lambda on, some: published_runs(on, coded, some), refined=True
        )
        claimed = published_runs(at, coded, seeds)
        extra = _tried(published=curve)
        return Line(
            label, printed, claimed.measured, published_certifies=claimed.epsilon, extra=extra
        )
    if method == DC:
        return _discriminative_line(label, task, setting, seeds, printed)
    rule = (baselines(setting) | readings(setting))[method]

    def run(on: DescentTask, some: Sequence[int]) -> SeedOutcomes:
        return private_runs(on, rule, noise_for(on, rule, setting.epsilon), some)

    at, curve = tuned(task, method, run, refined=True)
    sound = run(at, seeds)
    return Line(label, printed, None, sound.measured, sound.epsilon, extra=_tried(certified=curve))


def _discriminative_line(
    label: dict[str, str],
    task: DescentTask,
    setting: DcSetting,
    seeds: Sequence[int],
    printed: str | None,
) -> Line:
    at, curve = tuned(task, DC, lambda on, some: published_runs(on, setting, some), refined=True)
    claimed = published_runs(at, setting, seeds)
    at, other = tuned(
        task, DC_CERTIFIED, lambda on, some: certified_runs(on, setting, some), refined=True
    )
    sound = certified_runs(at, setting, seeds)
    return Line(
        label, printed, claimed.measured, sound.measured, sound.epsilon, claimed.epsilon,
        _tried(certified=other, published=curve),
    )  # fmt: skip


def _tried(certified: str = "", published: str = "") -> dict[str, str]:
    """The curves of the tuning, for the columns of the table."""
    curves = {"rates tried": certified, "rates tried, published": published}
    return {name: curve for name, curve in curves.items() if curve}
