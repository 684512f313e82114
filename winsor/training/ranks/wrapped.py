"""Models inside DistributedDataParallel: their buckets must not average raw gradients.

winsor reads the gradient of each row and adds up what it has bounded. The wrapper's own reduction
would carry gradients without bound and noise to other ranks, and would wait for ranks that have no
rows in a step. So it is switched off, for good, and the model inside is what is trained.
"""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from winsor.core.contract import UnsupportedModel


def inside(model: nn.Module) -> nn.Module:
    """The model that a wrapper holds, with the wrapper's reduction switched off."""
    if isinstance(model, DataParallel):
        raise UnsupportedModel(
            "model must run in one process per device. Got DataParallel instead, which splits "
            "batches over threads behind the engine's back. Start one process per device with "
            "torchrun."
        )
    if not isinstance(model, DistributedDataParallel):
        return model
    model.require_backward_grad_sync = False
    model.require_forward_param_sync = False  # ranks without rows do not come to it
    inner: nn.Module = model.module
    return inner
