"""The configuration of a run: what `winsor train CONFIG.toml` understands.

Every key, its type and its default is a field below. A key that is not here, or a value outside
its range, is a `ConfigurationError` that names the key's path.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from winsor.app.runs.reading import Part, read
from winsor.core.checks import choice, fraction, positive, probability, refusal, whole
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.ledger.ledger import MOST_STEPS
from winsor.planning.choose import SAMPLINGS

MAIN_METRICS = {"classification": "accuracy", "regression": "rmse", "language": "perplexity"}
"""The metric to look at first, by task."""
HIGHER_IS_BETTER = ("accuracy", "r2")
# Names of make_private that stand here too, so that a misspelt one is refused before torch is
# loaded; tests/app/runs/test_config.py asserts that they are the same.
ENGINES = ("auto", "ghost", "func", "loop")
ITERATES = (
    "last",
    "averaged",
    "random",
    "averaged_before_last",
    "random_before_last",
    "averaged_after_start",
    "averaged_midpoints",
    "tail",
    "ema",
)
LOSSES = ("auto", "cross_entropy", "squared", "huber", "ldam_drw", "logit_adjusted")
MONITORS = ("off", "private", "debug")
RELEASED = "released"
"""What a loss says instead of a class profile, to use released class counts."""
MOST_CLASSES = 10_000_000
MOST = {"threads": 1024, "num_workers": 256, "steps": MOST_STEPS, "epochs": MOST_STEPS}
"""Beyond these a machine gives up, or a run does not end."""


@dataclass(frozen=True)
class DataSettings:
    """Source of the rows. Scaling is by constants that you know, never by the rows."""

    source: str
    """A built-in name (digits, synthetic), a file (.npz, .csv, .parquet), an .npy file whose rows
    stay on disk, or "package.module:name" of a torch dataset."""
    held_out: str | None = None
    """A second source for the rows on which metrics are computed; they are not protected."""
    held_out_fraction: float = 0.2
    """Without a second source, each row is held out by a coin of this probability; 0
    trains on all rows, and then there are no metrics."""
    seed: int = 0
    """Of these coins, and of synthetic rows. The same for all runs of a comparison."""
    task: str = "classification"
    classes: int | list[str] | None = None
    """Number of classes (or of tokens), or the labels as they are written in the file. Public."""
    inputs: str = "x"
    """Name of the array of inputs in an .npz file."""
    target: str = "y"
    """Name of the array of targets in an .npz file, or of the column in a table; of the .npy file
    of targets beside an .npy file of inputs."""
    features: list[str] | None = None
    """Columns of a table to use as inputs; default: all but the target and the unit."""
    unit: str | None = None
    """Who is protected, where a person has several rows: the column of a table, the array of an
    .npz file, the .npy file beside that of the inputs, or the attribute of a dataset that says
    whose each row is. Default: one row."""
    shape: list[int] | None = None
    """Shape of one row, to which the inputs are reshaped."""
    subtract: float | list[float] = 0.0
    divide: float | list[float] = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the synthetic generator, or of what the import path names."""

    def __post_init__(self) -> None:
        choice("data.task", self.task, MAIN_METRICS)
        fraction("data.held_out_fraction", self.held_out_fraction)
        whole("data.seed", self.seed, least=0)
        classes = len(self.classes) if isinstance(self.classes, list) else self.classes
        if classes is not None and not 2 <= classes <= MOST_CLASSES:
            raise refusal("data.classes", f"at least 2 and at most {MOST_CLASSES}", self.classes)
        divisors = self.divide if isinstance(self.divide, list) else [self.divide]
        if not all(math.isfinite(d) and d != 0 for d in divisors):
            raise refusal("data.divide", "finite and not zero", self.divide)
        subtracted = self.subtract if isinstance(self.subtract, list) else [self.subtract]
        if not all(map(math.isfinite, subtracted)):
            raise refusal("data.subtract", "finite", self.subtract)
        if self.shape is not None and not (self.shape and all(side > 0 for side in self.shape)):
            raise refusal("data.shape", "a list of positive whole numbers", self.shape)
        if self.features is not None and not self.features:
            raise refusal("data.features", "a list of at least one column", self.features)


@dataclass(frozen=True)
class BudgetSettings:
    """What may be spent. With ``epsilon`` alone, the noise is calibrated to spend just that."""

    delta: float
    epsilon: float | None = None
    noise_multiplier: float | None = None
    relation: str = Neighbouring.ADD_OR_REMOVE_ONE.value
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        probability("budget.delta", self.delta)
        _positive("budget.epsilon", self.epsilon)
        _positive("budget.noise_multiplier", self.noise_multiplier)
        if self.epsilon is None and self.noise_multiplier is None:
            raise ConfigurationError(
                "budget.epsilon or budget.noise_multiplier must be given. Both are missing."
            )
        choice("budget.relation", self.relation, [r.value for r in Neighbouring])


@dataclass(frozen=True)
class TrainingSettings:
    """How long, in which batches, with which loss."""

    batch_size: int | None = None
    """Expected size of a batch, in units if there are any; left out with sampling = "full"."""
    epochs: float | None = None
    steps: int | None = None
    sampling: str = "poisson"
    """How rows are drawn: docs/ways-of-drawing.md. "cyclic" goes with mechanism banded."""
    rows_per_unit: int = 8
    """With data.unit: the most rows of one unit in one step."""
    within_unit: str = "mean"
    """With data.unit: the mean or the sum of the gradients of a unit's rows is clipped."""
    loss: Part = field(default_factory=lambda: Part("auto"))
    """A name, or a table with options: ldam_drw takes those of `winsor.training.losses.LdamDrw`,
    logit_adjusted those of `LogitAdjusted`."""
    max_physical_batch_size: int | None = None
    iterate: str = "last"
    ball_radius: float | None = None
    ball_centre: str = "origin"
    """The origin, or the start of the run."""
    engine: str = "auto"
    threads: int | None = None
    num_workers: int = 0

    def __post_init__(self) -> None:
        for name in (
            "batch_size",
            "epochs",
            "steps",
            "max_physical_batch_size",
            "threads",
            "rows_per_unit",
        ):
            _positive(f"training.{name}", getattr(self, name))
        for name, most in MOST.items():
            value = getattr(self, name)
            if value is not None and value > most:
                raise refusal(f"training.{name}", f"at most {most}", value)
        whole("training.num_workers", self.num_workers, least=0)
        _positive("training.ball_radius", self.ball_radius)
        choice("training.sampling", self.sampling, SAMPLINGS)
        choice("training.within_unit", self.within_unit, ("mean", "sum"))
        choice("training.loss", self.loss.name, LOSSES)
        choice("training.ball_centre", self.ball_centre, ("origin", "start"))
        choice("training.iterate", self.iterate, ITERATES)
        choice("training.engine", self.engine, ENGINES)
        if (self.batch_size is None) != (self.sampling == "full"):
            raise ConfigurationError(
                'training.batch_size must be given, except with training.sampling = "full". Got '
                f"batch_size = {self.batch_size!r} with {self.sampling!r} instead."
            )
        if (self.epochs is None) == (self.steps is None):
            raise ConfigurationError(
                "training.epochs or training.steps must be given, and not both. Got "
                f"epochs = {self.epochs!r}, steps = {self.steps!r} instead."
            )


@dataclass(frozen=True)
class RecordSettings:
    """What is written down, and when."""

    evaluations: int | None = None
    """How often, over the whole run, the held-out metrics are computed. Default: up to 20 times,
    but so that evaluation sees at most a tenth as many rows as training."""
    held_out_epsilon: float | None = None
    """None: held-out metrics are exact, which is right for public rows only. A number: held-out
    rows are private too, and measured once, at the end, with noise, at this epsilon of theirs."""
    rows: int = 500
    """How many lines, over the whole run, go to metrics.jsonl."""
    checkpoint_seconds: float = 60.0
    keep_checkpoint: bool = False
    """The checkpoint holds the key of the noise. It is deleted at the end unless kept."""
    monitor: str = "off"
    """Gradient norms: "private" releases a noised histogram with every step, within the same
    epsilon; "debug" records exact values, and the training loss, marked NOT PRIVATE."""
    monitor_share: float = 0.02
    """The private monitor's share of each step's privacy."""

    def __post_init__(self) -> None:
        for name in ("evaluations", "held_out_epsilon", "rows", "checkpoint_seconds"):
            _positive(f"record.{name}", getattr(self, name))
        choice("record.monitor", self.monitor, MONITORS)
        probability("record.monitor_share", self.monitor_share)

    @property
    def exposes(self) -> bool:
        """Return whether exact values of private rows are recorded."""
        return self.monitor == "debug"


@dataclass(frozen=True)
class CompareSettings:
    """`winsor compare`: the same run with other rules (or other settings), over several seeds."""

    seeds: list[int]
    variants: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise refusal("compare.seeds", "a list of different whole numbers", self.seeds)


@dataclass(frozen=True)
class Config:
    """A whole configuration."""

    name: str
    data: DataSettings
    model: Part
    rule: Part
    optimizer: Part
    budget: BudgetSettings
    training: TrainingSettings
    mechanism: Part = field(default_factory=lambda: Part("gaussian"))
    schedule: Part = field(default_factory=lambda: Part("constant"))
    features: Part = field(default_factory=lambda: Part("none"))
    """What the model sees in place of pixels: a frozen transform of each row."""
    prepare: list[Part] = field(default_factory=list)
    """Releases about the features before the first step, in order, paid for by the same epsilon:
    norm, whitening, axes (`winsor.features`), each with its options."""
    record: RecordSettings = field(default_factory=RecordSettings)
    seed: int = 0
    """Public: starts the model. The noise does not depend on it, unless:"""
    reproducible_noise: bool = False
    """Derive the noise from the seed. Whoever knows the seed can then subtract it."""

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise refusal("name", "a text that is not empty", self.name)

    @property
    def main_metric(self) -> str:
        """The metric to look at first."""
        return MAIN_METRICS[self.data.task]

    @property
    def wants_counts(self) -> bool:
        """Return whether the loss waits for released class counts."""
        return self.training.loss.options.get("profile") == RELEASED

    @property
    def transforms(self) -> bool:
        """Return whether rows are transformed, or anything is released, before the first step."""
        return bool(self.features != Part("none") or self.prepare or self.wants_counts)

    def noise_seed(self) -> int | None:
        """The seed of reproducible noise; None for secret noise.

        It is a digest of the whole configuration but what it records: two variants of one
        comparison must not cover different sums with the same noise.
        """
        if not self.reproducible_noise:
            return None
        table = {name: value for name, value in self.to_table().items() if name != "record"}
        text = json.dumps(table, sort_keys=True, default=str).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

    def to_table(self) -> dict[str, Any]:
        """Plain values, such that `from_table` gives this configuration back."""
        table: dict[str, Any] = {}
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, Part):
                table[entry.name] = value.to_table()
            elif entry.name == "prepare":
                table[entry.name] = [part.to_table() for part in value]
            elif dataclasses.is_dataclass(value) and not isinstance(value, type):
                table[entry.name] = dataclasses.asdict(value)
                for name, inner in vars(value).items():
                    if isinstance(inner, Part):
                        table[entry.name][name] = inner.to_table() if inner.options else inner.name
            else:
                table[entry.name] = value
        return table

    def to_toml(self) -> str:
        """Return the text of a configuration file. Settings that are None are left out."""
        return tomli_w.dumps(without_none(self.to_table()))

    def digest(self) -> str:
        """A short name of this configuration."""
        text = json.dumps(self.to_table(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no None: such entries are left out, in inner tables too."""
    return {
        key: without_none(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }


def from_table(table: Mapping[str, Any], folder: Path | None = None) -> Config:
    """The configuration of one run. Paths of files are taken relative to ``folder``."""
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"a configuration must be a table. Got {table!r:.100} instead.")
    table = {key: value for key, value in table.items() if key != "compare"}
    config = read(Config, table)
    if folder is None:
        return config
    data = config.data
    held_out = None if data.held_out is None else _absolute(data.held_out, folder)
    source = _absolute(data.source, folder)
    return dataclasses.replace(
        config,
        data=dataclasses.replace(data, source=source, held_out=held_out),
        model=_beside(config.model, "weights", folder),
        features=_beside(config.features, "cache", folder),
        rule=_with_public_rows(config.rule, folder),
    )


def _beside(part: Part, option: str, folder: Path) -> Part:
    """The part with a path among its options taken relative to ``folder``."""
    path = part.options.get(option)
    if not isinstance(path, str):
        return part
    return Part(part.name, {**part.options, option: str((folder / path).resolve())})


def _with_public_rows(rule: Part, folder: Path) -> Part:
    basis = rule.options.get("basis")
    if not isinstance(basis, Mapping) or not isinstance(basis.get("source"), str):
        return rule
    found = {**basis, "source": _absolute(basis["source"], folder)}
    return Part(rule.name, {**rule.options, "basis": found})


def is_file(source: str) -> bool:
    """Return whether a source names a file, rather than something built in or importable."""
    return Path(source).suffix.lower() in (".npz", ".csv", ".parquet", ".npy")


def _absolute(source: str, folder: Path) -> str:
    return str((folder / source).resolve()) if is_file(source) else source


def differences(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[str]:
    """Settings in which two tables differ, as "path: value there, value here"."""
    a, b = _flat(one), _flat(two)
    return [
        f"{key}: {a.get(key)!r} there, {b.get(key)!r} here"
        for key in sorted(a.keys() | b.keys())
        if a.get(key) != b.get(key)
    ]


def _flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{path}{key}.")
        else:
            found[f"{path}{key}"] = value
    return found


def higher_is_better(metric: str) -> bool:
    """Return whether larger values of a held-out metric are better ones."""
    return metric in HIGHER_IS_BETTER


def _positive(path: str, value: float | None) -> None:
    if value is not None:
        positive(path, value)
