"""Models without batch statistics, and low-rank corrections of any model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winsor.models.gpt import SmallGPT
    from winsor.models.lora import LowRank, low_rank
    from winsor.models.networks import mlp, resnet_gn, two_layer_cnn

__all__ = ["LowRank", "SmallGPT", "low_rank", "mlp", "resnet_gn", "two_layer_cnn"]

_HOMES = {
    "SmallGPT": "winsor.models.gpt",
    **dict.fromkeys(("LowRank", "low_rank"), "winsor.models.lora"),
    **dict.fromkeys(("mlp", "resnet_gn", "two_layer_cnn"), "winsor.models.networks"),
}


if not TYPE_CHECKING:  # loaded on first use: a run has one model

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'winsor.models' has no attribute {name!r}.")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value
