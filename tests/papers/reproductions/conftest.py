"""What the reproductions' tests share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from winsor.contrib.modelmix.update import MixingUpdate
from winsor.core.randomness import stream


@pytest.fixture
def smooth_mixing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw mixing weights that follow their bounds.

    Whole numbers are drawn by rejection: a bound that differs by rounding may take one draw more,
    and then all that come after it are others. Runs that differ in rounding can only be compared
    with draws that differ as little as their bounds do.
    """

    def drawn(self: MixingUpdate, entry: int, halves: Tensor) -> Tensor:
        uniform = stream(self._key, "mix", entry).uniform(-1, 1, halves.numel())
        return torch.from_numpy(uniform).mul_(halves).round_().long()

    monkeypatch.setattr(MixingUpdate, "_drawn", drawn)
