"""Noise that a test knows: it replaces the drawn noise, and is kept for a plain transcription."""

from __future__ import annotations

import numpy as np
import torch

from winsor.core.noise.source import NoiseSource
from winsor.gradients.buffers import as_tensor


class InjectedNoise:
    """What was added, in order: ``vectors``; and the deviation that the run asked for: ``stds``."""

    def __init__(self, seed: int = 0) -> None:
        self.vectors: list[np.ndarray] = []
        self.stds: list[float] = []
        self._rng = np.random.default_rng(seed)

    def add(self, leaves, std) -> None:
        leaves = [as_tensor(leaf) for leaf in leaves]
        size = sum(leaf.numel() for leaf in leaves)
        vector = std * self._rng.standard_normal(size)
        self.stds.append(std)
        self.vectors.append(vector)
        first = 0
        for leaf in leaves:
            part = torch.from_numpy(vector[first : first + leaf.numel()]).view_as(leaf)
            leaf += part.to(leaf.dtype)
            first += leaf.numel()


def inject(monkeypatch, seed: int = 0) -> InjectedNoise:
    """From here on every release gets known noise, of the deviation that it asks for."""
    noise = InjectedNoise(seed)

    def add_slice(self, entry, stream, leaves, std, first, size, *, law="gaussian", bits=None):
        noise.add(leaves, std)

    monkeypatch.setattr(NoiseSource, "add_slice", add_slice)
    return noise
