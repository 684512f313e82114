"""Rules, mechanisms, optimisers, schedules and monitors by name, their options checked.

A part is imported when a configuration asks for it. Optimisers and schedules are post-processing of
released gradients, so every choice of them is equally private.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

from winsor import rules
from winsor.app.runs.config import Config, RecordSettings
from winsor.app.runs.data import load_data
from winsor.app.runs.reading import Part, bind, plain, value_of
from winsor.core.checks import choice, fraction, positive
from winsor.core.contract import ConfigurationError, PrivacyLeakWarning
from winsor.rules.rule import Rule, State, WrappedRule


def build_rule(part: Part, model: nn.Module | None = None, config: Config | None = None) -> Any:
    """Build the rule; tables inside its options become the dataclasses that the rule names there.

    A basis of public gradients needs the model, and how its rows are read; without them random
    directions stand in for it, so that everything else can be checked.
    """
    kind = rules.find(part.name)
    if kind is None:
        names, remedy = ", ".join(rules.all_rules()), rules.moved(part.name)
        raise ConfigurationError(
            f"rule.name must be one of {names}. Got {part.name!r} instead. {remedy}".rstrip()
        )
    given = part.options
    if issubclass(kind, WrappedRule) and "rule" in given:
        inner = value_of(Part, given["rule"], "rule.rule")
        given = {**given, "rule": build_rule(inner, model, config)}
    options = bind(kind, _with_basis(given, model, config), "rule")
    try:
        return kind(**options)
    except ConfigurationError as error:
        raise ConfigurationError(f"rule: {error}") from error


def _with_basis(
    options: dict[str, Any], model: nn.Module | None, config: Config | None
) -> dict[str, Any]:
    basis = options.get("basis")
    if not isinstance(basis, Mapping) or plain(str(basis.get("name"))) != "publicgradients":
        return options
    given = {key: value for key, value in basis.items() if key != "name"}
    found = bind(_public_gradients, given, "rule.basis")
    from winsor.contrib.embedding.embedding import RandomBasis

    made: Any = RandomBasis(found["k"])
    if model is not None and config is not None:
        made = _public_gradients(model, config, **found)
    return {**options, "basis": made}


def _public_gradients(
    model: nn.Module, config: Config, *, source: str, k: int, refresh: int = 50
) -> Any:
    """Directions from the rows of ``source``, read and transformed as those of the run are."""
    from winsor.app.runs.prepare import with_features
    from winsor.contrib.embedding.public_gradients import PublicGradients

    data = config.data
    settings = replace(data, source=source, held_out=None, held_out_fraction=0.0)
    rows = with_features(config.features, load_data(settings, protected=False)).train
    if not isinstance(rows, TensorDataset) or data.task == "language":
        raise ConfigurationError(
            "rule.basis.source must be rows with inputs and targets: digits, synthetic, or a file "
            f"of classification or regression. Got {source!r} instead."
        )
    loss = squared if data.task == "regression" else F.cross_entropy
    x, y = rows.tensors
    return PublicGradients(copy.deepcopy(model), (x, y), k, refresh, loss)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error of models with one output."""
    return F.mse_loss(outputs[:, 0], targets)


def build_mechanism(part: Part) -> Any:
    """What `make_private` takes as its mechanism: a name, or a ``Choice``."""
    match plain(part.name):
        case "gaussian" | "laplace" as name:
            bind(_no_options, part.options, "mechanism")
            return name
        case "modelmix":
            from winsor.contrib.modelmix.mechanism import ModelMix

            options = bind(ModelMix, part.options, "mechanism")
            try:
                return ModelMix(**options)
            except ConfigurationError as error:
                raise ConfigurationError(f"mechanism: {error}") from error
        case "banded":
            return _banded(**bind(_banded, part.options, "mechanism"))
    raise ConfigurationError(
        f"mechanism.name must be gaussian, laplace, modelmix or banded. Got {part.name!r} instead."
    )


def _banded(*, bands: int | None = None, optimised: bool = False) -> Any:
    """Correlated noise; without ``bands`` their number is chosen for the run."""
    from winsor.planning.bands import Banded

    try:
        return Banded(bands, optimised)
    except ConfigurationError as error:
        raise ConfigurationError(f"mechanism: {error}") from error


def check_drawing(config: Config) -> None:
    """Refuse correlated noise without its way of drawing, and the other way round."""
    build_mechanism(config.mechanism)
    banded = plain(config.mechanism.name) == "banded"
    if banded != (config.training.sampling == "cyclic"):
        raise ConfigurationError(
            'training.sampling must be "cyclic" with mechanism banded, and with no other. Got '
            f"{config.training.sampling!r} with {config.mechanism.name} instead. See "
            "docs/ways-of-drawing.md."
        )


def _no_options() -> None:
    """The scale of plain noise follows from the budget."""


# ------------------------------------------------------------------------------------- optimisers

Maker = Callable[..., torch.optim.Optimizer]


def _descent(default_momentum: float) -> Maker:
    def make(
        model: nn.Module,
        *,
        lr: float,
        momentum: float = default_momentum,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            model.parameters(), lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay
        )

    return make


def _adaptive(kind: type[torch.optim.Adam], default_decay: float) -> Maker:
    def make(
        model: nn.Module,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = default_decay,
    ) -> torch.optim.Optimizer:
        return kind(model.parameters(), lr, betas, eps, weight_decay)

    return make


def _corrected(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    floor: float = 1e-4,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    from winsor.training.optimisers import AdamCorrected

    return AdamCorrected(model.parameters(), lr, betas, floor, weight_decay)


OPTIMIZERS: dict[str, Maker] = {
    "sgd": _descent(0.0),
    "momentum": _descent(0.9),
    "adam": _adaptive(torch.optim.Adam, 0.0),
    "adamw": _adaptive(torch.optim.AdamW, 1e-2),
    "adam_corrected": _corrected,
}


def check_optimizer(part: Part) -> None:
    """Try the settings on a model of one weight."""
    build_optimizer(part, nn.Linear(1, 1))


def build_optimizer(part: Part, model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of the model's parameters."""
    make = OPTIMIZERS[choice("optimizer.name", part.name, OPTIMIZERS)]
    options = bind(make, part.options, "optimizer")
    positive("optimizer.lr", options.get("lr", 1.0))
    try:
        return make(model, **options)
    except ValueError as error:
        raise ConfigurationError(f"optimizer: {error}.") from error


# -------------------------------------------------------------------------------------- schedules

Factor = Callable[[float], float]
"""From progress in [0, 1] to the factor on the learning rate."""


def constant() -> Factor:
    """Keep the first rate."""
    return lambda progress: 1.0


def linear(*, last: float = 0.0) -> Factor:
    """Fall straight to ``last`` times the first rate."""
    return lambda progress: 1 - (1 - last) * progress


def cosine(*, last: float = 0.0) -> Factor:
    """Fall along half a cosine to ``last`` times the first rate."""
    return lambda progress: last + (1 - last) * (1 + math.cos(math.pi * progress)) / 2


def steps(*, at: list[float], factor: float = 0.1) -> Factor:
    """Multiply by ``factor`` at each of the given fractions of the run."""
    return lambda progress: factor ** sum(progress >= moment for moment in at)


SCHEDULES: dict[str, Callable[..., Factor]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "steps": steps,
}


def check_schedule(part: Part) -> None:
    """Refuse unknown schedules and options."""
    _factor(part)


def build_schedule(part: Part, optimizer: torch.optim.Optimizer, planned: int) -> LambdaLR:
    """The scheduler over ``planned`` steps."""
    factor, warmup = _factor(part)

    def at(step: int) -> float:
        progress = min(1.0, step / planned)
        rising = min(1.0, (step + 1) / (warmup * planned)) if warmup else 1.0
        return factor(progress) * rising

    return LambdaLR(optimizer, at)


def _factor(part: Part) -> tuple[Factor, float]:
    """``warmup`` is the fraction of the run over which the rate first rises linearly."""
    make = SCHEDULES[choice("schedule.name", part.name, SCHEDULES)]
    options = dict(part.options)
    warmup = fraction("schedule.warmup", options.pop("warmup", 0.0))
    return make(**bind(make, options, "schedule")), warmup


# --------------------------------------------------------------------------------------- monitors

NUMBERS = ("clip_fraction", "clipping_bias", "effective_batch", "noise_to_signal")
PRIVATE_QUANTILES = (0.1, 0.5, 0.9, 0.99)


class Off:
    """Records nothing."""

    section = ""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        """What to train with."""

    def saw(self, losses: Tensor) -> None:
        """Note the losses of a physical batch."""

    def values(self, state: State) -> dict[str, Any]:
        """What to record about the latest step."""
        return {}

    def forget(self) -> None:
        """Drop what was noted; called after every logical step."""


class Private(Off):
    """Readings of released histograms: part of the guarantee."""

    section = "monitor"

    def __init__(self, rule: Rule, share: float) -> None:
        from winsor.rules.monitor import PrivateMonitor

        self._monitor = PrivateMonitor(rule, share=share)
        super().__init__(self._monitor)

    def values(self, state: State) -> dict[str, Any]:
        """Released readings of the latest step."""
        reading = self._monitor.reading(state)
        found: dict[str, Any] = _finite({name: getattr(reading, name) for name in NUMBERS})
        if sum(reading.counts) > 0:
            found["quantiles"] = {str(q): reading.quantile(q) for q in PRIVATE_QUANTILES}
        return found


class Debug(Off):
    """Exact numbers of the rows of a step."""

    section = "not_private"

    def __init__(self, rule: Rule) -> None:
        from winsor.rules.debug_monitor import DebugMonitor

        self._losses: list[Tensor] = []
        with warnings.catch_warnings():
            # the configuration asked for it, and every output says so
            warnings.simplefilter("ignore", PrivacyLeakWarning)
            self._monitor = DebugMonitor(rule)
        super().__init__(self._monitor)

    def saw(self, losses: Tensor) -> None:
        """Keep the losses of a physical batch until the step is recorded."""
        self._losses.append(losses.detach())

    def values(self, state: State) -> dict[str, Any]:
        """Exact values of the latest step. NOT PRIVATE."""
        if not self._losses:  # an empty batch
            return {}
        rows = sum(len(losses) for losses in self._losses)
        total = sum(float(losses.sum()) for losses in self._losses)
        found: dict[str, Any] = _finite({"training_loss": total / rows})
        record = self._monitor.records[-1]
        found |= _finite({name: getattr(record, name) for name in NUMBERS})
        if record.quantiles:
            found["quantiles"] = {str(q): value for q, value in record.quantiles.items()}
            found["quantiles"]["1.0"] = record.largest
        return found

    def forget(self) -> None:
        """Drop the losses and the readings of the step."""
        self._losses = []
        self._monitor.records.clear()


def make_monitor(rule: Rule, record: RecordSettings) -> Off:
    """The monitor that record.monitor asks for, around ``rule``.

    off      records nothing
    private  `PrivateMonitor`: a noised histogram of gradient norms inside each release and its
             epsilon; recorded under "monitor"
    debug    `DebugMonitor` and the training loss: exact, NOT PRIVATE; under "not_private"
    """
    match record.monitor:
        case "private":
            return Private(rule, record.monitor_share)
        case "debug":
            return Debug(rule)
    return Off(rule)


def _finite(values: dict[str, float | None]) -> dict[str, float]:
    """JSON has no infinity, and a missing value needs no line."""
    return {k: v for k, v in values.items() if v is not None and math.isfinite(v)}
