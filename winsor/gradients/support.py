"""Models that no engine can serve soundly: refused before training starts, or repaired."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from winsor.core.contract import ConfigurationError, UnsupportedModel


def refuse_unsupported(model: nn.Module) -> None:
    """Raise `UnsupportedModel` if a module mixes rows or keeps statistics of the private data."""
    for path, module in model.named_modules():
        where = f"{path or 'the model itself'} ({type(module).__name__})"
        if isinstance(module, _InstanceNorm):
            if module.track_running_stats and module.training:
                raise UnsupportedModel(
                    f"{where} must not track running statistics: they leave the model without "
                    "noise. Build it with track_running_stats=False."
                )
        elif isinstance(module, _BatchNorm) and module.training:
            raise UnsupportedModel(
                f"{where} must not normalise over the batch: in training mode it mixes rows, so no "
                "row has a gradient of its own, and its running statistics would leave without "
                "noise. Replace it with winsor.gradients.replace_batchnorm(model), or freeze its "
                "statistics with .eval()."
            )
        elif any(isinstance(p, nn.parameter.UninitializedParameter) for p in _own(module)):
            raise UnsupportedModel(
                f"{where} must be initialised. Got lazy parameters without a shape. Run one "
                "forward pass on made-up data before making the model private."
            )
        elif _is_compiled(module):
            raise UnsupportedModel(
                f"{where} must be a plain module. Got a compiled one, whose layers cannot be "
                "recorded. Make the original model private: the one that was given to "
                "torch.compile (compiled._orig_mod) or to torch.jit, before model.compile()."
            )
    refuse_mixed_numbers({name: p for name, p in model.named_parameters() if p.requires_grad})


def _is_compiled(module: nn.Module) -> bool:
    """Tell whether torch.jit, torch.compile(model) or model.compile() made it."""
    if isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod"):
        return True
    return getattr(module, "_compiled_call_impl", None) is not None


def refuse_mixed_numbers(parameters: Mapping[str, Tensor]) -> None:
    """Refuse numbers of fewer than 24 bits: per-sample norms decide the bound."""
    for name, p in parameters.items():
        if p.dtype not in (torch.float32, torch.float64):
            raise UnsupportedModel(
                f"{name} must be float32 or float64. Got {p.dtype} instead, in which norms are too "
                "coarse for a bound to hold. Keep the parameters in float32 and use torch.autocast."
            )
    if len({(p.dtype, p.device) for p in parameters.values()}) > 1:
        kinds = sorted({f"{p.dtype} on {p.device}" for p in parameters.values()})
        raise UnsupportedModel(
            f"trainable parameters must share one dtype and one device. Got {', '.join(kinds)}. "
            "Move the model with model.to(...) first."
        )


def _own(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module._parameters.values() if p is not None]


def replace_batchnorm(model: nn.Module, groups: int = 32) -> nn.Module:
    """Swap every BatchNorm of ``model`` for a GroupNorm, in place, and return the model.

    The number of groups is the largest divisor of the channels that is at most ``groups``, and at
    most channels / 2, so that a 1-position map keeps more than one value per group. The affine
    parameters and whether they are trained carry over; running statistics do not, so a trained
    model must be trained again.

    >>> from torch import nn
    >>> replace_batchnorm(nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)))[1].num_groups
    4
    """
    if groups < 1:
        raise ConfigurationError(f"groups must be at least 1. Got {groups!r} instead.")
    if isinstance(model, _BatchNorm):
        return _group_norm(model, groups)
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, _BatchNorm):
                setattr(module, name, _group_norm(child, groups))
    return model


def _group_norm(norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = norm.num_features
    most = max(1, min(groups, channels // 2))
    fitting = max(g for g in range(1, most + 1) if math.gcd(g, channels) == g)
    new = nn.GroupNorm(fitting, channels, eps=norm.eps, affine=norm.affine)
    new.train(norm.training)
    if norm.affine:
        new.weight, new.bias = norm.weight, norm.bias
    return new
