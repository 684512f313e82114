"""The fits of made-up rows, many in one cell: their steps are taken in lockstep.

All stochastic fits of one seed are a cell, and all fits of DP-GD at one epsilon. Each is a fit that
`fits.fit` could make by itself: its noise is what the estimator would have been told to add, from
the same calibration and the same account. The stochastic ones share their batches, and the baseline
without noise is one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import as_relation
from winsor.core.contract import Sensitivity
from winsor.core.ledger.ledger import Ledger
from winsor.core.prepaid import PrepaidDoor
from winsor.core.randomness import new_key
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment, Target
from winsor.tables.design import Design
from winsor.tables.linear import AveragedDescent, FlatDescent, RobustGD, averaged, flat, robust_gd
from winsor.tables.linear.batches import sampler_of
from winsor.tables.linear.task import LinearTask, Method, Session
from winsor.tables.losses import Squared
from winsor_papers.reproductions.aclip.fits import (
    ConvexRows,
    Fit,
    digits,
    kept_steps,
    relative_error,
)
from winsor_papers.reproductions.aclip.lockstep import Lockstep, Run, answers_at, chance
from winsor_papers.reproductions.aclip.settings import (
    ConvexSetting,
    longer,
    methods_of,
    published_run,
)
from winsor_papers.reproductions.aclip.truncated import truncated_answers
from winsor_papers.reproductions.cells import Values, Wanted, cell

Array = NDArray[np.float64]
Stochastic = AveragedDescent | FlatDescent


@dataclass(frozen=True)
class Member:
    """One fit of a lockstep. ``noise`` None: what epsilon needs; zero: none at all."""

    method: Stochastic
    epsilon: float
    noise: float | None


@dataclass(frozen=True)
class Together:
    """The fits of one data set and task, those of one seed in lockstep."""

    rows: ConvexRows
    task: str
    setting: ConvexSetting
    epsilons: tuple[float, ...]
    seeds: int
    _known: dict[tuple[str, float], Values] = field(default_factory=dict)

    def fit(self, method: Method, epsilon: float, noise: float | None, seed: int) -> Fit:
        if isinstance(method, RobustGD):
            assert noise is None, "its noise is not in doubt"
            return self._truncated(method, epsilon, seed)
        assert isinstance(method, Stochastic)
        return self._of(Member(method, epsilon, noise), seed)

    def baseline(self, seed: int) -> Fit:
        return self._of(self.members[-1], seed)

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """CC and UC in both readings and DP-SGD at two steps, for each epsilon; the baseline."""
        found = []
        methods = [*methods_of(self.setting).values(), longer(self.setting)]
        for epsilon in self.epsilons:
            for method in methods:
                if isinstance(method, Stochastic):
                    found.append(Member(method, epsilon, None))
                    run = published_run(self.setting, method, epsilon, len(self.rows.x))
                    if run is not None:
                        found.append(Member(method, epsilon, run.noise_multiplier))
        constrained = methods[0]
        assert isinstance(constrained, AveragedDescent)
        return (*found, Member(constrained, math.inf, 0.0))

    def _of(self, member: Member, seed: int) -> Fit:
        values = self._once("stochastic", seed, self._wanted)
        place = self.members.index(member)
        curve = values["curves"][place]
        return Fit(curve[-1], math.nan, values["epsilons"][place], values["epochs"], curve)

    def _once(self, kind: str, key: float, wanted: Callable[[Any], Wanted]) -> Values:
        """A cell is asked for once, and kept here where nobody else keeps cells."""
        if (kind, key) not in self._known:
            self._known[kind, key] = cell(wanted(key))
        return self._known[kind, key]

    def _wanted(self, seed: int) -> Wanted:
        n, setting, count = len(self.rows.x), self.setting, len(self.members)
        steps = self._steps(setting.epochs)
        epochs = [step * setting.batch_size / n for step in kept_steps(steps)]
        noises = [digits(member.noise) for member in self.members]

        def work() -> Values:
            found = [account(n, self.rows.x.shape[1], member) for member in self.members]
            curves = self._curves([std for std, _ in found], steps, seed)
            return {
                "epochs": epochs,
                "epsilons": [epsilon for _, epsilon in found],
                "curves": curves.T.tolist(),
            }

        return Wanted(
            f"{self.task} on {n:,} rows, {count} runs in lockstep, {setting.epochs} passes",
            {
                "data": self.rows.name,
                "setting": repr(setting),
                "epsilons": self.epsilons,
                "noises": noises,
                "seed": seed,
            },
            work,
            {
                "epochs": epochs,
                "epsilons": [member.epsilon for member in self.members],
                "curves": [[0.5] * len(epochs)] * count,
            },
            setting.epochs,
            lambda some: self._curves([0.1] * count, self._steps(some), seed),
        )

    def _steps(self, epochs: int) -> int:
        return math.ceil(epochs * len(self.rows.x) / self.setting.batch_size - 1e-9)

    def _curves(self, stds: list[float], steps: int, seed: int) -> Array:
        """(points, members): errors of the answers along the way."""
        x, y, size = self.rows.x, self.rows.y, self.setting.batch_size
        runs = [run_of(one, std) for one, std in zip(self.members, stds, strict=True)]
        rng = np.random.Generator(np.random.SFC64([seed, int(self.rows.name, 16)]))
        state = Lockstep(x, y, self.task, runs, size)
        draws = chance(rng, len(x), size, runs, x.shape[1], steps)
        answers = answers_at(state, draws, kept_steps(steps))
        return np.array(
            [[relative_error(self.rows, coef, self.task) for coef in point] for point in answers]
        )

    def _truncated(self, method: RobustGD, epsilon: float, seed: int) -> Fit:
        """DP-GD: the fits of all seeds at one epsilon are a cell, for all take every row."""
        values = self._once("DP-GD", epsilon, partial(self._truncated_cell, method))
        curve = values["curves"][seed]
        return Fit(curve[-1], math.nan, values["epsilon"], values["epochs"], curve)

    def _truncated_cell(self, method: RobustGD, epsilon: float) -> Wanted:
        n, kept = len(self.rows.x), kept_steps(method.steps)

        def curves(steps: int, scale: float, std: float) -> Values:
            x, y, rate = self.rows.x, self.rows.y, method.learning_rate
            assert rate is not None
            name = [self.seeds, int(self.rows.name, 16), round(1000 * epsilon)]
            rng = np.random.Generator(np.random.SFC64(name))
            noise = (std * rng.standard_normal((self.seeds, x.shape[1])) for _ in range(steps))
            found = truncated_answers(x, y, self.task, scale, rate, noise, kept_steps(steps))
            errors = [[relative_error(self.rows, own, self.task) for own in at] for at in found]
            return {"curves": np.transpose(errors).tolist()}

        def work() -> Values:
            scale, std, certified = truncated_account(n, self.rows.x.shape[1], method, epsilon)
            return {
                "epochs": [float(step) for step in kept],
                "epsilon": certified,
                **curves(method.steps, scale, std),
            }

        return Wanted(
            f"{self.task} on {n:,} rows, DP-GD of {self.seeds} seeds, {method.steps} passes",
            {
                "data": self.rows.name,
                "method": repr(method),
                "epsilon": epsilon,
                "seeds": self.seeds,
            },
            work,
            {"epochs": kept, "epsilon": epsilon, "curves": [[0.5] * len(kept)] * self.seeds},
            method.steps,
            lambda some: curves(some, 8.0, 0.01),
        )


def run_of(member: Member, std: float) -> Run:
    """What a lockstep must know of a fit."""
    method = member.method
    assert method.learning_rate is not None
    if isinstance(method, FlatDescent):
        plain = not (method.decay or method.cautious) and method.tail == 1 and method.radius is None
        assert plain, "a lockstep takes constant steps and averages all iterates"
        return Run("rows", method.max_grad_norm, method.learning_rate, math.inf, std)
    assert method.clip is not None
    radius = method.radius if method.constrained else math.inf
    return Run("average", method.clip, method.learning_rate, radius, std)


def account(n: int, d: int, member: Member) -> tuple[float, float]:
    """(standard deviation of the noise in the mean gradient, certified epsilon), as the estimator's
    calibration and ledger have them; the steps are planned and paid for, but never released."""
    if member.noise == 0:
        return 0.0, math.inf
    method = member.method
    assert method.batch_size is not None and method.epochs is not None
    bound = method.max_grad_norm if isinstance(method, FlatDescent) else method.clip
    assert bound is not None
    by_row = isinstance(method, FlatDescent)
    std, epsilon = _account(
        n, d, by_row, bound, method.batch_size, method.epochs, member.epsilon, member.noise
    )
    return std, epsilon


def truncated_account(n: int, d: int, method: RobustGD, epsilon: float) -> tuple[float, ...]:
    """(s, standard deviation of the noise in the mean gradient, certified epsilon) of DP-GD."""
    door, session = _session(n, d, epsilon, None)
    nothing = LinearTask(
        Design(np.zeros((n, d)), False), np.zeros(n), Squared(), 0.0, np.zeros(d), None
    )
    scale = method.scale or method._balanced(nothing, session, method.steps)
    assert method.smoothing == 1 and method.radius is None
    bound = robust_gd.CEILING * scale * math.sqrt(d)
    sensitivity = Sensitivity.per_sample(bound, robust_gd.PROOF)
    receipt = session.pay(Payment(FullBatch(n), sensitivity, method.steps), (d,))
    return scale, receipt.std / n, door.guarantee(1 / n).epsilon


def _session(n: int, d: int, epsilon: float, noise: float | None) -> tuple[PrepaidDoor, Session]:
    """What a fit is given, with a ledger of its own."""
    relation, key = as_relation("add_or_remove_one"), new_key(0)
    door = PrepaidDoor(Ledger({"n": n, "d": d}), relation, key)
    return door, Session(door, Target(epsilon, 1 / n, None, relation), key, noise)


@cache  # of every seed the same
def _account(
    n: int,
    d: int,
    by_row: bool,
    bound: float,
    batch_size: float,
    epochs: float,
    epsilon: float,
    noise: float | None,
) -> tuple[float, float]:
    sampler = sampler_of(n, batch_size)
    sensitivity = (
        Sensitivity.per_sample(bound, flat.PROOF)
        if by_row
        else Sensitivity.of_range(bound, averaged.PROOF)
    )
    steps = math.ceil(epochs / sampler.rate - 1e-9)
    door, session = _session(n, d, epsilon, noise)
    receipt = session.pay(Payment(sampler, sensitivity, steps), (d,))
    std = receipt.std / sampler.expected_size if by_row else receipt.std
    return std, door.guarantee(1 / n).epsilon
