"""Models by name, or by the import path of a class or function that makes one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from winsor.contract import ConfigurationError
from winsor.models import networks as small
from winsor.models.gpt import SmallGPT
from winsor.runs.config import DataSettings
from winsor.runs.data import Data
from winsor.runs.importing import call_imported, import_object, is_import_path
from winsor.runs.reading import Part, bind

Shape = tuple[int, ...]


def linear(shape: Shape, outputs: int, *, bias: bool = True) -> nn.Module:
    return small.mlp([_flat(shape), outputs], bias=bias)


def mlp(
    shape: Shape, outputs: int, *, hidden: list[int] | None = None, bias: bool = True
) -> nn.Module:
    return small.mlp([_flat(shape), *([64] if hidden is None else hidden), outputs], bias=bias)


def two_layer_cnn(shape: Shape, outputs: int, *, groups: int = 4) -> nn.Module:
    if len(shape) != 3 or shape[1:] != (28, 28):
        raise ConfigurationError(
            "data.shape must be [channels, 28, 28] for the model two_layer_cnn. Got "
            f"{list(shape)} instead."
        )
    return small.two_layer_cnn(outputs, channels=shape[0], groups=groups or None)


def resnet9(shape: Shape, outputs: int, *, width: int = 16, group: int = 8) -> nn.Module:
    return small.resnet_gn(9, outputs, channels=_channels(shape), width=width, group=group)


def resnet20(shape: Shape, outputs: int, *, width: int = 16, group: int = 8) -> nn.Module:
    return small.resnet_gn(20, outputs, channels=_channels(shape), width=width, group=group)


def gpt(
    shape: Shape, outputs: int, *, layers: int = 2, heads: int = 2, width: int = 64
) -> nn.Module:
    return SmallGPT(outputs, shape[0], layers=layers, heads=heads, width=width)


BUILT_IN: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "two_layer_cnn": two_layer_cnn,
    "resnet9": resnet9,
    "resnet20": resnet20,
    "gpt": gpt,
}


def _flat(shape: Shape) -> int:
    size = 1
    for side in shape:
        size *= side
    return size


def _channels(shape: Shape) -> int:
    if len(shape) != 3:
        raise ConfigurationError(
            f"data.shape must be [channels, height, width] for a ResNet. Got {list(shape)} instead."
        )
    return shape[0]


def check_model(part: Part, data: DataSettings) -> None:
    """Everything about the model that can be checked before the data are read."""
    if part.name in BUILT_IN:
        bind(BUILT_IN[part.name], part.options, "model")
        if (part.name == "gpt") != (data.task == "language"):
            raise ConfigurationError(
                f"model gpt goes with data.task language, and only with it. Got {part.name!r} "
                f"with {data.task!r} instead."
            )
    elif is_import_path(part.name):
        _factory(part)
    else:
        raise ConfigurationError(
            f"model.name must be one of {', '.join(BUILT_IN)}, or an import path "
            f'"package.module:name". Got {part.name!r} instead.'
        )


def build_model(part: Part, data: Data, seed: int) -> nn.Module:
    """The model, started from ``seed`` and tried on rows of zeros."""
    torch.manual_seed(seed)
    if part.name in BUILT_IN:
        options = bind(BUILT_IN[part.name], part.options, "model")
        model = BUILT_IN[part.name](data.shape, data.outputs, **options)
    else:
        model = _imported(part, data)
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigurationError(
            f"model must have at least one trainable parameter. Got none in {part.name!r}."
        )
    return model


def _factory(part: Part) -> Any:
    found = import_object(part.name, "model.name")
    if isinstance(found, nn.Module) or not callable(found):
        raise ConfigurationError(
            "model.name must point to a class or function that makes a model, so that each run "
            f"starts afresh. Got {type(found).__name__} from {part.name!r} instead."
        )
    return found


def _imported(part: Part, data: Data) -> nn.Module:
    """Calls the factory with the options, and with ``shape`` and ``outputs`` if it takes them."""
    factory = _factory(part)
    options = dict(part.options)
    offered = {"shape": data.shape, "outputs": data.outputs}
    names = inspect.signature(factory).parameters
    options |= {name: value for name, value in offered.items() if name in names}
    model = call_imported(factory, options, f"model {part.name!r}")
    if not isinstance(model, nn.Module):
        raise ConfigurationError(
            f"model.name must make a torch.nn.Module. Got {type(model).__name__} from "
            f"{part.name!r} instead."
        )
    return model
