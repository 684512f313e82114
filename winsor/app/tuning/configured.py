"""A tuning from a configuration file: a run of `winsor train` whose settings are drawn from laws.

    [tune]
    trials = 10                        mean number of trials; the number itself with release = "all"
    eta = 0.0                          shape of its law; 0 is the logarithmic one, 4 seldom draws 1
    as_written = 0.25                  share of the trials at the settings of this very file
    release = "best"                   or "all": every trial, at the price of composition
    score = "private"                  held-out rows are private, the score is measured through the
                                       door; "training" measures it on the training rows, so that
                                       none need be held out; "public" declares held-out rows
                                       public, and the score is free
    score_std = 0.01                   noise of a score on private rows
    [tune.space]
    "optimizer.lr" = {log_uniform = [0.05, 5.0]}
    "rule.max_grad_norm" = {choice = [0.1, 1.0, 10.0]}

Everything else is what `winsor train` understands; the budget is that of the whole tuning.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from torch.utils.data import Dataset

from winsor.app.runs.assemble import Assembled, assemble, check
from winsor.app.runs.config import Config, from_table, higher_is_better
from winsor.app.runs.data import Data, load_data
from winsor.app.runs.directory import RunDirectory
from winsor.app.runs.parts import build_mechanism
from winsor.app.runs.prepare import with_features
from winsor.app.runs.reading import Part, read
from winsor.app.runs.tasks import columns_of, evaluate, fitting
from winsor.core.accounting import event_to_json
from winsor.core.checks import at_least, choice, fraction, positive
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.events.registry import History
from winsor.gradients import trainable_parameters
from winsor.metrics import R2, Accuracy, Metric
from winsor.planning.run import PlannedRun
from winsor.rules.rule import dry_run
from winsor.tuning.outcome import Job
from winsor.tuning.pruning import PrivateScore
from winsor.tuning.space import LAWS, Space
from winsor.tuning.trial_counts import TrialCounts, TruncatedNegativeBinomial
from winsor.tuning.trials import Train

TUNABLE = ("model", "rule", "optimizer", "schedule")
SCORED_ON = {
    "private": "private held-out rows",
    "training": "training rows, with noise",
    "public": "public held-out rows",
}
_REHEARSED = 16  # settings whose events are compared before anything is spent


@dataclass(frozen=True)
class TuneSettings:
    """The table [tune]."""

    space: dict[str, Any]
    trials: float = 10.0
    eta: float = 0.0
    as_written: float = 0.0
    """Share of the trials that take the file's own values of what is tuned."""
    release: str = "best"
    score: str = "private"
    score_std: float = 0.01
    target_range: list[float] | None = None
    """(low, high), public: for the private score of a regression."""

    def __post_init__(self) -> None:
        at_least("tune.trials", self.trials, 1)
        choice("tune.release", self.release, ("best", "all"))
        choice("tune.score", self.score, tuple(SCORED_ON))
        fraction("tune.as_written", self.as_written)
        positive("tune.score_std", self.score_std)


@dataclass(frozen=True)
class ConfiguredTuning:
    """A base configuration, and what is tuned about it."""

    base: dict[str, Any]
    folder: Path | None
    settings: TuneSettings
    space: Space

    @staticmethod
    def from_table(table: Mapping[str, Any], folder: Path | None = None) -> ConfiguredTuning:
        """Read a configuration with a table [tune]; everything that needs no data is checked."""
        if "tune" not in table:
            raise ConfigurationError(
                "tune must be given: a table with the space of settings. It is missing."
            )
        settings = read(TuneSettings, table["tune"], "tune")
        base = {key: copy.deepcopy(v) for key, v in table.items() if key not in ("tune", "compare")}
        space = Space.of(_flat(settings.space))
        if settings.as_written > 0:
            written = {path: _written(base, path) for path in space.laws}
            space = space.with_known(written, settings.as_written)
        found = ConfiguredTuning(base, folder, settings, space)
        found._check()
        return found

    def to_table(self) -> dict[str, Any]:
        """Return plain values that name this tuning: the same again may resume it."""
        return {
            "config": self.config.to_table(),
            "tune": {**dataclasses.asdict(self.settings), "space": self.space.describe()},
        }

    @property
    def config(self) -> Config:
        """The configuration without the tuned settings' values: those of the base, if any."""
        return self.at(self.space.draw(np.random.default_rng(0)))

    def at(self, setting: Mapping[str, Any]) -> Config:
        """Return the configuration of a trial at ``setting``."""
        table = copy.deepcopy(self.base)
        for path, value in setting.items():
            *parents, last = path.split(".")
            inner = table
            for name in parents:
                inner = inner.setdefault(name, {})
                if not isinstance(inner, dict):
                    raise ConfigurationError(
                        f"tune.space must name settings and give each a law ({', '.join(LAWS)}) or "
                        f"a list. Got {path!r} instead."
                    )
            inner[last] = value
        return from_table(table, self.folder)

    def law(self) -> float | TrialCounts:
        """Return what `tune` takes as ``trials``."""
        if self.settings.release == "all":
            count = self.settings.trials
            return int(count) if count == int(count) else count  # `tune` refuses the others
        return TruncatedNegativeBinomial.of_mean(self.settings.trials, self.settings.eta)

    def _check(self) -> None:
        for path in self.space.laws:
            if path.split(".")[0] not in TUNABLE or "." not in path:
                raise ConfigurationError(
                    f"tune.space must name settings of {', '.join(TUNABLE)}, as in optimizer.lr: "
                    f"others change what a trial spends. Got {path!r} instead."
                )
        generator = np.random.default_rng(0)
        for _ in range(_REHEARSED):
            config = self.at(self.space.draw(generator))
            check(config)
        if config.prepare:
            raise ConfigurationError(
                "prepare must be left out of a tuning: every trial would release its moments anew. "
                f"Got {[part.name for part in config.prepare]}."
            )
        if config.budget.epsilon is None or config.budget.noise_multiplier is not None:
            raise ConfigurationError(
                "budget.epsilon must be given for a tuning, and no noise_multiplier: the noise of "
                "a trial follows from the total."
            )
        if config.record.monitor != "off" or config.data.task == "language":
            raise ConfigurationError(
                'a tuning must have record.monitor = "off" and a task of classification or '
                f"regression. Got {config.record.monitor!r} and {config.data.task!r} instead."
            )
        if config.data.unit is not None:
            raise ConfigurationError(
                "data.unit must be left out of a tuning: the scores of its trials protect single "
                f"rows. Got {config.data.unit!r} instead. Tune on public rows, or train once."
            )
        if not isinstance(build_mechanism(config.mechanism), str):
            raise ConfigurationError(
                "mechanism.name must be gaussian or laplace in a tuning. Got "
                f"{config.mechanism.name!r} instead."
            )

    # ------------------------------------------------------------------------------ for `tune`

    def load(self) -> Data:
        """Load the rows, with features in place of pixels if the configuration says so."""
        return with_features(self.config.features, load_data(self.config.data))

    def trial(self, data: Data) -> Callable[[float], History]:
        """Return what a trial spends, as a function of its noise multiplier.

        Settings that would spend otherwise are refused.
        """
        generator, first = np.random.default_rng(0), ""
        plan = None
        for _ in range(_REHEARSED):
            setting = self.space.draw(generator)
            plan = _planned(self.at(setting), data)
            found = json.dumps([[event_to_json(e), n] for e, n in plan.history(1.0)])
            if first and found != first:
                raise ConfigurationError(
                    "tune.space must leave what a trial spends as it is. Got settings that spend "
                    f"otherwise, such as {setting!r}. Leave out what changes the released parts."
                )
            first = found
        assert plan is not None
        return plan.history

    def score(self, data: Data) -> PrivateScore | None:
        """Return the private score of a trial; None if it is on rows that were declared public."""
        rows = self.scoring_rows(data)
        if self.settings.score == "public":
            return None
        metric: Metric = Accuracy()
        if self.config.data.task == "regression":
            if self.settings.target_range is None or len(self.settings.target_range) != 2:
                raise ConfigurationError(
                    "tune.target_range must be given for the private score of a regression: the "
                    f"public range of the targets. Got {self.settings.target_range!r} instead."
                )
            metric = R2(*self.settings.target_range)
        count = len(rows)  # type: ignore[arg-type]
        return PrivateScore.of_std(metric, self.settings.score_std, count)

    def scoring_rows(self, data: Data) -> Dataset[Any]:
        """Return the rows that score a trial."""
        if self.settings.score == "training":
            return data.train
        if data.held_out is None:
            raise ConfigurationError(
                "data.held_out or data.held_out_fraction must leave rows that score the trials. "
                'Got none. Or say tune.score = "training".'
            )
        return data.held_out

    @property
    def maximise(self) -> bool:
        """Return whether larger scores are better."""
        return self.settings.score != "public" or higher_is_better(self.config.main_metric)

    def train(self, data: Data) -> Train:
        """Return the function that runs one trial: train as configured, then score."""

        rows = self.scoring_rows(data)

        def one(setting: dict[str, Any], job: Job) -> tuple[Any, Any, Any]:
            config = self.at(setting)
            run = _trained(config, data, job)
            ledger = run.private.ledger
            state = {name: value.clone() for name, value in run.model.state_dict().items()}
            if job.score is None:
                return state, ledger, evaluate(run.task, run.model, rows)[config.main_metric]
            columns = columns_of(run.model, rows, config.data.task)
            return state, ledger, job.measure(ledger, **columns)

        return one


def _flat(space: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Nested tables as dotted names; a law is where descending ends."""
    found: dict[str, Any] = {}
    for name, value in space.items():
        is_law = not isinstance(value, Mapping) or (len(value) == 1 and next(iter(value)) in LAWS)
        found |= {path + name: value} if is_law else _flat(value, f"{path}{name}.")
    return found


def _written(table: Mapping[str, Any], path: str) -> Any:
    """The value that the file itself gives a setting."""
    found: Any = table
    for name in path.split("."):
        if not isinstance(found, Mapping) or name not in found:
            raise ConfigurationError(
                f"{path} must have a value of its own in the file for tune.as_written. Got none. "
                "Write the value that a share of the trials shall take."
            )
        found = found[name]
    return found


# ------------------------------------------------------------------------------------- a training


def _assembled(config: Config, data: Data, noise_multiplier: float) -> Assembled:
    """Build a run as `winsor train` does, with a ledger in memory: a trial's own is sealed."""
    budget = dataclasses.replace(config.budget, epsilon=None, noise_multiplier=noise_multiplier)
    nowhere = cast(RunDirectory, SimpleNamespace(ledger=None))
    done = Part("none")  # `load` has them
    return assemble(dataclasses.replace(config, budget=budget, features=done), nowhere, data)


def _planned(config: Config, data: Data) -> PlannedRun:
    run = _assembled(config, data, 1.0)
    sampler = run.private.sampler
    try:
        return PlannedRun(
            sampler,
            dry_run(run.monitor.rule, trainable_parameters(run.model), sampler.expected_size),
            build_mechanism(config.mechanism),
            Neighbouring(config.budget.relation),
            config.budget.delta,
            run.planned,
        )
    finally:
        run.private.detach()


def _trained(config: Config, data: Data, job: Job) -> Assembled:
    """Noise under a fresh secret key; or, if it is to be reproducible, under the trial's own."""
    assert job.noise_multiplier is not None
    if config.reproducible_noise:  # two trials at one setting must not have the same noise
        config = dataclasses.replace(config, name=f"{config.name} {job.key.hex()}")
    run = _assembled(config, data, job.noise_multiplier)
    try:
        run.private.check(run.task.losses)
        for batch in run.private.batches():
            run.private.step(fitting(partial(run.task.losses, run.model, batch)))
    finally:
        run.private.detach()
    return run
