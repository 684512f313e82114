"""Which parameters are trained, and which module answers for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

CONTAINERS = (nn.ParameterList, nn.ParameterDict, ParametrizationList)
"""Modules that hold parameters for the module around them, which reads them in its own forward."""

FUSED = (nn.MultiheadAttention,)
"""Modules whose forward reads the parameters of their children without calling the children."""


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return {name: parameter} that require a gradient; a tied parameter appears once, by first
    name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@dataclass(frozen=True, eq=False)
class Slot:
    """One place that holds a parameter: ``owner._parameters[local]`` is parameter ``name``."""

    owner: nn.Module
    local: str
    relative: str
    """Path of the slot as seen from the site's module ("weight", "out_proj.bias", ...)."""
    name: str


@dataclass(frozen=True, eq=False)
class Site:
    """A module whose forward uses trainable parameters, and the slots it answers for."""

    path: str
    module: nn.Module
    slots: tuple[Slot, ...]

    def name_of(self, relative: str) -> str | None:
        """Return the trainable parameter behind ``relative``, or None if it is frozen or absent."""
        return next((slot.name for slot in self.slots if slot.relative == relative), None)

    def __str__(self) -> str:
        return f"{self.path or 'the model itself'} ({type(self.module).__name__})"


def find_sites(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> list[Site]:
    """Return every module that answers for at least one of ``parameters``, in the order of the
    model."""
    names = {id(p): name for name, p in parameters.items()}
    sites: list[Site] = []
    fused: set[int] = set()
    for path, module in model.named_modules():
        if id(module) in fused or isinstance(module, CONTAINERS):
            continue
        slots = tuple(
            Slot(owner, local, f"{inner}.{local}" if inner else local, names[id(p)])
            for inner, owner in _responsible(module)
            for local, p in owner._parameters.items()
            if p is not None and id(p) in names
        )
        if isinstance(module, FUSED):
            fused.update(id(child) for child in module.modules())
        if slots:
            sites.append(Site(path, module, slots))
    return sites


def _responsible(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Return the module itself and the containers below it (all children, for fused modules)."""
    yield prefix, module
    for name, child in module.named_children():
        if isinstance(child, (*CONTAINERS, nn.ModuleDict)) or isinstance(module, FUSED):
            inner = f"{prefix}.{name}" if prefix else name
            if isinstance(child, nn.ModuleDict) and name != "parametrizations":
                continue
            yield from _responsible(child, inner)
