"""Rules and mechanisms by name, with their options checked against their own fields."""

from __future__ import annotations

from typing import Any

from winsor import rules
from winsor.contract import ConfigurationError
from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.runs.config import Config
from winsor.runs.models import check_model
from winsor.runs.optimisers import check_optimizer, check_schedule
from winsor.runs.reading import Part, bind, plain


def build_rule(part: Part) -> Any:
    """The rule; tables inside its options become the dataclasses that the rule names there."""
    known = {plain(name): kind for name, kind in rules.all_rules().items()}
    kind = known.get(plain(part.name))
    if kind is None:
        names = ", ".join(rules.all_rules())
        raise ConfigurationError(f"rule.name must be one of {names}. Got {part.name!r} instead.")
    options = bind(kind, part.options, "rule")
    try:
        return kind(**options)
    except ConfigurationError as error:
        raise ConfigurationError(f"rule: {error}") from error


def build_mechanism(part: Part) -> str | ModelMix:
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
    raise ConfigurationError(
        f"mechanism.name must be gaussian, laplace or modelmix. Got {part.name!r} instead."
    )


def _no_options() -> None:
    """The scale of plain noise follows from the budget."""


def check(config: Config) -> None:
    """Build everything that needs no data, so that mistakes show before anything is written."""
    build_rule(config.rule)
    build_mechanism(config.mechanism)
    check_optimizer(config.optimizer)
    check_schedule(config.schedule)
    check_model(config.model, config.data)
