"""Replace BatchNorm, which mixes the rows of a batch, by GroupNorm, which does not."""

from __future__ import annotations

import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from winsor.core.contract import ConfigurationError


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
