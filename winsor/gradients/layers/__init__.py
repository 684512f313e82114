"""One small file per kind of layer. The first layer of `LAYERS` that matches a module serves it."""

from __future__ import annotations

from torch import nn

from winsor.gradients.layers.convolution import ConvolutionLayer
from winsor.gradients.layers.embedding import EmbeddingBagLayer, EmbeddingLayer
from winsor.gradients.layers.layer import Layer
from winsor.gradients.layers.linear import LinearLayer, TransposedLinearLayer
from winsor.gradients.layers.norms import (
    GroupNormLayer,
    InstanceNormLayer,
    LayerNormLayer,
    RMSNormLayer,
)

LAYERS: tuple[type[Layer], ...] = (
    LinearLayer,
    ConvolutionLayer,
    EmbeddingLayer,
    EmbeddingBagLayer,
    LayerNormLayer,
    RMSNormLayer,
    GroupNormLayer,
    InstanceNormLayer,
    TransposedLinearLayer,
)


def layer_for(module: nn.Module) -> type[Layer] | None:
    """Find the closed form for this module, or None: then torch.func serves it."""
    held = {name for name, p in module._parameters.items() if p is not None}
    if not held <= {"weight", "bias"} or "weight" not in module._parameters:
        return None
    return next((layer for layer in LAYERS if layer.matches(module)), None)
