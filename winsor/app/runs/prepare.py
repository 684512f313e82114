"""Releases before the first step, by name: norms, whitening, axes of features; counts of classes.

    [[prepare]]
    name = "axes"                  # norm, whitening or axes: `winsor.features`; or class_counts
    noise_multiplier = 10.0        # or epsilon, its own share

Each has a ledger of its own in the run's directory, written before its noise is drawn, and its
public numbers are kept beside it, so that a run that goes on uses them again and pays once. The
header of the run's ledger names what they spent: its history, and every epsilon that is read off
it, is of all releases together.

Guarantee
---------
The noise of the training is chosen such that everything together spends budget.epsilon. A run that
was killed between paying and keeping cannot go on: what was spent stays spent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from winsor.app.runs.class_counts import ClassCounts, check_counts, class_counts
from winsor.app.runs.config import Config
from winsor.app.runs.data import Data
from winsor.app.runs.directory import RunDirectory, RunError, replace_file, sense
from winsor.app.runs.features import transformed_rows
from winsor.app.runs.reading import Part, bind
from winsor.app.runs.sealing import of_bytes
from winsor.core.checks import choice
from winsor.core.contract import ConfigurationError
from winsor.core.ledger.guarantee import together
from winsor.core.ledger.ledger import Ledger
from winsor.features import PrivateAxes, PrivateNorm, PrivateWhitening
from winsor.features.moments import ReleasedMoments
from winsor.training.saving.file import as_bytes

AT_ONCE = 1000


def norm(
    *, noise_multiplier: float | None = None, epsilon: float | None = None,
    mean_bound: float = 1.0, square_bound: float = 0.05,
) -> Callable[..., ReleasedMoments]:  # fmt: skip
    return lambda **shared: PrivateNorm(
        epsilon, noise_multiplier=noise_multiplier, mean_bound=mean_bound,
        square_bound=square_bound, **shared,
    )  # fmt: skip


def whitening(
    *, noise_multiplier: float | None = None, epsilon: float | None = None,
    rounds: int = 2, bound: float | None = None,
) -> Callable[..., ReleasedMoments]:  # fmt: skip
    return lambda **shared: PrivateWhitening(
        epsilon, noise_multiplier=noise_multiplier, rounds=rounds, bound=bound, **shared
    )


def axes(
    *, noise_multiplier: float | None = None, epsilon: float | None = None,
    power: float = 0.7, place_power: float | None = None, bound: float | None = None,
) -> Callable[..., ReleasedMoments]:  # fmt: skip
    return lambda **shared: PrivateAxes(
        epsilon, noise_multiplier=noise_multiplier, power=power, place_power=place_power,
        bound=bound, **shared,
    )  # fmt: skip


Release = ReleasedMoments | ClassCounts
KINDS: dict[str, Callable[..., Callable[..., Release]]] = {
    "norm": norm,
    "whitening": whitening,
    "axes": axes,
    "class_counts": class_counts,
}


@dataclass(frozen=True)
class Prepared:
    """What the training begins with."""

    data: Data
    """As the model sees them."""
    spent: list[Any]
    """What was released, each with its ledger."""
    profile: tuple[float, ...] | None = None
    """The rows of each class, if they were released."""


def build(part: Part, place: int, **shared: Any) -> Release:
    """One release, by its name and options."""
    path = f"prepare[{place}]"
    make = KINDS[choice(f"{path}.name", part.name, KINDS)]
    options = bind(make, part.options, path)
    try:
        return make(**options)(**shared)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def check_prepare(config: Config) -> None:
    """Refuse what has no proof or no meaning, before any row is read."""
    check_counts(config)
    if not config.prepare:
        return
    for place, part in enumerate(config.prepare):
        build(part, place)
    if config.budget.epsilon is None or config.budget.noise_multiplier is not None:
        raise ConfigurationError(
            "prepare must come with budget.epsilon alone, which is then of all releases together. "
            f"Got epsilon = {config.budget.epsilon!r} and noise_multiplier = "
            f"{config.budget.noise_multiplier!r} instead."
        )
    if config.data.unit is not None or config.data.task == "language":
        raise ConfigurationError(
            "prepare must be used where single rows of numbers are protected. Got task "
            f"{config.data.task!r} and unit {config.data.unit!r} instead."
        )
    if "basis" in config.rule.options:
        raise ConfigurationError(
            "prepare must not come with rule.basis, whose public rows it would not reach. Got "
            f"{config.rule.options['basis']!r}."
        )


def noise_seed(config: Config) -> int | None:
    """Reproducible noise belongs to the configuration, all but what it records: two variants of
    one comparison must not cover different sums with the same noise."""
    if not config.reproducible_noise:
        return None
    table = {name: value for name, value in config.to_table().items() if name != "record"}
    text = json.dumps(table, sort_keys=True, default=str).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def prepared(config: Config, data: Data, directory: RunDirectory) -> Prepared:
    """The data as the model sees them, and what was spent for that."""
    spent: list[Any] = []
    profile = None
    seed = noise_seed(config)
    for place, part in enumerate(config.prepare):
        ledger, numbers = _files(directory.path, place)
        release = build(
            part, place, delta=config.budget.delta, relation=config.budget.relation,
            allow_large_delta=config.budget.allow_large_delta, ledger=ledger,
            seed=None if seed is None else seed + place,
        )  # fmt: skip
        x, y = _columns(data)
        flat = isinstance(release, PrivateWhitening)
        if ledger.exists() and len(Ledger.read(ledger)):
            _load(release, ledger, numbers)
        else:
            if isinstance(release, ClassCounts):
                release.fit(y, data.outputs)
            else:
                release.fit(x.flatten(1) if flat else x)
            replace_file(numbers, as_bytes(release.state_dict()))
            release.ledger_.close()
        if isinstance(release, ClassCounts):
            profile = release.counts_
            spent.append(release.found)
        else:
            data = _transformed(data, release, flat)
            spent.append(release)
    return Prepared(data, spent, profile)


def _columns(data: Data) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the training rows."""
    columns = data.train.tensors if isinstance(data.train, TensorDataset) else ()
    if len(columns) != 2 or not columns[0].is_floating_point():
        raise ConfigurationError(
            "prepare must be used with rows of numbers in memory. Got "
            f"{type(data.train).__name__} instead. Use features, or leave it out."
        )
    return columns[0], columns[1]


def _files(path: Path, place: int) -> tuple[Path, Path]:
    return path / f"prepared-{place}.jsonl", path / f"prepared-{place}.pt"


def _load(release: Release, ledger: Path, numbers: Path) -> None:
    if not numbers.exists():
        raise RunError(
            f"{ledger} has paid for a release whose numbers were not kept: the run was killed "
            "between the two. Start a new run with another --run directory; what was spent stays "
            "spent."
        )
    with sense(numbers):
        state = dict(torch.load(numbers, weights_only=True))
        release.load_state_dict(state, Ledger.read(ledger))


def _transformed(data: Data, moments: ReleasedMoments, flat: bool) -> Data:
    def by_parts(x: Tensor) -> Tensor:
        return torch.cat([moments(p.flatten(1) if flat else p) for p in x.split(AT_ONCE)])

    train = transformed_rows(data.train, by_parts)
    held_out = None if data.held_out is None else transformed_rows(data.held_out, by_parts)
    shape = tuple(train.tensors[0].shape[1:])
    return replace(data, train=train, held_out=held_out, shape=shape)


# ------------------------------------------------------------------------------ bound to the run


def note_prepared(ledger: Ledger, path: Path) -> None:
    """The run's ledger names the numbers and the ledgers of what was released before it."""
    for name, digest in _digests(path).items():
        if name not in ledger.notes:
            ledger.note(name, digest)


def prepared_disagreements(path: Path, ledger: Ledger) -> Iterator[str]:
    """What does not fit between the run's ledger and those before it."""
    found = _digests(path)
    noted = {name for name in ledger.notes if name.startswith("prepared-")}
    for name in sorted(noted | (set(found) if len(ledger) else set())):
        if found.get(name) != ledger.notes.get(name, (None, 0))[0]:
            yield f"{name} is not the file that the ledger noted when the run began"
    spent = together(Ledger.read(one) for one in sorted(path.glob("prepared-*.jsonl")))
    if len(ledger) and sorted(map(str, spent)) != sorted(map(str, ledger.before)):
        yield "prepared ledgers have not spent what the header of the ledger says"


def _digests(path: Path) -> dict[str, str]:
    files = [*path.glob("prepared-*.jsonl"), *path.glob("prepared-*.pt")]
    return {one.name: of_bytes(one.read_bytes()) for one in sorted(files)}
