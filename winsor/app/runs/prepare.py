"""What the model sees in place of the raw rows, and what is released before the first step.

    [features]
    name = "scattering"            # a fixed transform of each row, by name: `winsor.features.named`

    [[prepare]]
    name = "axes"                  # norm, whitening or axes: `winsor.features`; or class_counts
    noise_multiplier = 10.0        # or epsilon, its own share

    [training]
    loss = { name = "logit_adjusted", profile = "released" }       # uses class_counts; or ldam_drw

Each release has a ledger of its own in the run's directory, written before its noise is drawn. Its
public numbers are kept beside it, so that a resumed run uses them again and pays once. The header
of the run's ledger names what they spent: its history, and every epsilon that is computed from it,
covers all releases together.

Guarantee
---------
The noise of the training is chosen such that everything together spends budget.epsilon. A run that
was killed between paying and keeping cannot go on: what was spent stays spent. With class counts,
the loss of a row depends on that row and on released counts, so the steps are bounded as with a
public profile.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from winsor.app.runs.config import RELEASED, Config
from winsor.app.runs.data import Data
from winsor.app.runs.directory import RunDirectory
from winsor.app.runs.folder import RunError, changed, of_bytes, replace_file, sense
from winsor.app.runs.reading import Part, bind, value_of
from winsor.core.checks import choice
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.ledger.chain import content_of
from winsor.core.ledger.guarantee import guarantee
from winsor.core.ledger.ledger import Ledger
from winsor.features import PrivateAxes, PrivateNorm, PrivateWhitening
from winsor.features.moments import ReleasedMoments
from winsor.features.named import FEATURES, cached
from winsor.training.losses import ReleasedCounts, released_counts
from winsor.training.saving.file import as_bytes


def build_features(part: Part) -> Callable[[Tensor], Tensor]:
    """The transform of a batch of rows; with ``cache``, results are kept in that folder."""
    options = dict(part.options)
    cache = value_of(str | None, options.pop("cache", None), "features.cache")
    make = FEATURES[choice("features.name", part.name, FEATURES)]
    transform = make(**bind(make, options, "features"))
    label = "-".join([part.name, *(f"{key}_{options[key]}" for key in sorted(options))])
    return lambda rows: cached(label, transform, rows, None if cache is None else Path(cache))


def with_features(part: Part, data: Data) -> Data:
    """The data with features in place of pixels, held-out rows too."""
    if part.name == "none":
        return data
    transform = build_features(part)
    train = transformed_rows(data.train, transform)
    held_out = None if data.held_out is None else transformed_rows(data.held_out, transform)
    shape = tuple(train.tensors[0].shape[1:])
    return replace(data, train=train, held_out=held_out, shape=shape)


def transformed_rows(rows: Dataset[Any], transform: Callable[[Tensor], Tensor]) -> TensorDataset:
    """The rows in memory, with the first column transformed."""
    if not isinstance(rows, TensorDataset):
        columns = zip(*(rows[i] for i in range(len(rows))), strict=True)  # type: ignore[arg-type]
        rows = TensorDataset(*(torch.stack([torch.as_tensor(v) for v in c]) for c in columns))
    x, *rest = rows.tensors
    return TensorDataset(transform(x), *rest)


COUNTS = "class_counts"


class ClassCounts:
    """A histogram that is paid for once. ``counts_`` and ``ledger_`` are there after `fit`."""

    found: ReleasedCounts

    def __init__(
        self, noise_multiplier: float | None, epsilon: float | None, *,
        delta: float = 1e-5, relation: str = Neighbouring.ADD_OR_REMOVE_ONE.value,
        allow_large_delta: bool = False, ledger: Path | None = None, seed: int | None = None,
    ) -> None:  # fmt: skip
        if (epsilon is None) == (noise_multiplier is None):
            raise ConfigurationError(
                "give either epsilon or noise_multiplier. Got "
                f"epsilon={epsilon!r}, noise_multiplier={noise_multiplier!r} instead."
            )
        self._delta, self._relation = delta, relation
        self._options: dict[str, Any] = {
            "epsilon": epsilon, "noise_multiplier": noise_multiplier, "delta": delta,
            "relation": relation, "allow_large_delta": allow_large_delta, "ledger": ledger,
            "seed": seed,
        }  # fmt: skip

    @property
    def ledger_(self) -> Ledger:
        """The ledger of the release."""
        return self.found.ledger

    @property
    def counts_(self) -> tuple[float, ...]:
        """The released number of rows of each class."""
        return self.found.counts

    def fit(self, labels: Tensor, classes: int) -> None:
        """Pay, and release how many of ``labels`` there are of each class, once."""
        self.found = released_counts(labels, classes, **self._options)

    def state_dict(self) -> dict[str, Any]:
        """What was released, to be kept."""
        return {"counts": list(self.counts_)}

    def load_state_dict(self, state: dict[str, Any], ledger: Ledger) -> None:
        """Take over what an earlier session has paid for."""
        spent = guarantee([ledger], self._delta, Neighbouring(self._relation))
        self.found = ReleasedCounts(tuple(state["counts"]), spent, ledger)


def class_counts(
    *, noise_multiplier: float | None = None, epsilon: float | None = None
) -> Callable[..., ClassCounts]:
    """Class counts with these options, once the shared ones are known."""
    return lambda **shared: ClassCounts(noise_multiplier, epsilon, **shared)


def check_counts(config: Config) -> None:
    """Refuse class counts without a loss that uses them, and the other way round."""
    released = [part.name for part in config.prepare].count(COUNTS)
    if config.wants_counts and released != 1:
        raise ConfigurationError(
            f'training.loss.profile = "{RELEASED}" must come with one [[prepare]] of name '
            f'"{COUNTS}". Got {released} of them instead. Or give the counts, if they are public.'
        )
    if released and not config.wants_counts:
        raise ConfigurationError(
            f'prepare "{COUNTS}" must come with training.loss.profile = "{RELEASED}" (loss '
            f"logit_adjusted or ldam_drw): it would be paid for nothing. Got loss "
            f"{config.training.loss.name!r} without it."
        )


AT_ONCE = 1000


def norm(
    *, noise_multiplier: float | None = None, epsilon: float | None = None,
    mean_bound: float = 1.0, square_bound: float = 0.05,
) -> Callable[..., ReleasedMoments]:  # fmt: skip
    """`PrivateNorm` with these options, once the shared ones are known."""
    return lambda **shared: PrivateNorm(
        epsilon, noise_multiplier=noise_multiplier, mean_bound=mean_bound,
        square_bound=square_bound, **shared,
    )  # fmt: skip


def whitening(
    *, noise_multiplier: float | None = None, epsilon: float | None = None,
    rounds: int = 2, bound: float | None = None,
) -> Callable[..., ReleasedMoments]:  # fmt: skip
    """`PrivateWhitening` with these options, once the shared ones are known."""
    return lambda **shared: PrivateWhitening(
        epsilon, noise_multiplier=noise_multiplier, rounds=rounds, bound=bound, **shared
    )


def axes(
    *, noise_multiplier: float | None = None, epsilon: float | None = None,
    power: float = 0.7, place_power: float | None = None, bound: float | None = None,
) -> Callable[..., ReleasedMoments]:  # fmt: skip
    """`PrivateAxes` with these options, once the shared ones are known."""
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
    """Build one release by its name and options."""
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


def prepared(config: Config, data: Data, directory: RunDirectory) -> Prepared:
    """The data as the model sees them, and what was spent for that."""
    spent: list[Any] = []
    profile = None
    seed = config.noise_seed()
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
            content = as_bytes(release.state_dict())
            release.ledger_.note(numbers.name, of_bytes(content))
            replace_file(numbers, content)
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
    found, content = Ledger.read(ledger), content_of(numbers)
    if found.notes.get(numbers.name, ("",))[0] != of_bytes(content):
        raise changed(numbers)
    with sense(numbers):
        release.load_state_dict(dict(torch.load(io.BytesIO(content), weights_only=True)), found)


def _transformed(data: Data, moments: ReleasedMoments, flat: bool) -> Data:
    def by_parts(x: Tensor) -> Tensor:
        return torch.cat([moments(p.flatten(1) if flat else p) for p in x.split(AT_ONCE)])

    train = transformed_rows(data.train, by_parts)
    held_out = None if data.held_out is None else transformed_rows(data.held_out, by_parts)
    shape = tuple(train.tensors[0].shape[1:])
    return replace(data, train=train, held_out=held_out, shape=shape)
