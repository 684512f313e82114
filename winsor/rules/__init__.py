"""Every clipping rule, found rather than listed.

A rule is a module of this folder that exports ``EXAMPLES``: a few instances of its class or
classes. The test battery, the audit, the command line and the documentation go through the
functions below, so adding a rule is adding one file.

>>> from winsor import rules
>>> rules.Flat(1.0)
Flat(max_grad_norm=1.0)
>>> rules.by_name("per_layer", max_grad_norm=1.0, joint=True).joint
True
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import MappingProxyType
from typing import Any

from winsor.contract import ConfigurationError


@functools.cache
def _modules() -> tuple[Any, ...]:
    found = sorted(module.name for module in pkgutil.iter_modules(__path__))
    loaded = (importlib.import_module(f"{__name__}.{name}") for name in found)
    return tuple(module for module in loaded if hasattr(module, "EXAMPLES"))


@functools.cache
def all_rules() -> MappingProxyType[str, type[Any]]:
    """Class name -> rule class, in the order of their files."""
    classes = [type(example) for module in _modules() for example in module.EXAMPLES]
    return MappingProxyType({cls.__name__: cls for cls in dict.fromkeys(classes)})


def all_examples() -> tuple[Any, ...]:
    """The example instances of every rule."""
    return tuple(example for module in _modules() for example in module.EXAMPLES)


def by_name(name: str, /, **options: Any) -> Any:
    """The rule called ``name``, whatever its spelling: "per_layer", "PerLayer", "per-layer"."""
    known = {_plain(rule): cls for rule, cls in all_rules().items()}
    if _plain(name) not in known:
        raise ConfigurationError(
            f"rule must be one of {sorted(all_rules())}. Got {name!r} instead."
        )
    try:
        return known[_plain(name)](**options)
    except TypeError as error:
        raise ConfigurationError(f"the options of {name!r} do not fit: {error}.") from error


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def __getattr__(name: str) -> Any:
    if not name[:1].isupper():  # the import system probes for submodules: no discovery for those
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    rules = all_rules()
    if name in rules:
        return rules[name]
    raise AttributeError(f"module {__name__!r} has no rule {name!r}; it has {sorted(rules)}")


def __dir__() -> list[str]:
    return ["all_examples", "all_rules", "by_name", *all_rules()]
