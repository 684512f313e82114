"""Choose the engine that turns losses into views."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from winsor.core.contract import ConfigurationError
from winsor.gradients.func import FuncEngine
from winsor.gradients.ghost import GhostEngine
from winsor.gradients.loop import LoopEngine
from winsor.gradients.parameters import find_sites
from winsor.gradients.support import refuse_mixed_numbers
from winsor.gradients.view import Engine, Need

ENGINES = ("loop", "func", "ghost")

FORWARD: list[Callable[[nn.Module, Mapping[str, nn.Parameter]], Engine]] = []
"""The engine of rules that need the forward pass only; `winsor.contrib.value` puts its own here."""


def make_engine(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    name: str = "auto",
    needs: Need | None = None,
) -> Engine:
    """Make an engine for the trainable ``parameters`` of ``model``, not yet attached.

    ``needs`` is what the rule will ask of the view; an engine may skip what is not asked for.
    """
    if name in ("forward", "auto") and needs is not None and Need.FORWARD in needs:
        if name == "auto" and Need.NORMS_WILL_DO in needs and _is_linear(model, parameters):
            exact = GhostEngine(model, parameters, needs)
            if exact.has_plan:
                return exact
        return FORWARD[0](model, parameters)
    refuse_mixed_numbers(parameters)
    if name == "loop":
        return LoopEngine(model, parameters)
    if name == "func":
        return FuncEngine(model, parameters)
    if name in ("ghost", "auto"):
        return GhostEngine(model, parameters, needs)
    names = ", ".join(("auto", *ENGINES))
    raise ConfigurationError(f"engine must be one of {names}. Got {name!r} instead.")


def _is_linear(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> bool:
    """Tell whether linear layers hold all parameters."""
    return all(isinstance(site.module, nn.Linear) for site in find_sites(model, parameters))
