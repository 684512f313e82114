"""Models without batch statistics, and low-rank corrections of any model."""

from __future__ import annotations

from winsor.models.gpt import SmallGPT
from winsor.models.lora import LowRank, low_rank
from winsor.models.networks import mlp, resnet_gn, two_layer_cnn

__all__ = ["LowRank", "SmallGPT", "low_rank", "mlp", "resnet_gn", "two_layer_cnn"]
