"""Convolutions whose weights are standardised: mean 0 and variance 1/fan-in per output channel.

    w -> gain (w - mean(w)) / sqrt(var(w) fan_in + eps)

together with group normalisation what batch normalisation is without privacy: the scale of a layer
stays fixed however noisy its weights are. A function of the weights alone, so rows stay separate.

References
----------
Qiao et al. 2019 (weight standardisation); De et al. 2022 train WideResNets privately with it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-4


class StandardisedConv2d(nn.Conv2d):
    """`nn.Conv2d` with standardised weights and a gain for each output channel.

    >>> layer = StandardisedConv2d(3, 8, 3, padding=1)
    >>> layer(torch.zeros(2, 3, 5, 5)).shape
    torch.Size([2, 8, 5, 5])
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.gain = nn.Parameter(torch.ones(self.out_channels))

    def standardised(self) -> Tensor:
        """Return the weights with mean 0 and variance 1 / fan-in per channel, times the gain."""
        flat = self.weight.flatten(1)
        fan_in = flat.shape[1]
        centred = flat - flat.mean(1, keepdim=True)
        spread = (centred.square().mean(1, keepdim=True) * fan_in + EPS).rsqrt()
        return (centred * spread * self.gain[:, None]).view_as(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of ``input`` with standardised weights."""
        if self.padding_mode != "zeros":
            pads = self._reversed_padding_repeated_twice
            padded = F.pad(input, pads, mode=self.padding_mode)
            return F.conv2d(
                padded, self.standardised(), self.bias, self.stride, 0, self.dilation, self.groups
            )
        return F.conv2d(
            input, self.standardised(), self.bias, self.stride, self.padding, self.dilation,
            self.groups,
        )  # fmt: skip


def standardise_convolutions(model: nn.Module) -> nn.Module:
    """Replace every `nn.Conv2d` of ``model`` by a standardised one, with the weights it has."""
    for name, child in model.named_children():
        if type(child) is nn.Conv2d:
            setattr(model, name, _standardised(child))
        else:
            standardise_convolutions(child)
    return model


def _standardised(layer: nn.Conv2d) -> StandardisedConv2d:
    made = StandardisedConv2d(
        layer.in_channels, layer.out_channels, layer.kernel_size,
        stride=layer.stride, padding=layer.padding, dilation=layer.dilation, groups=layer.groups,
        bias=layer.bias is not None, padding_mode=layer.padding_mode,
    )  # fmt: skip
    with torch.no_grad():
        made.weight.copy_(layer.weight)
        if layer.bias is not None and made.bias is not None:
            made.bias.copy_(layer.bias)
        fan_in = math.prod(layer.weight.shape[1:])
        made.gain.copy_(layer.weight.flatten(1).std(1, correction=0) * math.sqrt(fan_in))
    return made
