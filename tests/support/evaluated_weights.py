"""The weights of whatever the reproductions' runs evaluate, in place of accuracies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


def kept_weights(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The weights of whatever is evaluated from now on."""
    seen: list[Tensor] = []

    def note(model: torch.nn.Module, *_: object) -> tuple[float, float]:
        seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        return 50.0, 1.0

    for module in ("dc_dpsgd.lockstep", "dc_dpsgd.runs", "training_runs"):
        monkeypatch.setattr(f"winsor_papers.reproductions.{module}.evaluate", note)
    return seen
