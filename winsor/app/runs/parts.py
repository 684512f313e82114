"""Rules and mechanisms by name, with their options checked against their own fields."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from winsor import rules
from winsor.app.runs.config import Config
from winsor.app.runs.data import load_data
from winsor.app.runs.features import build_features, with_features
from winsor.app.runs.models import check_model
from winsor.app.runs.optimisers import check_optimizer, check_schedule
from winsor.app.runs.prepare import check_prepare
from winsor.app.runs.private_held_out import check_held_out
from winsor.app.runs.reading import Part, bind, plain, value_of
from winsor.app.runs.tasks import make_task
from winsor.contrib.embedding.embedding import RandomBasis
from winsor.contrib.embedding.public_gradients import PublicGradients
from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.core.contract import ConfigurationError
from winsor.planning.bands import Banded
from winsor.rules.rule import WrappedRule
from winsor.training.iterates import Ball


def build_rule(part: Part, model: nn.Module | None = None, config: Config | None = None) -> Any:
    """The rule; tables inside its options become the dataclasses that the rule names there.

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
    made: Any = RandomBasis(found["k"])
    if model is not None and config is not None:
        made = _public_gradients(model, config, **found)
    return {**options, "basis": made}


def _public_gradients(
    model: nn.Module, config: Config, *, source: str, k: int, refresh: int = 50
) -> PublicGradients:
    """Directions from the rows of ``source``, read and transformed as those of the run are."""
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
    return F.mse_loss(outputs[:, 0], targets)


def build_mechanism(part: Part) -> str | ModelMix | Banded:
    """What `make_private` takes as mechanism."""
    match plain(part.name):
        case "gaussian" | "laplace" as name:
            bind(_no_options, part.options, "mechanism")
            return name
        case "modelmix":
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


def _banded(*, bands: int | None = None, optimised: bool = False) -> Banded:
    """Correlated noise; without ``bands`` their number is chosen for the run."""
    try:
        return Banded(bands, optimised)
    except ConfigurationError as error:
        raise ConfigurationError(f"mechanism: {error}") from error


def check_drawing(config: Config) -> None:
    """Correlated noise and its way of drawing are asked for together, or neither is."""
    banded = isinstance(build_mechanism(config.mechanism), Banded)
    if banded != (config.training.sampling == "cyclic"):
        raise ConfigurationError(
            'training.sampling must be "cyclic" with mechanism banded, and with no other. Got '
            f"{config.training.sampling!r} with {config.mechanism.name} instead. See "
            "docs/ways-of-drawing.md."
        )


def _no_options() -> None:
    """The scale of plain noise follows from the budget."""


def ball_of(config: Config, model: nn.Module) -> Ball | None:
    """Where the iterates must stay; the start, which counts as one, is moved there."""
    radius, centre = config.training.ball_radius, config.training.ball_centre
    if radius is None:
        return None
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    ball = Ball(radius, trained if centre == "start" else None)
    ball.project_(trained)
    return ball


def check(config: Config) -> None:
    """Build everything that needs no data, so that mistakes show before anything is written."""
    build_rule(config.rule)
    check_drawing(config)
    check_optimizer(config.optimizer)
    check_schedule(config.schedule)
    check_model(config.model, config.data)
    build_features(config.features)
    check_prepare(config)
    make_task(config)
    check_held_out(config)
