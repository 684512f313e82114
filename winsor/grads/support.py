"""Refuse, before training starts, what no engine can serve soundly."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from winsor.contract import UnsupportedModel


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
                "noise. Replace it with winsor.grads.replace_batchnorm(model), or freeze its "
                "statistics with .eval()."
            )
        elif any(isinstance(p, nn.parameter.UninitializedParameter) for p in _own(module)):
            raise UnsupportedModel(
                f"{where} must be initialised. Got lazy parameters without a shape. Run one "
                "forward pass on made-up data before making the model private."
            )
        elif any(p.requires_grad and p.is_complex() for p in _own(module)):
            raise UnsupportedModel(
                f"{where} must have real parameters. Got complex ones; store real and imaginary "
                "parts instead."
            )


def _own(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module._parameters.values() if p is not None]
